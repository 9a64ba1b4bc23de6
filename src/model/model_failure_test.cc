// What a model refuses to load, and how one sequence fails while others go on.
#include <cstring>
#include <limits>

#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

constexpr float kLarge = 3e38f;

Error LoadError(store::ModelFiles files) {
  auto test = LoadTestModel(std::move(files));
  if (test.has_value()) {
    ADD_FAILURE() << "loaded";
    return Error(ErrorCode::kInvalid, "");
  }
  return test.error();
}

Error LoadError(const EditableFolder& folder) {
  const auto written = folder.Write();
  return LoadError(OpenFolder(written->path()));
}

void ExpectNames(const Error& error, ErrorCode code, std::initializer_list<const char*> words) {
  EXPECT_EQ(error.code(), code) << error.message();
  for (const char* word : words) {
    EXPECT_NE(error.message().find(word), std::string::npos) << word << " in: " << error.message();
  }
}

TEST(TrunkRefusal, NamesAMissingTensorAndItsShape) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.2.input_layernorm.weight",
        "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.shared_experts.down_proj.weight"}) {
    EditableFolder folder(DeepseekFolder());
    folder.Remove(name);
    ExpectNames(LoadError(folder), ErrorCode::kCorrupt, {name, "missing"});
  }
  EditableFolder folder(DeepseekFolder());
  folder.Remove("lm_head.weight");
  const auto written = folder.Write();
  store::ModelFiles files = OpenFolder(written->path());
  files.facts.head_is_tied = false;  // the flag says untied, the head was lost
  ExpectNames(LoadError(std::move(files)), ErrorCode::kCorrupt, {"lm_head.weight", "[40, 32]"});
}

TEST(TrunkRefusal, NamesAWrongShape) {
  EditableFolder folder(DeepseekFolder());
  folder.Tensor("model.layers.1.self_attn.q_proj.weight").shape = {16, 64};
  ExpectNames(LoadError(folder), ErrorCode::kCorrupt,
              {"layers.1.self_attn.q_proj.weight", "[32, 32]", "[16, 64]"});
}

TEST(TrunkRefusal, NamesADtypeThatIsNotComputed) {
  EditableFolder folder(DeepseekFolder());
  checkpoint::TestTensor& tensor = folder.Tensor("model.layers.1.self_attn.q_proj.weight");
  tensor.dtype = tensor::DType::kI8;
  tensor.data.resize(32 * 32);
  ExpectNames(LoadError(folder), ErrorCode::kUnsupported, {"q_proj.weight", "I8"});
}

TEST(TrunkRefusal, NamesEveryTensorThatIsNotUsed) {
  for (const char* name :
       {"model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_proj.bias",
        "model.layers.2.mlp.shared_experts.up_proj.bias", "model.layers.0.mlp.gate.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias", "lm_head.bias", "model.norm.bias"}) {
    EditableFolder folder(DeepseekFolder());
    folder.tensors.push_back(
        {name, tensor::DType::kF32, {32}, checkpoint::F32Data(std::vector<float>(32, 1.0f))});
    ExpectNames(LoadError(folder), ErrorCode::kUnsupported, {name, "[32]"});
  }
}

TEST(TrunkRefusal, ABiasThatOneLayerLostIsMissing) {
  EditableFolder folder(DeepseekFolder());
  folder.tensors.push_back({"model.layers.0.self_attn.q_proj.bias",
                            tensor::DType::kF32,
                            {32},
                            checkpoint::F32Data(std::vector<float>(32, 1.0f))});
  ExpectNames(LoadError(folder), ErrorCode::kCorrupt,
              {"model.layers.1.self_attn.q_proj.bias", "missing"});
}

TEST(TrunkRefusal, PassesOverWhatIsNeverRun) {
  EditableFolder folder(DeepseekFolder());
  for (const char* name :
       {"model.layers.3.eh_proj.weight", "mtp.layers.0.norm.weight", "model.visual.patch.weight",
        "model.layers.1.self_attn.rotary_emb.inv_freq"}) {
    folder.tensors.push_back(
        {name, tensor::DType::kF32, {4}, checkpoint::F32Data(std::vector<float>(4, 1.0f))});
  }
  const auto written = folder.Write();
  EXPECT_TRUE(LoadTestModel(OpenFolder(written->path())).has_value());
}

TEST(TrunkRefusal, NamesNanAndInfinityByTensorAndIndex) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const char* name : {"model.layers.1.self_attn.v_proj.weight", "model.norm.weight",
                             "model.layers.2.mlp.gate.weight", "lm_head.weight"}) {
      EditableFolder folder(DeepseekFolder());
      checkpoint::TestTensor& tensor = folder.Tensor(name);
      ASSERT_EQ(tensor.dtype, tensor::DType::kBF16);
      tensor.data.replace(2 * 17, 2, checkpoint::BF16Data({bad}));
      ExpectNames(LoadError(folder), ErrorCode::kCorrupt, {name, "element 17 "});
    }
  }
}

TEST(ConfigRefusal, NamesWhatThisBuildDoesNotCompute) {
  const auto with = [](auto edit) {
    store::ModelFiles files = OpenFolder(DeepseekFolder());
    edit(files.config);
    return LoadError(std::move(files));
  };
  using checkpoint::ModelConfig;
  ExpectNames(with([](ModelConfig& c) { c.family = checkpoint::Family::kDeepseekV3; }),
              ErrorCode::kUnsupported, {"model_type", "qwen3_moe, qwen2_moe, olmoe, mixtral"});
  ExpectNames(with([](ModelConfig& c) { c.scoring = checkpoint::ScoringFunction::kSigmoid; }),
              ErrorCode::kUnsupported, {"scoring_func", "sigmoid"});
  ExpectNames(with([](ModelConfig& c) { c.n_group = 4; }), ErrorCode::kUnsupported, {"n_group 4"});
  ExpectNames(with([](ModelConfig& c) { c.hidden_act = "gelu"; }), ErrorCode::kUnsupported,
              {"hidden_act gelu"});
  ExpectNames(with([](ModelConfig& c) { c.clip_qkv = 8; }), ErrorCode::kUnsupported,
              {"clip_qkv 8"});
  ExpectNames(with([](ModelConfig& c) { c.num_key_value_heads = 3; }), ErrorCode::kInvalid,
              {"num_key_value_heads 3"});
  ExpectNames(with([](ModelConfig& c) { c.num_experts_per_tok = 7; }), ErrorCode::kInvalid,
              {"num_experts_per_tok 7"});
}

TEST(ConfigRefusal, ComparesTheStoreWithTheConfig) {
  const auto with = [](std::vector<store::StoreLayer> layers, uint32_t hidden_size) {
    store::ModelFiles files = OpenFolder(DeepseekFolder());
    files.experts = std::make_unique<NamedStore>("store", std::move(layers), hidden_size);
    return LoadError(std::move(files));
  };
  ExpectNames(with({{1, 6, 0}}, 32), ErrorCode::kCorrupt, {"layer 2", "store"});
  ExpectNames(with({{1, 6, 0}, {2, 5, 6}}, 32), ErrorCode::kCorrupt, {"layer 2", "6", "5"});
  ExpectNames(with({{1, 6, 0}, {2, 6, 6}}, 64), ErrorCode::kCorrupt, {"hidden_size 32", "64"});
}

// Two sequences in one step; what goes wrong hits the first row of the second one only.
class Failing : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = LoadTestModel(OpenFolder(DeepseekFolder()), 2);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    test_ = std::move(*loaded);
    first_alone_ = RunPrompt(test_, first_);
    second_alone_ = RunPrompt(test_, second_);
  }

  // Runs both together and expects the second to fail and the first to keep its bits.
  Error FailSecond() {
    KvSequence kv[2] = {test_.kv->NewSequence(), test_.kv->NewSequence()};
    const SequenceRows rows[] = {{&kv[0], first_, SequenceRows::Logits::kAll},
                                 {&kv[1], second_, SequenceRows::Logits::kAll}};
    const auto result = test_.model->Step(rows, nullptr);
    EXPECT_TRUE(result.has_value());
    EXPECT_EQ(result->failures.size(), 1u);
    if (!result.has_value() || result->failures.size() != 1) return {ErrorCode::kInvalid, ""};
    EXPECT_EQ(result->failures[0].sequence, 1u);
    EXPECT_EQ(result->logits.size(), first_alone_.size() + second_alone_.size());
    EXPECT_EQ(std::memcmp(result->logits.data(), first_alone_.data(), first_alone_.size() * 4), 0);
    return result->failures[0].error;
  }

  const std::vector<uint32_t> first_ = {5, 6, 7, 8, 9, 10};
  const std::vector<uint32_t> second_ = {30, 31, 32};
  TestModel test_;
  std::vector<float> first_alone_;
  std::vector<float> second_alone_;
};

TEST_F(Failing, ANanFromAnExpertEndsThatSequenceAndNamesTheLayer) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    test_.backend->after_run = [bad](const experts::RoutedRows& rows, auto*) {
      if (rows.layer_index == 1 && rows.row_count == 9) rows.out[7 * 32 + 3] = bad;
    };
    ExpectNames(FailSecond(), ErrorCode::kCorrupt, {"layer 1", "position 1"});
  }
  test_.backend->after_run = nullptr;
  EXPECT_EQ(RunPrompt(test_, second_), second_alone_);  // the model itself is unharmed
}

TEST_F(Failing, AnExpertThatCannotBeReadEndsThatSequenceWithItsReason) {
  test_.backend->after_run = [](const experts::RoutedRows& rows, auto* failures) {
    if (rows.layer_index != 1 || rows.row_count != 9) return;
    failures->push_back({8, Error(ErrorCode::kIo, "expert 4 of x.smoe: Input/output error")});
    failures->push_back({6, Error(ErrorCode::kIo, "another")});
    std::fill_n(rows.out + 6 * 32, 3 * 32, std::nanf(""));
  };
  ExpectNames(FailSecond(), ErrorCode::kIo, {"layer 1: expert 4 of x.smoe"});
}

TEST_F(Failing, FailedRowsReachNoExpertAnyMore) {
  const size_t before = test_.backend->row_count();
  test_.backend->after_run = [](const experts::RoutedRows& rows, auto*) {
    if (rows.layer_index == 1 && rows.row_count == 9) rows.out[6 * 32] = std::nanf("");
  };
  ExpectNames(FailSecond(), ErrorCode::kCorrupt, {"layer 1"});
  EXPECT_EQ(test_.backend->row_count() - before, 9u + 6u);  // layer 1, then layer 2
}

TEST_F(Failing, AFullCacheIsRefusedBeforeAnythingRuns) {
  KvSequence hog = test_.kv->NewSequence();
  ASSERT_TRUE(hog.Reserve(test_.kv->free_token_count()).has_value());
  KvSequence kv = test_.kv->NewSequence();
  const SequenceRows rows = {&kv, first_, SequenceRows::Logits::kLast};
  const auto result = test_.model->Step({&rows, 1}, nullptr);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(kv.token_count(), 0u);
}

// Finite weights whose products are not.
TEST(Overflow, NamesTheFirstPlaceWhereNumbersEnd) {
  struct Case {
    const char* tensor;
    const char* place;
  };
  for (const Case& overflow :
       {Case{"model.layers.0.self_attn.v_proj.weight", "layer 0"},
        Case{"model.layers.1.self_attn.v_proj.weight", "layer 1: a router logit"},
        Case{"model.layers.2.mlp.gate.weight", "layer 2: a router logit"},
        Case{"lm_head.weight", "output head: a logit"}}) {
    EditableFolder folder(DeepseekFolder());
    folder.Fill(overflow.tensor, kLarge);
    const auto written = folder.Write();
    auto test = LoadTestModel(OpenFolder(written->path()));
    ASSERT_TRUE(test.has_value()) << test.error().message();
    KvSequence kv = test->kv->NewSequence();
    const std::vector<uint32_t> ids = {3, 4, 5};
    const SequenceRows rows = {&kv, ids, SequenceRows::Logits::kAll};
    const auto result = test->model->Step({&rows, 1}, nullptr);
    ASSERT_TRUE(result.has_value());
    ASSERT_EQ(result->failures.size(), 1u) << overflow.tensor;
    ExpectNames(result->failures[0].error, ErrorCode::kCorrupt, {overflow.place});
  }
}

}  // namespace
}  // namespace smoe::model
