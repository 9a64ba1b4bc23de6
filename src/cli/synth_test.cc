// smoe synth as a user meets it: what the model that it makes does when it runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "cli/console_for_test.h"
#include "convert/files_for_test.h"
#include "tensor/tensor.h"

namespace smoe::cli {
namespace {

using convert::TestFolder;
using testing::HasSubstr;

constexpr size_t kTokens = 320;
constexpr size_t kFirst = 32;  // earlier tokens have little context, and another size

std::string Shape(const TestFolder& folder, uint32_t layers, uint32_t experts, uint32_t top_k) {
  Json json;
  json.Set("model_type", "qwen3_moe").Set("hidden_size", 256).Set("vocab_size", 512);
  json.Set("num_hidden_layers", layers).Set("num_attention_heads", 4);
  json.Set("num_key_value_heads", 2).Set("head_dim", 64).Set("num_experts", experts);
  json.Set("num_experts_per_tok", top_k).Set("moe_intermediate_size", 64);
  json.Set("intermediate_size", 64).Set("rope_theta", 1e6).Set("norm_topk_prob", true);
  const std::string path = folder.Path("shape.json");
  convert::WriteText(path, json.Dump());
  return path;
}

// Independent tokens: a linear congruence (Knuth, MMIX), high bits.
std::string RandomTokens(size_t count) {
  std::string text;
  uint64_t state = 42;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    text += std::to_string(state >> 55) + (i + 1 == count ? "" : ",");
  }
  return text;
}

checkpoint::TensorFiles Logits(const TestFolder& folder, const std::string& model) {
  const std::string out = folder.Path("logits.safetensors");
  const ProgramOutput output = RunForTest({"logits", model, "--tokens", RandomTokens(kTokens),
                                           "--out", out, "--force", "--router", "--hidden"});
  EXPECT_EQ(output.code, 0) << output.err;
  auto files = checkpoint::TensorFiles::Open(out);
  EXPECT_TRUE(files);
  return std::move(*files);
}

template <class T>
std::vector<T> Read(const checkpoint::TensorFiles& files, const std::string& name) {
  const checkpoint::TensorInfo* info = files.Find(name);
  EXPECT_NE(info, nullptr) << name;
  std::vector<T> values(info->size / sizeof(T));
  EXPECT_TRUE(files.Read(*info, 0, std::as_writable_bytes(std::span(values))));
  return values;
}

double Rms(const std::vector<float>& values, size_t row_size) {
  double squares = 0;
  for (size_t i = kFirst * row_size; i < values.size(); ++i)
    squares += double{values[i]} * values[i];
  return std::sqrt(squares / static_cast<double>(values.size() - kFirst * row_size));
}

struct Routing {
  double busy_share = 0;  // of the most used 8 % of the experts
  double overlap = 0;     // mean share of experts that a token has in common with the next
  double chance = 0;      // the same for tokens far apart: sum of the squares of the frequencies
};

Routing Measure(const std::vector<uint32_t>& ids, size_t expert_count, size_t top_k) {
  std::vector<std::set<uint32_t>> chosen;
  std::vector<double> frequencies(expert_count, 0.0);
  for (size_t token = kFirst; token < kTokens; ++token) {
    chosen.emplace_back();
    for (size_t k = 0; k < top_k; ++k) {
      const uint32_t id = ids[token * top_k + k];
      chosen.back().insert(id);
      frequencies[id] += 1.0 / static_cast<double>(kTokens - kFirst);
    }
  }
  Routing routing;
  for (size_t i = 1; i < chosen.size(); ++i) {
    for (const uint32_t id : chosen[i]) routing.overlap += chosen[i - 1].count(id) != 0 ? 1 : 0;
  }
  const double k = static_cast<double>(top_k);
  routing.overlap /= static_cast<double>(chosen.size() - 1) * k;
  for (const double frequency : frequencies) routing.chance += frequency * frequency / k;
  std::sort(frequencies.rbegin(), frequencies.rend());
  double wanted = 0.08 * static_cast<double>(expert_count);
  for (size_t i = 0; wanted > 0; ++i, wanted -= 1) {
    routing.busy_share += frequencies[i] * std::min(1.0, wanted) / k;
  }
  return routing;
}

TEST(Synth, RoutingIsSkewedAndPersistentInEveryLayer) {
  const TestFolder folder;
  const std::string model = folder.Path("model.smoe");
  const ProgramOutput made = RunForTest({"synth", Shape(folder, 4, 128, 8), model, "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const auto report = Json::Parse(made.out, "output");
  ASSERT_TRUE(report);
  EXPECT_NEAR(*report->Find("expected_routing")->Find("busiest_8_percent_share")->AsDouble(), 0.5,
              0.001);
  const checkpoint::TensorFiles logits = Logits(folder, model);
  for (size_t layer = 0; layer < 4; ++layer) {
    const Routing routing =
        Measure(Read<uint32_t>(logits, "router.L0" + std::to_string(layer) + ".ids"), 128, 8);
    EXPECT_NEAR(routing.busy_share, 0.5, 0.07) << "layer " << layer;
    EXPECT_GT(routing.overlap, 1.25 * routing.chance) << "layer " << layer;
  }
}

TEST(Synth, AGiniOfZeroUsesAllExpertsAlike) {
  const TestFolder folder;
  const std::string model = folder.Path("model.smoe");
  ASSERT_EQ(RunForTest({"synth", Shape(folder, 2, 128, 8), model, "--routing-gini", "0"}).code, 0);
  const Routing routing = Measure(Read<uint32_t>(Logits(folder, model), "router.L01.ids"), 128, 8);
  EXPECT_LT(routing.busy_share, 0.2);
}

TEST(Synth, ActivationsNeitherVanishNorExplodeThrough48Layers) {
  const TestFolder folder;
  const std::string shape = Shape(folder, 48, 16, 4);
  for (const char* name : {"model.smoe", "records"}) {
    const std::string model = folder.Path(name);
    ASSERT_EQ(RunForTest({"synth", shape, model}).code, 0);
    const ProgramOutput verified = RunForTest({"verify", model});
    EXPECT_EQ(verified.code, 0) << verified.err;
    const checkpoint::TensorFiles files = Logits(folder, model);
    const auto logits = Read<float>(files, "logits");
    EXPECT_TRUE(
        std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
    EXPECT_NEAR(Rms(logits, 512), 2, 0.3);
    for (const char* layer : {"L00", "L01", "L12", "L24", "L47"}) {
      const double rms = Rms(Read<float>(files, std::string("hidden.") + layer), 256);
      EXPECT_GT(rms, 1) << name << " " << layer;
      EXPECT_LT(rms, 2.5) << name << " " << layer;
    }
  }
}

TEST(Synth, RunsOnTokenIdsWithoutATokenizer) {
  const TestFolder folder;
  const std::string model = folder.Path("model.smoe");
  ASSERT_EQ(RunForTest({"synth", Shape(folder, 2, 8, 2), model, "--vocab", "64"}).code, 0);
  const ProgramOutput output =
      RunForTest({"run", model, "--tokens", "1,2,3", "--raw-ids", "-n", "4"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), ' '), 3) << output.out;
}

TEST(Synth, ARecordStoreHasNoBitsToChoose) {
  const TestFolder folder;
  const ProgramOutput output =
      RunForTest({"synth", "olmoe-1b-7b", folder.Path("out"), "--bits", "2"});
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.err, HasSubstr("--bits: a record store has 4 bits"));
}

// A signal as soon as there is something to leave; where the writing was faster, it is ignored.
TEST(SynthProgram, CtrlCLeavesNothingBehind) {
  const TestFolder folder;
  const std::string out = folder.Path("model.smoe");
  const auto before = std::signal(SIGINT, SIG_IGN);
  std::atomic<bool> is_over{false};
  std::thread user([&] {
    while (!is_over && !std::filesystem::exists(out + ".partial")) std::this_thread::yield();
    std::raise(SIGINT);
  });
  const ProgramOutput output =
      RunForTest({"synth", "qwen3-30b-a3b", out, "--layers", "3", "--vocab", "1000"});
  is_over = true;
  user.join();
  std::signal(SIGINT, before);
  EXPECT_EQ(output.code, 130);
  EXPECT_THAT(output.err, HasSubstr("model.smoe: not written, interrupted"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.Path("")));
}

}  // namespace
}  // namespace smoe::cli
