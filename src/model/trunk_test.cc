// Trunks with quantised matrices: tests/golden/quantised_trunk over tests/golden/deepseek_v1.
#include "model/trunk.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/linear_weight.h"
#include "convert/sculptor.h"
#include "model/checkpoint_model_for_test.h"
#include "model/streamed_model_for_test.h"

namespace smoe::model {
namespace {

// The quantised tensors, and the same matrices in f32.
struct Fixture {
  const char* quantised;
  const char* plain;
};
constexpr Fixture kFixtures[] = {
    {"modelopt.safetensors", "modelopt.f32.safetensors"},
    {"compressed_tensors.safetensors", "compressed_tensors.f32.safetensors"},
    {"fp8.safetensors", "fp8.f32.safetensors"},
};
constexpr const char* kModelOpt = kFixtures[0].quantised;

std::string FixturePath(const std::string& name) {
  return std::string(SMOE_SOURCE_DIR) + "/tests/golden/quantised_trunk/" + name;
}

// The DeepSeek checkpoint with the matrices of one fixture file in the place of its own.
EditableFolder FolderWith(const std::string& fixture) {
  EditableFolder folder(DeepseekFolder());
  const auto files = checkpoint::TensorFiles::Open(FixturePath(fixture));
  EXPECT_TRUE(files.has_value()) << files.error().message();
  for (const auto& [name, info] : files->tensors()) {
    std::string_view stem;
    if (checkpoint::IsLinearName(name, &stem)) folder.Remove(std::string(stem) + ".weight");
    std::string data(info.size, '\0');
    EXPECT_TRUE(files->Read(info, 0, std::as_writable_bytes(std::span(data))).has_value());
    folder.tensors.push_back({name, info.dtype, info.shape, std::move(data)});
  }
  Json block{Json::Array()};
  block.Append(16u).Append(16u);  // of the FP8 fixture
  Json section;
  section.Set("weight_block_size", std::move(block));
  folder.config.Set("quantization_config", std::move(section));
  return folder;
}

std::vector<float> LogitsOf(const EditableFolder& folder) {
  const auto written = folder.Write();
  auto test = LoadTestModel(OpenFolder(written->path()));
  if (!test.has_value()) {
    ADD_FAILURE() << test.error().message();
    return {};
  }
  std::vector<uint32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i * i * 7 + 3) % 40;
  return RunPrompt(*test, ids);
}

std::string LoadError(const EditableFolder& folder) {
  const auto written = folder.Write();
  const auto test = LoadTestModel(OpenFolder(written->path()));
  return test ? "" : test.error().message();
}

TEST(QuantisedTrunk, HasTheLogitsOfTheSameMatricesInF32) {
  const std::vector<float> original = LogitsOf(EditableFolder(DeepseekFolder()));
  for (const Fixture& fixture : kFixtures) {
    const std::vector<float> logits = LogitsOf(FolderWith(fixture.quantised));
    ASSERT_FALSE(logits.empty()) << fixture.quantised;
    EXPECT_EQ(logits, LogitsOf(FolderWith(fixture.plain))) << fixture.quantised;
    EXPECT_NE(logits, original) << fixture.quantised;
  }
}

// The annex holds the tensors as they are; the experts are the same Q4 blobs in both vaults.
TEST(QuantisedTrunk, InAVaultsAnnexHasTheLogitsOfTheSameMatricesInF32) {
  const auto logits_of_vault = [](const char* fixture) -> std::vector<float> {
    const auto folder = FolderWith(fixture).Write();
    const std::string vault = folder->Path("model.smoe");
    convert::NoProgress no_progress;
    const auto report = convert::Shatter(folder->path(), vault, {}, no_progress);
    EXPECT_TRUE(report.has_value()) << report.error().message();
    auto streamed = OpenStreamed(vault, {}, {});
    EXPECT_TRUE(streamed.has_value()) << streamed.error().message();
    if (!streamed.has_value()) return {};
    KvSequence kv = (*streamed)->kv->NewSequence();
    const std::vector<uint32_t> ids = {3, 14, 15, 9, 26, 5, 35};
    const SequenceRows rows = {&kv, ids, SequenceRows::Logits::kAll};
    const auto result = (*streamed)->model->Step({&rows, 1}, nullptr);
    EXPECT_TRUE(result.has_value()) << result.error().message();
    return {result->logits.begin(), result->logits.end()};
  };
  for (const Fixture& fixture : kFixtures) {
    const std::vector<float> logits = logits_of_vault(fixture.quantised);
    ASSERT_FALSE(logits.empty()) << fixture.quantised;
    EXPECT_EQ(logits, logits_of_vault(fixture.plain)) << fixture.quantised;
  }
}

TEST(QuantisedTrunk, ScalesThatNoWeightDependsOnChangeNothing) {
  EditableFolder folder = FolderWith(kModelOpt);
  const std::vector<float> logits = LogitsOf(folder);
  folder.Remove("model.layers.1.self_attn.q_proj.input_scale");
  folder.tensors.push_back(
      {"model.layers.1.self_attn.v_scale", tensor::DType::kF32, {}, checkpoint::F32Data({3})});
  EXPECT_EQ(LogitsOf(folder), logits);
}

TEST(QuantisedTrunk, IsRefusedByTheNameOfWhatIsWrong) {
  const std::string q = "model.layers.1.self_attn.q_proj";
  EditableFolder folder = FolderWith(kModelOpt);
  folder.Remove(q + ".weight_scale");
  EXPECT_NE(LoadError(folder).find("tensor " + q + ".weight_scale: missing, U8 " + q + ".weight"),
            std::string::npos)
      << LoadError(folder);
  folder = FolderWith(kModelOpt);
  folder.Tensor(q + ".weight_scale").data[5] = 0x7f;
  const std::string message = LoadError(folder);
  EXPECT_NE(message.find("model.safetensors: tensor " + q + ".weight_scale: element 5 is nan"),
            std::string::npos)
      << message;
  folder = FolderWith(kModelOpt);
  folder.Tensor(q + ".weight").shape = {16, 32};
  folder.Tensor(q + ".weight_scale").shape = {16, 4};
  EXPECT_NE(LoadError(folder).find("tensor " + q +
                                   ".weight: shape [32, 32] expected from config.json, [16, 64] "
                                   "found"),
            std::string::npos)
      << LoadError(folder);
  folder = FolderWith(kModelOpt);
  folder.Tensor(q + ".weight_scale_2").data = checkpoint::F32Data({3e38F});
  EXPECT_NE(LoadError(folder).find("tensor " + q + ".weight: element"), std::string::npos)
      << LoadError(folder);
  // A scale without a quantised weight means that the weight is not what it seems.
  folder = FolderWith(kModelOpt);
  folder.tensors.push_back({"model.layers.0.mlp.down_proj.weight_scale",
                            tensor::DType::kF32,
                            {},
                            checkpoint::F32Data({1})});
  EXPECT_NE(LoadError(folder).find("down_proj.weight_scale [] belongs to nothing"),
            std::string::npos)
      << LoadError(folder);
}

TEST(QuantisedTrunk, TheInspectorKnowsItsTensorsAndSaysHowManyMatrices) {
  const auto written = FolderWith(kModelOpt).Write();
  const auto opened = checkpoint::OpenCheckpoint(written->path());
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_TRUE(opened->facts.warnings.empty()) << opened->facts.warnings[0];
  EXPECT_FALSE(opened->facts.head_is_tied);
  const auto& decisions = opened->facts.decisions;
  EXPECT_NE(std::find(decisions.begin(), decisions.end(), "quantised trunk: 21 matrices in NVFP4"),
            decisions.end());
}

}  // namespace
}  // namespace smoe::model
