#include "convert/synthesizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/files_for_test.h"
#include "convert/synth_shape.h"
#include "store/model_files.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kSmall[] = R"({"model_type": "qwen3_moe", "hidden_size": 128, "vocab_size": 96,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "hidden_act": "silu",
  "intermediate_size": 48, "max_position_embeddings": 512, "rope_theta": 10000.0,
  "norm_topk_prob": true, "tie_word_embeddings": false, "eos_token_id": 95})";

std::string SmallShape(const TestFolder& folder, const std::string& from = "",
                       const std::string& to = "") {
  std::string text = kSmall;
  if (!from.empty()) text.replace(text.find(from), from.size(), to);
  const std::string path = folder.Path("shape.json");
  WriteText(path, text);
  return path;
}

Result<SynthReport> Make(const std::string& shape, const std::string& out,
                         const SynthOptions& options) {
  NoProgress progress;
  return Synthesize(shape, out, options, progress);
}

std::string RefusalOf(const Result<SynthReport>& report) {
  EXPECT_FALSE(report);
  return report ? "" : report.error().message();
}

std::string RefusalOf(const std::string& shape, const std::string& out,
                      const SynthOptions& options) {
  return RefusalOf(Make(shape, out, options));
}

uint64_t WeightCount(const checkpoint::ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t heads = uint64_t{config.num_attention_heads} * config.head_dim;
  const uint64_t kv_heads = uint64_t{config.num_key_value_heads} * config.head_dim;
  const uint64_t experts = uint64_t{config.num_experts} * 3 * config.moe_intermediate_size * hidden;
  const uint64_t layer = 2 * hidden * (heads + kv_heads) + config.num_experts * hidden + experts;
  return config.num_hidden_layers * layer + 2 * hidden * config.vocab_size;
}

// Sizes by the published config.json; totals as the model cards round them.
TEST(SynthShape, PresetsAreThePublishedModels) {
  struct Published {
    const char* name;
    uint32_t hidden, layers, experts, top_k, width, heads, kv_heads, head_dim, vocab;
    double billions;
  };
  constexpr Published kPublished[] = {
      {"qwen3-30b-a3b", 2048, 48, 128, 8, 768, 32, 4, 128, 151936, 30.5},
      {"qwen3-235b-a22b", 4096, 94, 128, 8, 1536, 64, 4, 128, 151936, 235},
      {"olmoe-1b-7b", 2048, 16, 64, 8, 1024, 16, 16, 128, 50304, 6.9},
      {"gpt-oss-120b", 2880, 36, 128, 4, 2880, 64, 8, 64, 201088, 117},
  };
  EXPECT_EQ(SynthPresets().size(), std::size(kPublished));
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.name);
    const auto shape = FindSynthShape(published.name, {}, {});
    ASSERT_TRUE(shape) << shape.error().message();
    const checkpoint::ModelConfig& config = shape->config;
    EXPECT_EQ(config.hidden_size, published.hidden);
    EXPECT_EQ(config.num_hidden_layers, published.layers);
    EXPECT_EQ(config.num_experts, published.experts);
    EXPECT_EQ(config.num_experts_per_tok, published.top_k);
    EXPECT_EQ(config.moe_intermediate_size, published.width);
    EXPECT_EQ(config.num_attention_heads, published.heads);
    EXPECT_EQ(config.num_key_value_heads, published.kv_heads);
    EXPECT_EQ(config.head_dim, published.head_dim);
    EXPECT_EQ(config.vocab_size, published.vocab);
    EXPECT_NEAR(static_cast<double>(WeightCount(config)) / 1e9, published.billions,
                published.billions * 0.005);
  }
}

TEST(Synthesize, BytesDependOnTheSeedAndNotOnThreads) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  for (const auto to : {StoreKind::kVault, StoreKind::kRecords}) {
    const bool is_vault = to == StoreKind::kVault;
    const auto content = [&](const std::string& path) {
      if (is_vault) return ReadText(path);
      return ReadText(path + "/experts_00002.xpr") + ReadText(path + "/trunk.safetensors") +
             ReadText(path + "/manifest.json");
    };
    std::vector<std::string> contents;
    const std::pair<uint64_t, uint32_t> kRuns[] = {{7, 1}, {7, 5}, {8, 5}};
    for (const auto& [seed, threads] : kRuns) {
      SynthOptions options;
      options.to = to;
      options.seed = seed;
      options.threads = threads;
      options.force = true;
      const std::string path = folder.Path(is_vault ? "out.smoe" : "out");
      const auto report = Make(shape, path, options);
      ASSERT_TRUE(report) << report.error().message();
      contents.push_back(content(path));
    }
    EXPECT_TRUE(contents[0] == contents[1]);
    EXPECT_FALSE(contents[0] == contents[2]);
  }
  EXPECT_FALSE(fs::exists(folder.Path("out.smoe.partial")));
}

TEST(Synthesize, MakesModelsThatOpenInEveryFormat) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  SynthOptions q2;
  q2.bits = tensor::SmoeBits::kQ2;
  q2.group_size = 16;
  q2.layers = 2;
  q2.vocab = 50;
  SynthOptions records;
  records.to = StoreKind::kRecords;
  const std::tuple<SynthOptions, const char*, const char*> kCases[] = {
      {{}, "a.smoe", "smoe-q4 group 64"},
      {q2, "b.smoe", "smoe-q2 group 16"},
      {records, "c", "nvfp4 group 16"}};
  for (const auto& [options, name, format] : kCases) {
    const std::string path = folder.Path(name);
    const auto report = Make(shape, path, options);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report->format, format);
    const auto files = store::OpenModelFiles(path, {});
    ASSERT_TRUE(files) << files.error().message();
    EXPECT_THAT(files->warnings, testing::IsEmpty());
    EXPECT_EQ(files->config.num_hidden_layers, options.layers.value_or(3));
    EXPECT_EQ(files->config.vocab_size, options.vocab.value_or(96));
    EXPECT_THAT(files->config.eos_token_ids, testing::IsEmpty());
    EXPECT_EQ(files->experts->expert_count(), options.layers.value_or(3) * 8);
  }
}

TEST(Synthesize, AWeightStaysItselfWhereTheVocabularyIsCut) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  SynthOptions cut;
  cut.vocab = 40;
  ASSERT_TRUE(Make(shape, folder.Path("whole.smoe"), {}));
  ASSERT_TRUE(Make(shape, folder.Path("cut.smoe"), cut));
  const auto whole = store::OpenModelFiles(folder.Path("whole.smoe"), {});
  const auto part = store::OpenModelFiles(folder.Path("cut.smoe"), {});
  ASSERT_TRUE(whole && part);
  std::vector<std::byte> a(40 * 128 * 2);
  std::vector<std::byte> b(a.size());
  const char* name = "model.embed_tokens.weight";
  ASSERT_TRUE(whole->trunk.Read(*whole->trunk.Find(name), 0, a));
  ASSERT_TRUE(part->trunk.Read(*part->trunk.Find(name), 0, b));
  EXPECT_EQ(a, b);
}

TEST(Synthesize, ADryRunPlansAndWritesNothing) {
  const TestFolder folder;
  SynthOptions options;
  options.dry_run = true;
  options.layers = 12;
  options.vocab = 32000;
  const auto report = Make("qwen3-30b-a3b", folder.Path("x.smoe"), options);
  ASSERT_TRUE(report) << report.error().message();
  // 12 x 128 experts of 3 x 768 x 2048 weights, 17 bits for 4: codes and a share of an f16.
  EXPECT_EQ(report->expert_bytes / 1000000, 12 * 128 * 3ULL * 768 * 2048 * 17 / 32 / 1000000);
  EXPECT_FALSE(fs::exists(folder.Path("x.smoe")));
  EXPECT_FALSE(fs::exists(folder.Path("x.smoe.partial")));
}

TEST(Synthesize, RefusesShapesThatItCannotMake) {
  const TestFolder folder;
  const std::string out = folder.Path("out.smoe");
  const auto changed = [&](const char* from, const char* to) {
    return RefusalOf(SmallShape(folder, from, to), out, {});
  };
  EXPECT_THAT(RefusalOf("qwen9", out, {}), HasSubstr("no such shape; expected qwen3-30b-a3b, "));
  EXPECT_THAT(changed("\"qwen3_moe\"", "\"qwen2_moe\""),
              HasSubstr("model_type qwen2_moe, expected qwen3_moe or olmoe"));
  EXPECT_THAT(changed("\"norm_topk_prob\": true", "\"mlp_only_layers\": [1]"),
              HasSubstr("layer 1 is dense"));
  EXPECT_THAT(changed("\"hidden_size\": 128", "\"hidden_size\": 48"),
              HasSubstr("hidden_size 48, expected at least 64"));
  EXPECT_THAT(changed("\"vocab_size\": 96,", ""), HasSubstr("vocab_size"));
  EXPECT_THAT(changed("\"head_dim\": 32", "\"head_dim\": 31"),
              HasSubstr("31 of head_dim 31 dimensions rotate, expected an even number"));
  EXPECT_THAT(changed("\"rope_theta\": 10000.0",
                      "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}"),
              HasSubstr("rope type linear, expected default or yarn"));
  EXPECT_FALSE(fs::exists(out));
}

TEST(Synthesize, RefusesOptionsThatTheShapeDoesNotHave) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  const std::string out = folder.Path("out.smoe");
  SynthOptions options;
  options.layers = 4;
  EXPECT_THAT(RefusalOf(shape, out, options), HasSubstr("--layers: 4 is more than there is"));
  options.layers = 0;
  EXPECT_THAT(RefusalOf(shape, out, options), HasSubstr("--layers: 0 would leave nothing"));
  options = {};
  options.vocab = 97;
  EXPECT_THAT(RefusalOf(shape, out, options), HasSubstr("--vocab: 97"));
  options = {};
  options.routing_gini = 0.9;
  EXPECT_THAT(RefusalOf(shape, out, options), HasSubstr("--routing-gini: 0.9, expected 0 to 0.7"));
  options = {};
  options.group_size = 24;
  EXPECT_THAT(RefusalOf(shape, out, options), HasSubstr("24"));
  EXPECT_FALSE(fs::exists(out));
}

TEST(Synthesize, ReplacesNothingUnasked) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  const std::string out = folder.Path("out.smoe");
  WriteText(out, "mine");
  EXPECT_THAT(RefusalOf(shape, out, {}), HasSubstr("exists; --force replaces it"));
  EXPECT_EQ(ReadText(out), "mine");
  SynthOptions force;
  force.force = true;
  EXPECT_THAT(RefusalOf(shape, shape, force), HasSubstr(shape));
  EXPECT_EQ(ReadText(shape), kSmall);
  fs::create_directory(folder.Path("checkpoint"));
  const std::string config = folder.Path("checkpoint/config.json");
  WriteText(config, kSmall);
  SynthOptions records = force;
  records.to = StoreKind::kRecords;
  for (const std::string& name : {config, folder.Path("checkpoint")}) {
    EXPECT_THAT(RefusalOf(name, folder.Path("checkpoint"), records), HasSubstr("is the folder of"));
  }
  EXPECT_EQ(ReadText(config), kSmall);
  EXPECT_TRUE(Make(shape, out, force));
}

TEST(Synthesize, StartsAgainOverARecordStoreThatAKillLeft) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  SynthOptions options;
  options.to = StoreKind::kRecords;
  options.layers = 2;
  fs::create_directory(folder.Path("out"));
  WriteText(folder.Path("out/experts_00002.xpr"), "left");
  WriteText(folder.Path("out/trunk.safetensors"), "left");
  EXPECT_THAT(RefusalOf(shape, folder.Path("out"), options), HasSubstr("--force starts again"));
  options.force = true;
  ASSERT_TRUE(Make(shape, folder.Path("out"), options));
  EXPECT_FALSE(fs::exists(folder.Path("out/experts_00002.xpr")));
  EXPECT_TRUE(store::OpenModelFiles(folder.Path("out"), {}));
}

// No later run could go on with it.
TEST(Synthesize, LeavesNothingWhereItIsStopped) {
  const TestFolder folder;
  const std::string shape = SmallShape(folder);
  for (const char* out : {"out.smoe", "out"}) {
    SynthOptions options;
    options.to = std::string(out) == "out" ? StoreKind::kRecords : StoreKind::kVault;
    StoppingProgress progress(3);
    const auto stopped = Synthesize(shape, folder.Path(out), options, progress);
    ASSERT_FALSE(stopped);
    EXPECT_THAT(stopped.error().message(), HasSubstr("interrupted"));
    EXPECT_FALSE(fs::exists(folder.Path(out)));
    EXPECT_FALSE(fs::exists(folder.Path(out) + ".partial"));
  }
}

TEST(Synthesize, SaysWhatItNeedsWhereTheDriveIsTooSmall) {
  const TestFolder folder;
  const auto space = fs::space(folder.Path(""));
  SynthOptions options;
  if (space.available > (uint64_t{130} << 30)) GTEST_SKIP() << "drive of " << space.available;
  EXPECT_THAT(RefusalOf("qwen3-235b-a22b", folder.Path("x.smoe"), options),
              HasSubstr("needs 136641822720 bytes"));
  EXPECT_FALSE(fs::exists(folder.Path("x.smoe.partial")));
}

// Of 20000 simulated tokens each (numpy, argpartition of bias + normal noise).
TEST(SkewOf, AgreesWithSimulation) {
  EXPECT_NEAR(SkewOf(1.0, 128, 8, true).gini, 0.730, 0.01);
  EXPECT_NEAR(SkewOf(1.0, 128, 8, true).busy_share, 0.486, 0.01);
  EXPECT_NEAR(SkewOf(2.0, 64, 8, true).gini, 0.797, 0.01);
  EXPECT_NEAR(SkewOf(2.0, 64, 8, true).busy_share, 0.525, 0.01);
  EXPECT_NEAR(SkewOf(0.5, 8, 2, true).gini, 0.316, 0.01);
  EXPECT_NEAR(SkewOf(0.8, 128, 4, true).busy_share, 0.489, 0.01);
}

TEST(FindSkew, GivesHalfToTheBusiestOrTheGiniAskedFor) {
  EXPECT_NEAR(FindSkew({}, 128, 8, true)->busy_share, 0.5, 0.001);
  EXPECT_NEAR(FindSkew({}, 64, 8, false)->busy_share, 0.5, 0.001);
  EXPECT_NEAR(FindSkew({}, 128, 4, true)->busy_share, 0.5, 0.001);
  EXPECT_NEAR(FindSkew(0.3, 128, 8, true)->gini, 0.3, 0.002);
  EXPECT_EQ(FindSkew(0.0, 128, 8, true)->spread, 0);
  // Two of eight chosen: 8 % are two thirds of an expert, which can never take half of them.
  EXPECT_EQ(FindSkew({}, 8, 2, true)->spread, 1.05);
}

}  // namespace
}  // namespace smoe::convert
