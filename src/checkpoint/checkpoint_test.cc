#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/files_for_test.h"

namespace smoe::checkpoint {
namespace {

using tensor::DType;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// A folder with a tiny qwen3_moe model: 2 layers, 2 experts, hidden 4, width 2.
class Toy {
 public:
  Toy() {
    Add("model.embed_tokens.weight", {6, 4});
    Add("lm_head.weight", {6, 4});
    Add("model.norm.weight", {4});
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) AddLayer(layer);
    config_ = *Json::Parse(
        R"({"model_type": "qwen3_moe", "vocab_size": 6, "hidden_size": 4, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2, "num_experts": 2,
            "num_experts_per_tok": 1, "moe_intermediate_size": 2, "intermediate_size": 6})",
        "toy");
  }

  void Add(const std::string& name, const tensor::Shape& shape) {
    const std::string zeros(*tensor::ElementCount(shape) * 2, '\0');
    tensors_.push_back({name, DType::kBF16, shape, zeros});
  }
  void AddLayer(const std::string& stem) {
    Add(stem + "input_layernorm.weight", {4});
    Add(stem + "post_attention_layernorm.weight", {4});
    for (const char* name : {"q", "k", "v", "o"}) {
      Add(stem + "self_attn." + name + "_proj.weight", {4, 4});
    }
    Add(stem + "mlp.gate.weight", {2, 4});
    for (const char* expert : {"0", "1"}) {
      const std::string experts = stem + "mlp.experts." + expert + ".";
      Add(experts + "gate_proj.weight", {2, 4});
      Add(experts + "up_proj.weight", {2, 4});
      Add(experts + "down_proj.weight", {4, 2});
    }
  }
  void Remove(const std::string& prefix) {
    const auto last = std::remove_if(tensors_.begin(), tensors_.end(), [&](const TestTensor& t) {
      return t.name.compare(0, prefix.size(), prefix) == 0;
    });
    tensors_.erase(last, tensors_.end());
  }
  Json& config() { return config_; }
  void Nest() {
    Json container;
    container.Set("model_type", Json("qwen3_moe"));
    container.Set("num_hidden_layers", Json(33));
    container.Set("text_config", config_);
    config_ = container;
  }

  Result<Checkpoint> Open() const {
    folder_.Write("config.json", config_.Dump(2));
    folder_.Write("model.safetensors", MakeSafetensors(tensors_));
    return OpenCheckpoint(folder_.path());
  }
  Checkpoint MustOpen() const {
    auto checkpoint = Open();
    EXPECT_TRUE(checkpoint) << checkpoint.error().message();
    return checkpoint ? std::move(*checkpoint) : Checkpoint();
  }
  std::string Refusal() const {
    const auto checkpoint = Open();
    if (checkpoint) return "accepted";
    EXPECT_THAT(checkpoint.error().message(), HasSubstr(folder_.path()));
    return checkpoint.error().message();
  }
  const TestFolder& folder() const { return folder_; }

 private:
  TestFolder folder_;
  std::vector<TestTensor> tensors_;
  Json config_;
};

TEST(A06, AHeadThatIsTiedNeedsNoTensor) {
  Toy toy;
  toy.Remove("lm_head");
  toy.config().Set("tie_word_embeddings", Json(true));
  EXPECT_TRUE(toy.MustOpen().facts.head_is_tied);
  EXPECT_THAT(toy.MustOpen().facts.decisions, Contains("head: tied to the embedding"));
  toy.Nest();  // now the flag is in text_config only
  EXPECT_TRUE(toy.MustOpen().facts.head_is_tied);
}

TEST(A06, ALostHeadIsRefusedByName) {
  Toy toy;
  toy.Remove("lm_head");
  EXPECT_THAT(toy.Refusal(), HasSubstr("tensor lm_head.weight: missing"));
}

TEST(A06, AHeadBesideTheTieFlagIsIgnoredWithAWarning) {
  Toy toy;
  EXPECT_THAT(toy.MustOpen().facts.decisions, Contains("head: lm_head.weight"));
  EXPECT_FALSE(toy.MustOpen().facts.head_is_tied);
  toy.config().Set("tie_word_embeddings", Json(true));
  const Checkpoint checkpoint = toy.MustOpen();
  EXPECT_TRUE(checkpoint.facts.head_is_tied);
  EXPECT_THAT(checkpoint.facts.warnings, Contains(HasSubstr("lm_head.weight: ignored")));
}

// Where the head's codes are lost it could pass for a tied one.
TEST(A06, HalfOfAMatrixInOurFormatsIsRefusedByName) {
  for (const char* flag : {"false", "true"}) {
    Toy toy;
    toy.config().Set("tie_word_embeddings", *Json::Parse(flag, "flag"));
    toy.Remove("lm_head");
    toy.Add("lm_head.weight_q4_scale", {6, 1});
    EXPECT_THAT(toy.Refusal(),
                HasSubstr("tensor lm_head.weight: missing, lm_head.weight_q4_scale is there"));
  }
  const std::string query = "model.layers.1.self_attn.q_proj.weight";
  for (const auto& [scales, codes] : {std::pair{"_int8_scale", "I8"}, {"_q4_scale", "U8"}}) {
    Toy toy;
    toy.Add(query + scales, {4, 1});
    EXPECT_THAT(toy.Refusal(), HasSubstr("tensor " + query + ": BF16, expected " + codes +
                                         " beside " + query + scales));
  }
}

TEST(A09, SparseLayersOfConfigAndTensorsMustAgree) {
  Toy toy;
  EXPECT_THAT(toy.MustOpen().facts.layer_is_sparse, testing::ElementsAre(true, true));
  toy.config().Set("mlp_only_layers", *Json::Parse("[0]", "list"));
  EXPECT_THAT(toy.Refusal(), HasSubstr("layer 0: the config says dense, the tensors have experts "
                                       "(config D S, tensors S S)"));
  toy.Remove("model.layers.0.mlp");
  toy.Add("model.layers.0.mlp.gate_proj.weight", {6, 4});
  EXPECT_THAT(toy.MustOpen().facts.decisions, Contains(HasSubstr("layers: D S")));
  toy.config().Set("mlp_only_layers", *Json::Parse("[]", "list"));
  EXPECT_THAT(toy.Refusal(), HasSubstr("layer 0: the config says sparse, the tensors have none"));
}

TEST(A09, AMisleadingLayerCountOutsideTextConfigIsNotRead) {
  Toy toy;
  toy.Nest();
  EXPECT_EQ(toy.MustOpen().config.num_hidden_layers, 2U);
}

TEST(A09, TheLayerCountsOfConfigAndTensorsMustAgree) {
  Toy toy;
  toy.config().Set("num_hidden_layers", Json(3));
  EXPECT_THAT(toy.Refusal(), HasSubstr("layer 2"));
  toy.config().Set("num_hidden_layers", Json(1));
  EXPECT_THAT(toy.Refusal(), HasSubstr("layer 1: tensor model.layers.1."));
}

TEST(A11, LayersOfMultiTokenPredictionAreSkippedAndCounted) {
  Toy toy;
  toy.AddLayer("model.layers.2.");
  toy.Add("model.layers.2.eh_proj.weight", {4, 8});
  const Checkpoint beyond = toy.MustOpen();
  // 13 tensors of the layer and eh_proj, 2 bytes an element: 2 x 4, 4 x 16, 8, 6 x 8, 32.
  EXPECT_THAT(beyond.facts.decisions,
              Contains("multi-token prediction: 14 tensors skipped, 320 bytes"));
  EXPECT_EQ(beyond.facts.layer_is_sparse.size(), 2U);

  Toy module;
  module.AddLayer("mtp.layers.0.");
  module.Add("mtp.fc.weight", {4, 8});
  EXPECT_THAT(module.MustOpen().facts.decisions,
              Contains("multi-token prediction: 14 tensors skipped, 320 bytes"));
  EXPECT_THAT(module.MustOpen().facts.warnings, testing::IsEmpty());

  Toy announced;
  announced.config().Set("num_nextn_predict_layers", Json(1));
  EXPECT_THAT(announced.MustOpen().facts.decisions,
              Contains(HasSubstr("1 layers in the config, none in the tensors")));
}

TEST(A11, AnyOtherUnknownTensorIsListed) {
  Toy toy;
  toy.Add("model.layers.1.self_attn.surprise.weight", {1});
  toy.Add("extra.thing", {1});
  EXPECT_THAT(toy.MustOpen().facts.warnings, Contains("2 tensors are not known: extra.thing, "
                                                      "model.layers.1.self_attn.surprise.weight"));
  Toy tower;
  tower.Add("model.visual.blocks.0.weight", {3});
  EXPECT_THAT(tower.MustOpen().facts.warnings, testing::IsEmpty());
  EXPECT_THAT(tower.MustOpen().facts.decisions, Contains(HasSubstr("1 tensors not used, 6 bytes")));
}

TEST(D05, NormsAndBiasesOfTheTensorsAreReported) {
  Toy toy;
  EXPECT_THAT(toy.MustOpen().facts.decisions, Contains("attention: no q/k norms, no biases"));
  toy.Add("model.layers.0.self_attn.q_norm.weight", {2});
  toy.Add("model.layers.0.self_attn.q_proj.bias", {4});
  toy.Add("model.layers.0.self_attn.k_proj.bias", {4});
  const Checkpoint checkpoint = toy.MustOpen();
  EXPECT_TRUE(checkpoint.facts.has_qk_norm);
  EXPECT_THAT(checkpoint.facts.decisions, Contains("attention: q/k norms, biases on k q"));
}

TEST(A08, RotaryDimensionsAreAmongTheDecisions) {
  Toy toy;
  toy.config().Set("head_dim", Json(32));
  toy.config().Set("partial_rotary_factor", Json(0.5));
  EXPECT_THAT(toy.MustOpen().facts.decisions,
              Contains("rope: default, theta 10000, rotary dims 16 of 32"));
}

TEST(Checkpoint, ReadsTheSmallFilesThatAreThere) {
  Toy toy;
  toy.folder().Write("generation_config.json", "{}");
  toy.folder().Write("chat_template.json", R"({"chat_template": "hi {{ x }}"})");
  Checkpoint checkpoint = toy.MustOpen();
  EXPECT_EQ(checkpoint.side_files.generation_config, "{}");
  EXPECT_EQ(checkpoint.side_files.chat_template, "hi {{ x }}");
  EXPECT_FALSE(checkpoint.side_files.tokenizer);
  toy.folder().Write("chat_template.jinja", "jinja");
  EXPECT_EQ(toy.MustOpen().side_files.chat_template, "jinja");
  const auto bare = ReadSideFiles(toy.folder().Path("config.json"));
  ASSERT_TRUE(bare);
  EXPECT_EQ(bare->config, toy.config().Dump(2));
  EXPECT_EQ(bare->chat_template, "jinja");
}

TEST(Checkpoint, RefusesAFolderWithoutConfigAndFilesBeyondTheirCap) {
  const TestFolder folder;
  EXPECT_FALSE(ReadSideFiles(folder.path()));
  EXPECT_EQ(ReadSideFiles(folder.path()).error().code(), ErrorCode::kInvalid);
  folder.Write("config.json", "{}");
  std::filesystem::resize_file(folder.Path("config.json"), kConfigBytesMax);
  EXPECT_TRUE(ReadSideFiles(folder.path()));
  std::filesystem::resize_file(folder.Path("config.json"), kConfigBytesMax + 1);
  EXPECT_THAT(ReadSideFiles(folder.path()).error().message(), HasSubstr("16777217 bytes"));
  folder.Write("config.json", "{}");
  folder.Write("tokenizer.json", "");
  std::filesystem::resize_file(folder.Path("tokenizer.json"), kTokenizerBytesMax + 1);
  EXPECT_THAT(ReadSideFiles(folder.path()).error().message(), HasSubstr("tokenizer.json"));
}

TEST(Checkpoint, ATrunkWithoutEmbeddingIsRefused) {
  Toy toy;
  toy.Remove("model.embed_tokens");
  EXPECT_THAT(toy.Refusal(), HasSubstr("embed_tokens.weight: missing"));
}

// What reference/README.md and the generators say of every checkpoint: sparse layers, and how many
// of them are for multi-token prediction.
struct Expected {
  const char* name;
  const char* kinds;
  const char* naming;
  ExpertEncoding encoding;
  size_t mtp_layers;
};
constexpr Expected kExpected[] = {
    {"deepseek_v2", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"deepseek_v2_lite", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"deepseek_v3", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"deepseek_v3_fp8", "D S S", "per-expert gate_proj", ExpertEncoding::kFp8Block, 0},
    {"deepseek_v3_mtp", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 1},
    {"dots1", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"ernie4_5_moe", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"glm4_moe", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"glm4_moe_qknorm", "D S S", "per-expert gate_proj", ExpertEncoding::kFloat, 1},
    {"gpt_oss_bf16", "S S S", "gate_up_proj [E,H,2I], gate and up interleaved",
     ExpertEncoding::kFloat, 0},
    {"gpt_oss_mxfp4", "S S S", "gate_up_proj [E,2I,H], gate and up interleaved",
     ExpertEncoding::kMxfp4, 0},
    {"granitemoe", "S S S", "input_linear [E,2I,H]", ExpertEncoding::kFloat, 0},
    {"hunyuan_v1_moe", "S S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"minimax_m2", "S S S", "per-expert w1", ExpertEncoding::kFloat, 0},
    {"minimax_m2_fp8", "S S S", "per-expert w1", ExpertEncoding::kFp8Block, 0},
    {"mixtral", "S S S", "per-expert w1", ExpertEncoding::kFloat, 0},
    {"olmoe", "S S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen2_moe", "S S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_5_moe", "S S S S", "gate_up_proj [E,2I,H]", ExpertEncoding::kFloat, 0},
    {"qwen3_moe", "S S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_dense", "D S D S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_f16", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_f32", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_micro", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_nohd", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_noroom", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_odd", "S S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_sharded", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_step2", "D S D S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_tied", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_v5cfg", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_yarn", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_moe_zeros", "S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
    {"qwen3_next", "S S S S", "per-expert gate_proj", ExpertEncoding::kFloat, 0},
};

TEST(Checkpoint, RecognisesEveryReferenceCheckpoint) {
  const std::string folder = ReferenceFolder("checkpoints");
  if (folder.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/checkpoints is absent";
  size_t folder_count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    (void)entry;
    ++folder_count;
  }
  EXPECT_EQ(folder_count, std::size(kExpected)) << "each checkpoint has its row";
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.name);
    const auto checkpoint = OpenCheckpoint(folder + "/" + expected.name);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    const ModelConfig& config = checkpoint->config;
    const ExpertLayout& experts = checkpoint->experts;
    EXPECT_EQ(LayerKindsText(checkpoint->facts.layer_is_sparse), expected.kinds);
    EXPECT_THAT(experts.naming(), HasSubstr(expected.naming));
    EXPECT_EQ(experts.encoding(), expected.encoding);
    EXPECT_EQ(experts.hidden_size(), config.hidden_size);
    EXPECT_EQ(experts.intermediate_size(), config.moe_intermediate_size);
    EXPECT_EQ(std::count_if(experts.layers().begin(), experts.layers().end(),
                            [](const ExpertLayer& layer) { return layer.is_mtp; }),
              static_cast<std::ptrdiff_t>(expected.mtp_layers));
    EXPECT_THAT(checkpoint->facts.warnings, testing::IsEmpty());
    for (const ExpertLayer& layer : experts.layers()) {
      EXPECT_EQ(layer.expert_count, config.num_experts);
      for (const Proj proj : {Proj::kGate, Proj::kUp, Proj::kDown}) {
        const MatrixSlice slice = experts.Slice(layer.layer_index, layer.expert_count - 1, proj);
        std::vector<float> values(size_t{slice.rows} * slice.cols);
        const auto status = ReadExpertMatrix(checkpoint->files, experts, layer.layer_index,
                                             layer.expert_count - 1, proj, false, values);
        ASSERT_TRUE(status) << status.error().message();
      }
    }
  }
}

TEST(Checkpoint, InspectsTheTrunksBesideReferenceVaults) {
  const std::string vaults = ReferenceFolder("vaults");
  if (vaults.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/vaults is absent";
  const std::string checkpoints = ReferenceFolder("checkpoints");
  for (const char* name : {"qwen3_moe", "qwen3_moe_dense", "qwen3_moe_tied", "olmoe", "qwen2_moe",
                           "deepseek_v3", "glm4_moe_qknorm"}) {
    SCOPED_TRACE(name);
    const auto whole = OpenCheckpoint(checkpoints + "/" + name);
    ASSERT_TRUE(whole) << whole.error().message();
    const auto trunk = TensorFiles::Open(vaults + "/" + name + ".scout.safetensors");
    ASSERT_TRUE(trunk) << trunk.error().message();
    std::vector<uint32_t> sparse;
    for (const ExpertLayer& layer : whole->experts.layers()) sparse.push_back(layer.layer_index);
    const auto facts = InspectTrunk(*trunk, whole->config, sparse);
    ASSERT_TRUE(facts) << facts.error().message();
    EXPECT_EQ(facts->prefix, "model.");
    EXPECT_EQ(facts->layer_is_sparse, whole->facts.layer_is_sparse);
    EXPECT_EQ(facts->has_qk_norm, whole->facts.has_qk_norm);
    EXPECT_EQ(facts->head_is_tied, whole->facts.head_is_tied);
    EXPECT_THAT(facts->warnings, testing::IsEmpty());
  }
}

}  // namespace
}  // namespace smoe::checkpoint
