#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/files_for_test.h"
#include "io/file.h"

namespace smoe::checkpoint {
namespace {

using testing::HasSubstr;

// The smallest qwen3_moe config; `more` members replace those of the same name.
Json QwenConfig(const std::string& more = "{}") {
  Json config = *Json::Parse(
      R"({"model_type": "qwen3_moe", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "max_position_embeddings": 256, "num_experts": 8, "num_experts_per_tok": 2,
          "moe_intermediate_size": 48, "intermediate_size": 128})",
      "base");
  const Json changes = *Json::Parse(more, "more");
  for (const auto& [key, value] : *changes.AsObject()) config.Set(key, value);
  return config;
}

ModelConfig Parse(const Json& json) {
  auto config = ParseModelConfig(json, "config.json");
  EXPECT_TRUE(config) << config.error().message();
  return config ? *config : ModelConfig();
}
ModelConfig ParseQwen(const std::string& more) { return Parse(QwenConfig(more)); }

std::string Refusal(const std::string& more) {
  const auto config = ParseModelConfig(QwenConfig(more), "config.json");
  if (config) return "accepted";
  EXPECT_THAT(config.error().message(), HasSubstr("config.json: "));
  return config.error().message();
}

std::string Kinds(const std::vector<bool>& sparse) {
  std::string text;
  for (const bool is_sparse : sparse) text += is_sparse ? 'S' : 'D';
  return text;
}

TEST(A07, ThetaIsTheSameWhereverItStands) {
  for (const char* more :
       {R"({"rope_theta": 1000000})",
        R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}})",
        R"({"rope_theta": 1000000, "rope_scaling": null})",
        R"({"rope_theta": 5, "rope_parameters": {"rope_theta": 1000000}})",
        R"({"rope_theta": 1000000, "rope_scaling": {"type": "default"}})"}) {
    const ModelConfig config = ParseQwen(more);
    EXPECT_EQ(config.rope.theta, 1000000.0) << more;
    EXPECT_EQ(config.rope.type, RopeType::kDefault) << more;
  }
  EXPECT_EQ(ParseQwen("{}").rope.theta, 10000.0);
}

// A vault has 32 bits for them: 1e39 would be infinite there, 1e-46 nothing.
TEST(A07, ThetaAndEpsilonFit32Bits) {
  for (const char* number : {"1e39", "1e-46", "1e308"}) {
    for (const char* form : {R"({"rope_theta": %s})", R"({"rope_parameters": {"rope_theta": %s}})",
                             R"({"rms_norm_eps": %s})"}) {
      std::string more = form;
      more.replace(more.find("%s"), 2, number);
      EXPECT_THAT(Refusal(more), HasSubstr("what 32 bits hold")) << more;
    }
  }
  EXPECT_EQ(ParseQwen(R"({"rope_theta": 3e38})").rope.theta, 3e38);
}

TEST(A07, YarnIsTheSameInAllItsSpellings) {
  for (
      const char* more :
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}})",
       R"({"rope_parameters": {"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 10000.0}})",
       R"({"rope_parameters": {"type": "yarn", "factor": 4, "beta_fast": 0, "beta_slow": null,
            "original_max_position_embeddings": 64}})",
       R"({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64}})"}) {
    const RopeConfig rope = ParseQwen(more).rope;
    EXPECT_EQ(rope.type, RopeType::kYarn) << more;
    EXPECT_EQ(rope.factor, 4.0) << more;
    EXPECT_EQ(rope.original_positions, 64U) << more;
    EXPECT_EQ(rope.beta_fast, 32.0) << more;
    EXPECT_EQ(rope.beta_slow, 1.0) << more;
    EXPECT_EQ(rope.theta, 10000.0) << more;
    EXPECT_TRUE(rope.truncate) << more;
    EXPECT_FALSE(rope.attention_factor) << more;
  }
}

TEST(A07, YarnWithoutAnOriginalLengthTakesTheWholeLength) {
  const RopeConfig rope = ParseQwen(R"({"rope_scaling": {"type": "yarn", "factor": 4}})").rope;
  EXPECT_EQ(rope.original_positions, 256U);
}

TEST(A07, AnUnknownRopeTypeIsRefusedByName) {
  EXPECT_THAT(Refusal(R"({"rope_scaling": {"type": "spiral", "factor": 2}})"), HasSubstr("spiral"));
  EXPECT_THAT(Refusal(R"({"rope_parameters": {"rope_type": "ntk"}})"), HasSubstr("\"ntk\""));
  EXPECT_THAT(Refusal(R"({"rope_parameters": {"rope_type": 3}})"), HasSubstr("rope type 3"));
  EXPECT_THAT(Refusal(R"({"rope_scaling": "yarn"})"), HasSubstr("rope_scaling"));
  EXPECT_THAT(Refusal(R"({"rope_theta": 0})"), HasSubstr("rope_theta"));
  EXPECT_THAT(Refusal(R"({"rope_theta": -1})"), HasSubstr("rope_theta"));
  EXPECT_THAT(Refusal(R"({"rope_parameters": {"rope_theta": "x"}})"), HasSubstr("rope_theta"));
}

TEST(A07, OtherRopeTypesOfTheReferenceKeepTheirName) {
  EXPECT_EQ(ParseQwen(R"({"rope_scaling": {"type": "linear", "factor": 2}})").rope.type,
            RopeType::kLinear);
  EXPECT_STREQ(RopeTypeName(RopeType::kLinear), "linear");
  EXPECT_STREQ(RopeTypeName(RopeType::kDefault), "default");
}

std::string GlmConfig(const std::string& more) {
  Json config = *Json::Parse(more, "more");
  config.Set("model_type", Json("glm4_moe"));
  config.Set("n_routed_experts", Json(8));
  config.Set("num_experts", Json(nullptr));
  return config.Dump();
}

TEST(A08, PartialRotaryFactorIsFoundInAllItsPlaces) {
  EXPECT_EQ(ParseQwen(GlmConfig(R"({"partial_rotary_factor": 0.5})")).rotary_dim(), 16U);
  EXPECT_EQ(
      ParseQwen(GlmConfig(R"({"rope_parameters": {"partial_rotary_factor": 0.5}})")).rotary_dim(),
      16U);
  EXPECT_EQ(ParseQwen(GlmConfig("{}")).rotary_dim(), 16U);
  EXPECT_EQ(ParseQwen(GlmConfig(R"({"partial_rotary_factor": 0.25})")).rotary_dim(), 8U);
  EXPECT_EQ(ParseQwen("{}").rotary_dim(), 32U);
  EXPECT_THAT(Refusal(R"({"partial_rotary_factor": 1.5})"), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(Refusal(R"({"partial_rotary_factor": 0})"), HasSubstr("partial_rotary_factor"));
}

TEST(A09, LayerKindsFollowTheKeys) {
  EXPECT_EQ(Kinds(ParseQwen("{}").layer_is_sparse), "SSSS");
  EXPECT_EQ(Kinds(ParseQwen(R"({"mlp_only_layers": [0]})").layer_is_sparse), "DSSS");
  EXPECT_EQ(Kinds(ParseQwen(R"({"decoder_sparse_step": 2})").layer_is_sparse), "DSDS");
  EXPECT_EQ(Kinds(ParseQwen(R"({"num_experts": 0})").layer_is_sparse), "DDDD");
  EXPECT_EQ(Kinds(ParseQwen(GlmConfig(R"({"first_k_dense_replace": 1})")).layer_is_sparse), "DSSS");
  EXPECT_EQ(Kinds(ParseQwen(GlmConfig(R"({"first_k_dense_replace": 2, "moe_layer_freq": 2})"))
                      .layer_is_sparse),
            "DDSD");
  EXPECT_THAT(Refusal(R"({"decoder_sparse_step": 0})"), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(Refusal(R"({"mlp_only_layers": [4]})"), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(Refusal(R"({"mlp_only_layers": 1})"), HasSubstr("mlp_only_layers"));
}

TEST(A09, NestedValuesWinOverMisleadingOnesAtTheTop) {
  Json container;
  container.Set("model_type", Json("qwen3_moe"));
  container.Set("num_hidden_layers", Json(33));
  container.Set("hidden_size", Json(32));
  container.Set("tie_word_embeddings", Json(true));
  container.Set("text_config", QwenConfig());
  const ModelConfig config = Parse(container);
  EXPECT_EQ(config.num_hidden_layers, 4U);
  EXPECT_EQ(config.hidden_size, 64U);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.family, Family::kQwen3Moe);
}

TEST(A09, NullCountsAsAbsent) {
  EXPECT_EQ(ParseQwen(R"({"head_dim": null})").head_dim, 16U);  // 64 / 4
  EXPECT_EQ(ParseQwen(R"({"num_key_value_heads": null})").num_key_value_heads, 4U);
  EXPECT_THAT(Refusal(R"({"hidden_size": null})"), HasSubstr("hidden_size: missing"));
}

TEST(A06, TheTieFlagIsFoundAtBothLevels) {
  EXPECT_TRUE(ParseQwen(R"({"tie_word_embeddings": true})").tie_word_embeddings);
  EXPECT_FALSE(ParseQwen("{}").tie_word_embeddings);
  Json container;
  container.Set("text_config", QwenConfig(R"({"tie_word_embeddings": true})"));
  EXPECT_TRUE(Parse(container).tie_word_embeddings);
}

TEST(D06, AWindowCountsOnlyWhereItIsSwitchedOn) {
  EXPECT_EQ(ParseQwen(R"({"sliding_window": 32, "use_sliding_window": false})").sliding_window, 0U);
  EXPECT_EQ(ParseQwen(R"({"sliding_window": null, "use_sliding_window": true})").sliding_window,
            0U);
  EXPECT_EQ(ParseQwen(R"({"sliding_window": 32})").sliding_window, 0U);
  const ModelConfig listed = ParseQwen(
      R"({"sliding_window": 32, "use_sliding_window": true,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                          "full_attention"]})");
  EXPECT_EQ(listed.sliding_window, 32U);
  EXPECT_THAT(listed.layer_is_sliding, testing::ElementsAre(true, false, true, false));
}

TEST(D06, EveryFamilyHasItsOwnWindowRule) {
  // qwen2_moe: even layers below max_window_layers.
  const ModelConfig qwen2 = ParseQwen(
      R"({"model_type": "qwen2_moe", "sliding_window": 32, "use_sliding_window": true,
          "max_window_layers": 2})");
  EXPECT_THAT(qwen2.layer_is_sliding, testing::ElementsAre(true, false, false, false));
  const ModelConfig mixtral = ParseQwen(R"({"model_type": "mixtral", "sliding_window": 32})");
  EXPECT_THAT(mixtral.layer_is_sliding, testing::Each(true));
  EXPECT_EQ(ParseQwen(R"({"model_type": "mixtral", "sliding_window": null})").sliding_window, 0U);
  EXPECT_EQ(ParseQwen(R"({"model_type": "mixtral"})").sliding_window, 0U);
  EXPECT_THAT(Refusal(R"({"layer_types": ["full_attention"]})"), HasSubstr("layer_types: 1"));
  EXPECT_THAT(Refusal(R"({"layer_types": ["a", "b", "c", "d"]})"), HasSubstr("layer_types: \"a\""));
}

struct Limit {
  const char* key;
  uint64_t max;
};

TEST(C05, SizesAreTakenAtTheirLimitAndRefusedBeyond) {
  // hidden_size and head_dim go up alone; the rest of the config stays small.
  const Limit limits[] = {{"vocab_size", kVocabSizeMax},
                          {"hidden_size", kHiddenSizeMax},
                          {"num_hidden_layers", kLayerCountMax},
                          {"num_attention_heads", kHeadCountMax},
                          {"head_dim", kHeadDimMax},
                          {"num_experts", kExpertCountMax},
                          {"moe_intermediate_size", kIntermediateSizeMax},
                          {"intermediate_size", kIntermediateSizeMax},
                          {"max_position_embeddings", kPositionCountMax}};
  for (const auto& [key, max] : limits) {
    const auto at = [&, k = std::string(key)](uint64_t value) {
      return Refusal(fmt::format(R"({{"{}": {}}})", k, value));
    };
    EXPECT_EQ(at(max), "accepted") << key;
    EXPECT_THAT(at(max + 1), HasSubstr(key));
    EXPECT_THAT(at(~uint64_t{0}), HasSubstr(key));
  }
}

TEST(C05, TheProductsOfTheLimitsFitTheirTypes) {
  EXPECT_TRUE(CheckedMul(CheckedMul(kHeadCountMax, kHeadDimMax).value(), kHiddenSizeMax));
  EXPECT_LE(uint64_t{kHeadCountMax} * kHeadDimMax, UINT32_MAX);
  EXPECT_LE(uint64_t{kExpertCountMax} * kLayerCountMax, UINT32_MAX);
  EXPECT_TRUE(CheckedMul(uint64_t{kVocabSizeMax} * kHiddenSizeMax, 8));
  EXPECT_TRUE(CheckedMul(uint64_t{kExpertCountMax} * 2 * kIntermediateSizeMax, kHiddenSizeMax * 8));
}

TEST(ModelConfig, RefusesSizesOfTheWrongKind) {
  for (const char* value : {"0", "-4", "1.5", "\"64\"", "[]", "true", "1e30"}) {
    EXPECT_THAT(Refusal(fmt::format(R"({{"hidden_size": {}}})", value)), HasSubstr("hidden_size"));
  }
  EXPECT_THAT(Refusal(R"({"rms_norm_eps": 0})"), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(Refusal(R"({"norm_topk_prob": 1})"), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(Refusal(R"({"hidden_act": 1})"), HasSubstr("hidden_act"));
  EXPECT_THAT(Refusal(R"({"num_experts_per_tok": 9})"), HasSubstr("at most the 8 experts"));
  EXPECT_THAT(Refusal(R"({"num_key_value_heads": 3})"), HasSubstr("divisor"));
  EXPECT_THAT(Refusal(R"({"head_dim": null, "hidden_size": 65})"), HasSubstr("head_dim"));
  EXPECT_THAT(Refusal(R"({"num_local_experts": 9})"), HasSubstr("two names of one value"));
  EXPECT_EQ(Refusal(R"({"num_local_experts": 8})"), "accepted");
  EXPECT_FALSE(ParseModelConfig(Json(7), "config.json"));
}

TEST(ModelConfig, AMissingExpertCountIsNotTakenForADenseModel) {
  EXPECT_THAT(Refusal(R"({"num_experts": null})"), HasSubstr("num_experts: missing"));
}

TEST(ModelConfig, ReadsStopIdsAsNumberOrList) {
  EXPECT_THAT(ParseQwen(R"({"eos_token_id": 5})").eos_token_ids, testing::ElementsAre(5));
  EXPECT_THAT(ParseQwen(R"({"eos_token_id": [5, 6]})").eos_token_ids, testing::ElementsAre(5, 6));
  EXPECT_THAT(ParseQwen(R"({"eos_token_id": null})").eos_token_ids, testing::IsEmpty());
  EXPECT_THAT(Refusal(R"({"eos_token_id": -1})"), HasSubstr("eos_token_id"));
  const auto list = [](size_t count) {
    Json ids = Json(Json::Array());
    for (size_t i = 0; i < count; ++i) ids.Append(Json(7));
    return fmt::format(R"({{"eos_token_id": {}}})", ids.Dump());
  };
  EXPECT_EQ(Refusal(list(kEosCountMax)), "accepted");
  EXPECT_THAT(Refusal(list(kEosCountMax + 1)), HasSubstr("257 ids"));
}

// Keys of deepseek-ai/deepseek-moe-16b-base, config.json.
TEST(ModelConfig, ReadsDeepseekOfTheFirstVersion) {
  const auto json = Json::Parse(
      R"({"architectures": ["DeepseekForCausalLM"], "attention_bias": false,
          "aux_loss_alpha": 0.001,
          "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
          "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
          "max_position_embeddings": 4096, "model_type": "deepseek", "moe_intermediate_size": 1408,
          "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
          "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6,
          "num_hidden_layers": 28, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
          "rope_scaling": null, "rope_theta": 10000, "scoring_func": "softmax", "seq_aux": true,
          "tie_word_embeddings": false, "vocab_size": 102400})",
      "deepseek");
  const ModelConfig config = Parse(*json);
  EXPECT_EQ(config.family, Family::kDeepseek);
  EXPECT_EQ(config.num_experts, 64U);
  EXPECT_EQ(config.num_experts_per_tok, 6U);
  EXPECT_EQ(config.shared_expert_intermediate_size, 2816U);  // 2 x 1408
  EXPECT_EQ(config.intermediate_size, 10944U);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_EQ(config.scoring, ScoringFunction::kSoftmax);
  EXPECT_EQ(config.head_dim, 128U);
  EXPECT_FALSE(config.layer_is_sparse[0]);
  EXPECT_TRUE(config.layer_is_sparse[1]);
  Json sigmoid = *json;
  sigmoid.Set("scoring_func", Json("sigmoid"));
  EXPECT_EQ(Parse(sigmoid).scoring, ScoringFunction::kSigmoid);
  sigmoid.Set("scoring_func", Json("tanh"));
  EXPECT_THAT(ParseModelConfig(sigmoid, "c").error().message(), HasSubstr("tanh"));
}

TEST(ModelConfig, AnUnknownFamilyIsReadByItsKeys) {
  const ModelConfig config = ParseQwen(R"({"model_type": "brand_new_moe", "rope_theta": 500})");
  EXPECT_EQ(config.family, Family::kUnknown);
  EXPECT_EQ(config.model_type, "brand_new_moe");
  EXPECT_EQ(config.num_experts, 8U);
  EXPECT_TRUE(config.layer_is_sparse.empty());
}

TEST(ModelConfig, ReadsTheBlocksOfFp8Weights) {
  const ModelConfig config = ParseQwen(
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}})");
  EXPECT_EQ(config.quant_method, "fp8");
  EXPECT_EQ(config.fp8_block_rows, 64U);
  EXPECT_EQ(config.fp8_block_cols, 32U);
  EXPECT_THAT(Refusal(R"({"quantization_config": {"weight_block_size": [0, 32]}})"),
              HasSubstr("weight_block_size"));
}

// Expected values by hand from the config.json files and the table in reference/README.md.
struct Expected {
  const char* name;
  Family family;
  const char* kinds;
  uint32_t num_experts, top_k, moe_width, shared_width, rotary_dim;
  bool norm_topk;
};

constexpr Expected kExpected[] = {
    {"qwen3_moe", Family::kQwen3Moe, "SSS", 8, 2, 64, 0, 32, true},
    {"qwen3_moe_v5cfg", Family::kQwen3Moe, "SS", 8, 2, 64, 0, 16, true},
    {"qwen3_moe_nohd", Family::kQwen3Moe, "SS", 8, 2, 64, 0, 16, true},
    {"qwen3_moe_dense", Family::kQwen3Moe, "DSDS", 8, 2, 64, 0, 16, true},
    {"qwen3_moe_step2", Family::kQwen3Moe, "DSDS", 8, 2, 64, 0, 16, false},
    {"qwen2_moe", Family::kQwen2Moe, "SSS", 8, 2, 64, 128, 16, false},
    {"olmoe", Family::kOlmoe, "SSS", 8, 2, 64, 0, 16, false},
    {"mixtral", Family::kMixtral, "SSS", 8, 2, 64, 0, 16, true},
    {"deepseek_v2", Family::kDeepseekV2, "DSS", 8, 3, 64, 128, 24, false},
    {"deepseek_v3", Family::kDeepseekV3, "DSS", 8, 3, 64, 64, 24, true},
    {"glm4_moe", Family::kGlm4Moe, "DSS", 8, 2, 64, 64, 16, true},
    {"gpt_oss_bf16", Family::kGptOss, "SSS", 8, 2, 64, 0, 32, true},
    {"qwen3_next", Family::kQwen3Next, "SSSS", 8, 2, 32, 64, 8, true},
    {"qwen3_5_moe", Family::kQwen35Moe, "SSSS", 8, 2, 32, 64, 8, true},
    {"minimax_m2", Family::kMinimaxM2, "SSS", 8, 3, 64, 0, 16, true},
    {"ernie4_5_moe", Family::kErnie45Moe, "DSS", 8, 3, 64, 128, 16, true},
    {"granitemoe", Family::kGraniteMoe, "SSS", 8, 3, 64, 0, 16, true},
    {"dots1", Family::kDots1, "DSS", 8, 3, 64, 128, 32, true},
    {"hunyuan_v1_moe", Family::kHunyuanV1Moe, "SSS", 8, 2, 64, 64, 32, true},
};

TEST(ModelConfig, ReadsTheConfigsOfAllFamilies) {
  const std::string folder = ReferenceFolder("checkpoints");
  if (folder.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/checkpoints is absent";
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.name);
    const auto text = io::ReadWholeFile(folder + "/" + expected.name + "/config.json", 1 << 20);
    ASSERT_TRUE(text);
    const ModelConfig config = Parse(*Json::Parse(*text, expected.name));
    EXPECT_EQ(config.family, expected.family);
    EXPECT_EQ(Kinds(config.layer_is_sparse), expected.kinds);
    EXPECT_EQ(config.num_experts, expected.num_experts);
    EXPECT_EQ(config.num_experts_per_tok, expected.top_k);
    EXPECT_EQ(config.moe_intermediate_size, expected.moe_width);
    EXPECT_EQ(config.shared_expert_intermediate_size, expected.shared_width);
    EXPECT_EQ(config.rotary_dim(), expected.rotary_dim);
    EXPECT_EQ(config.norm_topk_prob, expected.norm_topk);
  }
}

TEST(ModelConfig, ReadsTheOddsAndEndsOfTheReferenceConfigs) {
  const std::string folder = ReferenceFolder("checkpoints");
  if (folder.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/checkpoints is absent";
  const auto read = [&](const std::string& name) {
    return Parse(
        *Json::Parse(*io::ReadWholeFile(folder + "/" + name + "/config.json", 1 << 20), name));
  };
  EXPECT_EQ(read("olmoe").clip_qkv, 2.0);
  EXPECT_EQ(read("qwen3_moe_yarn").rope.original_positions, 64U);
  EXPECT_FALSE(read("gpt_oss_bf16").rope.truncate);
  EXPECT_EQ(read("gpt_oss_bf16").sliding_window, 16U);
  EXPECT_THAT(read("gpt_oss_bf16").layer_is_sliding, testing::ElementsAre(true, false, true));
  EXPECT_THAT(read("glm4_moe").eos_token_ids, testing::ElementsAre(2, 3));
  EXPECT_EQ(read("deepseek_v2").n_group, 4U);
  EXPECT_EQ(read("deepseek_v2").topk_group, 2U);
  EXPECT_EQ(read("deepseek_v2").rope.mscale, 0.707);
  EXPECT_EQ(read("deepseek_v2_lite").n_group, 1U);
  EXPECT_EQ(read("deepseek_v3").scoring, ScoringFunction::kSigmoid);
  EXPECT_EQ(read("deepseek_v3").routed_scaling_factor, 2.5);
  EXPECT_EQ(read("deepseek_v3").num_nextn_predict_layers, 1U);
  EXPECT_EQ(read("dots1").scoring, ScoringFunction::kSigmoid);
  EXPECT_TRUE(read("ernie4_5_moe").tie_word_embeddings);
  EXPECT_TRUE(read("qwen3_moe_tied").tie_word_embeddings);
  EXPECT_EQ(read("qwen3_5_moe").model_type, "qwen3_5_moe");
  EXPECT_EQ(read("minimax_m2_fp8").quant_method, "fp8");
}

}  // namespace
}  // namespace smoe::checkpoint
