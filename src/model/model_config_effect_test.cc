// What the config and optional tensors change in the results.
#include <cstring>

#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

// Logits of the first prompt tokens of `count` different ids.
std::vector<float> LogitsOf(store::ModelFiles files, size_t count, StepTaps* taps = nullptr) {
  auto test = LoadTestModel(std::move(files));
  EXPECT_TRUE(test.has_value()) << test.error().message();
  if (!test.has_value()) return {};
  std::vector<uint32_t> ids(count);
  for (size_t i = 0; i < count; ++i) {
    ids[i] = static_cast<uint32_t>((i * 29 + 5) % test->model->config().vocab_size);
  }
  return RunPrompt(*test, ids, SIZE_MAX, taps);
}

std::vector<float> LogitsOf(const EditableFolder& folder, size_t count) {
  const auto written = folder.Write();
  return LogitsOf(OpenFolder(written->path()), count);
}

Json Object(std::initializer_list<std::pair<const char*, Json>> members) {
  Json object;
  for (const auto& [key, value] : members) object.Set(key, value);
  return object;
}

class ConfigEffect : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(SharedPath("checkpoints"))) {
      GTEST_SKIP() << "no reference data: " << SharedPath("checkpoints");
    }
  }
};

TEST_F(ConfigEffect, RopeIsReadFromOldAndNewKeysAlike) {
  EditableFolder base(SharedPath("checkpoints/qwen3_moe_yarn"));
  const auto logits_with = [&](const Json& theta, const Json& scaling, const Json& parameters) {
    EditableFolder folder = base;
    folder.config.Set("rope_theta", theta);
    folder.config.Set("rope_scaling", scaling);
    folder.config.Set("rope_parameters", parameters);
    return LogitsOf(folder, 100);
  };
  const Json yarn =
      Object({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}});
  Json with_theta = yarn;
  with_theta.Set("rope_theta", 1000000);
  Json old_type =
      Object({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}});
  const std::vector<float> plain = logits_with(1000000, nullptr, nullptr);
  EXPECT_EQ(
      logits_with(nullptr, nullptr, Object({{"rope_type", "default"}, {"rope_theta", 1000000}})),
      plain);
  const std::vector<float> stretched = logits_with(1000000, yarn, nullptr);
  EXPECT_EQ(logits_with(nullptr, nullptr, with_theta), stretched);
  EXPECT_EQ(logits_with(1000000, old_type, nullptr), stretched);
  EXPECT_NE(plain, stretched);
}

TEST_F(ConfigEffect, PartialRotationIsReadAtBothPlaces) {
  EditableFolder folder(SharedPath("checkpoints/qwen3_moe_micro"));
  const std::vector<float> whole = LogitsOf(folder, 20);
  EditableFolder top = folder;
  top.config.Set("partial_rotary_factor", 0.5);
  EditableFolder inside = folder;
  inside.config.Set("rope_parameters", Object({{"rope_type", "default"},
                                               {"rope_theta", *folder.config.Find("rope_theta")},
                                               {"partial_rotary_factor", 0.5}}));
  const std::vector<float> half = LogitsOf(top, 20);
  EXPECT_EQ(LogitsOf(inside, 20), half);
  EXPECT_NE(half, whole);
}

TEST_F(ConfigEffect, ATiedHeadIgnoresAForeignHead) {
  EditableFolder folder(SharedPath("checkpoints/qwen3_moe_tied"));
  const std::vector<float> tied = LogitsOf(folder, 10);
  checkpoint::TestTensor foreign = folder.Tensor("model.embed_tokens.weight");
  foreign.name = "lm_head.weight";
  folder.tensors.push_back(foreign);
  folder.Fill("lm_head.weight", 0.5f);
  const auto written = folder.Write();
  store::ModelFiles files = OpenFolder(written->path());
  files.facts.head_is_tied = true;
  EXPECT_EQ(LogitsOf(std::move(files), 10), tied);
}

TEST_F(ConfigEffect, BiasesAreUsedWithoutTheFlag) {
  EditableFolder folder(SharedPath("checkpoints/qwen3_moe_v5cfg"));
  const std::vector<float> flagged = LogitsOf(folder, 20);
  folder.config.Set("attention_bias", nullptr);
  EXPECT_EQ(LogitsOf(folder, 20), flagged);
  for (const char* name : {"q", "k", "v", "o"}) {
    for (int layer = 0; layer < 2; ++layer) {
      folder.Remove(fmt::format("model.layers.{}.self_attn.{}_proj.bias", layer, name));
    }
  }
  EXPECT_NE(LogitsOf(folder, 20), flagged);
}

TEST_F(ConfigEffect, ASwitchedOffWindowIsNone) {
  EditableFolder folder(SharedPath("checkpoints/qwen2_moe"));
  const std::vector<float> full = LogitsOf(folder, 100);
  folder.config.Set("sliding_window", 32);
  EXPECT_EQ(LogitsOf(folder, 100), full);
  folder.config.Set("sliding_window", nullptr);
  EXPECT_EQ(LogitsOf(folder, 100), full);
}

TEST_F(ConfigEffect, AWindowChangesNothingBeforeItsEndAndAllBehind) {
  EditableFolder folder(SharedPath("checkpoints/qwen2_moe"));
  const std::vector<float> full = LogitsOf(folder, 100);
  folder.config.Set("sliding_window", 32);
  folder.config.Set("use_sliding_window", true);
  folder.config.Set("layer_types",
                    Json::Array{"full_attention", "sliding_attention", "full_attention"});
  const std::vector<float> windowed = LogitsOf(folder, 100);
  ASSERT_EQ(windowed.size(), full.size());
  const size_t vocab = full.size() / 100;
  const auto row_is_equal = [&](size_t row) {
    return std::memcmp(&full[row * vocab], &windowed[row * vocab], vocab * sizeof(float)) == 0;
  };
  for (size_t row = 0; row < 100; ++row) EXPECT_EQ(row_is_equal(row), row < 32) << row;
}

// With a window of w, layer by layer a token reaches w - 1 positions further, and not one more.
TEST_F(ConfigEffect, AWindowReachesExactlyItsWidthPerLayer) {
  for (const size_t window : {size_t{1}, size_t{2}, size_t{5}}) {
    store::ModelFiles files = OpenFolder(SharedPath("checkpoints/mixtral"));
    files.config.sliding_window = window;
    files.config.layer_is_sliding.assign(files.config.num_hidden_layers, true);
    const size_t reach = (window - 1) * files.config.num_hidden_layers;
    auto test = LoadTestModel(std::move(files));
    ASSERT_TRUE(test.has_value()) << test.error().message();
    std::vector<uint32_t> ids = {7, 3, 90, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32};
    const std::vector<float> first = RunPrompt(*test, ids);
    ids[0] = 200;
    const std::vector<float> second = RunPrompt(*test, ids);
    const size_t vocab = first.size() / ids.size();
    for (size_t row = 0; row < ids.size(); ++row) {
      const bool equal =
          std::memcmp(&first[row * vocab], &second[row * vocab], vocab * sizeof(float)) == 0;
      EXPECT_EQ(equal, row > reach) << "window " << window << " row " << row;
    }
  }
}

// Rows of the router that bf16 cannot tell apart must stay apart: with scores s (1 + e / 10000) the
// choice is the two highest experts where s > 0 and the two lowest where s < 0.
TEST(RouterPrecision, F32RouterWeightsAreNotSqueezed) {
  EditableFolder folder(DeepseekFolder());
  checkpoint::TestTensor& router = folder.Tensor("model.layers.1.mlp.gate.weight");
  const size_t cols = router.shape[1];
  std::vector<float> values;
  for (size_t expert = 0; expert < router.shape[0]; ++expert) {
    for (size_t col = 0; col < cols; ++col) {
      const float value = 7.0f * static_cast<float>(static_cast<int>(col % 3) - 1);
      values.push_back(value * (1.0f + static_cast<float>(expert) * 1e-4f));
    }
  }
  router.dtype = tensor::DType::kF32;
  router.data = checkpoint::F32Data(values);
  const auto written = folder.Write();
  StepTaps taps;
  taps.want_router = true;
  LogitsOf(OpenFolder(written->path()), 60, &taps);
  ASSERT_EQ(taps.layers.size(), 3u);
  size_t high_count = 0;
  for (size_t row = 0; row < 60; ++row) {
    const uint32_t first = taps.layers[1].router_ids[row * 2];
    EXPECT_EQ(taps.layers[1].router_ids[row * 2 + 1], first + 1);
    EXPECT_TRUE(first == 0 || first == 4) << row;
    high_count += first == 4 ? 1u : 0u;
  }
  EXPECT_GT(high_count, 5u);
  EXPECT_LT(high_count, 55u);
}

// Layer 1 with factor 2.5 minus layer 1 with factor 1 is 1.5 times the routed sum: the factor
// counts once, and not for the shared experts.
TEST(RoutedScaling, MultipliesTheRoutedSumOnceAndNotTheSharedExpert) {
  std::vector<float> hidden[2];
  std::vector<float> routed;
  const std::vector<uint32_t> ids = {4, 17, 39, 8, 21};
  for (const int scaled : {0, 1}) {
    store::ModelFiles files = OpenFolder(DeepseekFolder());
    files.config.routed_scaling_factor = scaled == 1 ? 2.5 : 1.0;
    auto test = LoadTestModel(std::move(files));
    ASSERT_TRUE(test.has_value()) << test.error().message();
    test->backend->after_run = [&](const experts::RoutedRows& rows, auto*) {
      if (rows.layer_index != 1 || scaled == 1) return;
      routed.assign(rows.out, rows.out + rows.row_count * 32);
    };
    StepTaps taps;
    taps.want_hidden = true;
    RunPrompt(*test, ids, SIZE_MAX, &taps);
    hidden[scaled] = taps.layers[1].hidden;
  }
  ASSERT_EQ(routed.size(), hidden[0].size());
  for (size_t i = 0; i < routed.size(); ++i) {
    EXPECT_NEAR(hidden[1][i] - hidden[0][i], 1.5f * routed[i], 1e-5f) << i;
  }
}

}  // namespace
}  // namespace smoe::model
