// Whole models against what the reference library computes (../shared/reference/README.md), and
// DeepSeek version 1 against tests/golden.
#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

// The promise of the f32 arithmetic: this share of the largest logit.
constexpr float kTolerance = 2e-4f;

struct Paths {
  std::string checkpoint;
  std::string golden;
};

Paths PathsOf(const std::string& name) {
  if (name == "deepseek_v1") {
    return {DeepseekFolder(), DeepseekFolder() + "/golden.safetensors"};
  }
  return {SharedPath("checkpoints/" + name), SharedPath("goldens/" + name + ".safetensors")};
}

void ExpectClose(std::span<const float> found, const checkpoint::TensorFiles& golden,
                 const std::string& name) {
  const std::vector<float> expected = ReadFloats(golden, name);
  ASSERT_EQ(found.size(), expected.size()) << name;
  EXPECT_LT(LargestDifference(found, expected), kTolerance * LargestMagnitude(expected)) << name;
}

void ExpectRouting(const StepTaps& taps, const checkpoint::TensorFiles& golden,
                   const std::string& prompt) {
  for (size_t layer = 0; layer < taps.layers.size(); ++layer) {
    const std::string stem = fmt::format("{}.router.L{:02}", prompt, layer);
    if (golden.Find(stem + ".ids") == nullptr) {
      EXPECT_TRUE(taps.layers[layer].router_ids.empty()) << stem;
      continue;
    }
    EXPECT_EQ(taps.layers[layer].router_ids, ReadIds(golden, stem + ".ids")) << stem;
    EXPECT_LT(
        LargestDifference(taps.layers[layer].router_weights, ReadFloats(golden, stem + ".weights")),
        2e-5f)
        << stem;
  }
}

std::vector<uint32_t> Greedy(TestModel& test, std::vector<uint32_t> prompt, size_t count) {
  KvSequence kv = test.kv->NewSequence();
  std::vector<uint32_t> next = std::move(prompt);
  std::vector<uint32_t> generated;
  while (generated.size() < count) {
    const SequenceRows rows = {&kv, next, SequenceRows::Logits::kLast};
    const auto result = test.model->Step({&rows, 1}, nullptr);
    EXPECT_TRUE(result.has_value());
    if (!result.has_value()) break;
    const auto best = std::max_element(result->logits.begin(), result->logits.end());
    next = {static_cast<uint32_t>(best - result->logits.begin())};
    generated.push_back(next[0]);
  }
  return generated;
}

class GoldenModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenModel, LogitsHiddenStatesRoutingAndGreedyAgree) {
  const Paths paths = PathsOf(GetParam());
  if (!std::filesystem::exists(paths.golden)) GTEST_SKIP() << "no reference data: " << paths.golden;
  auto test = LoadTestModel(OpenFolder(paths.checkpoint));
  ASSERT_TRUE(test.has_value()) << test.error().message();
  const auto golden = checkpoint::TensorFiles::Open(paths.golden);
  ASSERT_TRUE(golden.has_value()) << golden.error().message();
  for (const std::string prompt : {"p0", "p1", "p2"}) {
    StepTaps taps;
    taps.want_router = true;
    taps.want_hidden = true;
    const std::vector<uint32_t> ids = ReadIds(*golden, prompt + ".input_ids");
    const std::vector<float> logits = RunPrompt(*test, ids, SIZE_MAX, &taps);
    ExpectClose(logits, *golden, prompt + ".logits");
    ExpectRouting(taps, *golden, prompt);
    if (prompt != "p1") continue;
    ExpectClose(taps.hidden_embed, *golden, "p1.hidden.embed");
    for (size_t layer = 0; layer < taps.layers.size(); ++layer) {
      ExpectClose(taps.layers[layer].hidden, *golden, fmt::format("p1.hidden.L{:02}", layer));
    }
    ExpectClose(taps.hidden_norm, *golden, "p1.hidden.norm");
  }
  const std::vector<uint32_t> expected = ReadIds(*golden, "greedy.ids");
  EXPECT_EQ(Greedy(*test, ReadIds(*golden, "p1.input_ids"), expected.size()), expected);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         ::testing::Values("qwen3_moe", "qwen3_moe_sharded", "qwen3_moe_odd",
                                           "qwen3_moe_dense", "qwen3_moe_step2", "qwen3_moe_tied",
                                           "qwen3_moe_f16", "qwen3_moe_f32", "qwen3_moe_yarn",
                                           "qwen3_moe_nohd", "qwen3_moe_v5cfg", "qwen3_moe_micro",
                                           "qwen3_moe_zeros", "qwen3_moe_noroom", "qwen2_moe",
                                           "olmoe", "mixtral", "deepseek_v1"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace smoe::model
