// Trunks with quantised matrices: tests/golden/quantised_trunk over tests/golden/deepseek_v1.
#include "model/trunk.h"

#include <map>

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

using checkpoint::TrunkFormat;
using checkpoint::TrunkFormats;

Model::Options OptionsWith(TrunkFormat format, experts::Arithmetic arithmetic) {
  return {.row_count_max = 512,
          .logit_row_max = 512,
          .arithmetic = arithmetic,
          .trunk = {.formats = TrunkFormats::All(format)}};
}

std::vector<uint32_t> SomeIds() {
  std::vector<uint32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i * i * 7 + 3) % 40;
  return ids;
}

// Logits of a model file with its trunk in `format`, in integers.
std::vector<float> LogitsOfFile(const std::string& path, TrunkFormat format) {
  StreamSetup setup;
  setup.arithmetic = experts::Arithmetic::kInt8;
  setup.trunk.formats = TrunkFormats::All(format);
  auto streamed = OpenStreamed(path, {}, setup);
  EXPECT_TRUE(streamed.has_value()) << streamed.error().message();
  if (!streamed.has_value()) return {};
  KvSequence kv = (*streamed)->kv->NewSequence();
  const std::vector<uint32_t> ids = SomeIds();
  const SequenceRows rows = {&kv, ids, SequenceRows::Logits::kAll};
  const auto result = (*streamed)->model->Step({&rows, 1}, nullptr);
  EXPECT_TRUE(result.has_value()) << result.error().message();
  return {result->logits.begin(), result->logits.end()};
}

TEST(TrunkFormat, CostsLessTheMoreBitsItHas) {
  const std::vector<uint32_t> ids = SomeIds();
  std::map<TrunkFormat, float> difference;
  auto reference = LoadTestModel(OpenFolder(DeepseekFolder()));
  ASSERT_TRUE(reference.has_value());
  const std::vector<float> wanted = RunPrompt(*reference, ids);
  for (const TrunkFormat format : {TrunkFormat::kBf16, TrunkFormat::kInt8, TrunkFormat::kQ4}) {
    auto test = LoadTestModel(OpenFolder(DeepseekFolder()), 2, kernels::kScalarKernels,
                              OptionsWith(format, experts::Arithmetic::kF32));
    ASSERT_TRUE(test.has_value()) << test.error().message();
    difference[format] = LargestDifference(RunPrompt(*test, ids), wanted);
    const auto planned = Model::MeasureTrunk(*test->files, TrunkFormats::All(format));
    ASSERT_TRUE(planned.has_value());
    EXPECT_EQ(planned->bytes, test->model->trunk_report().bytes);
  }
  EXPECT_EQ(difference[TrunkFormat::kBf16], 0);  // the file is bf16
  EXPECT_GT(difference[TrunkFormat::kInt8], 0);
  EXPECT_LT(difference[TrunkFormat::kInt8], difference[TrunkFormat::kQ4]);
}

// Normal weights in int8 have an SNR of 43.9 dB, which is 0.64 % (tensor/quantise_int8.h); the 16
// to 32 columns here have smaller largest ones than a full group.
TEST(TrunkFormat, TheReportHasTheErrorOfEachPart) {
  auto test = LoadTestModel(OpenFolder(DeepseekFolder()), 2, kernels::kScalarKernels,
                            OptionsWith(TrunkFormat::kInt8, experts::Arithmetic::kInt8));
  ASSERT_TRUE(test.has_value()) << test.error().message();
  const TrunkReport& report = test->model->trunk_report();
  uint64_t matrix_count = 0;
  for (const TrunkPartReport& part : report.parts) {
    EXPECT_EQ(part.formats, std::vector{tensor::WeightFormat::kInt8});
    EXPECT_GT(part.error.RelativeRmse(), 0.003);
    EXPECT_LT(part.error.RelativeRmse(), 0.008);
    matrix_count += part.matrix_count;
  }
  EXPECT_EQ(matrix_count, 2u + 3 * 4 + 3 * 3);  // both ends; 3 layers of attention and networks
  EXPECT_NE(report.Text().find("attention int8 (error 0."), std::string::npos) << report.Text();
}

TEST(TrunkFormat, QuantisedSourcesBecomeTheSameAsTheirFloats) {
  const auto logits = [](const char* fixture) -> std::vector<float> {
    const auto written = FolderWith(fixture).Write();
    auto test = LoadTestModel(OpenFolder(written->path()), 2, kernels::kScalarKernels,
                              OptionsWith(TrunkFormat::kInt8, experts::Arithmetic::kInt8));
    if (!test.has_value()) {
      ADD_FAILURE() << test.error().message();
      return {};
    }
    return RunPrompt(*test, SomeIds());
  };
  for (const Fixture& fixture : kFixtures) {
    const std::vector<float> quantised = logits(fixture.quantised);
    ASSERT_FALSE(quantised.empty());
    EXPECT_EQ(quantised, logits(fixture.plain)) << fixture.quantised;
  }
}

TEST(TrunkFormat, StoredInAVaultIsWhatLoadingTheSourceGives) {
  const checkpoint::TestFolder folder;
  convert::NoProgress no_progress;
  const std::string source = folder.Path("source.smoe");
  ASSERT_TRUE(convert::Shatter(DeepseekFolder(), source, {}, no_progress).has_value());
  for (const TrunkFormat format : {TrunkFormat::kBf16, TrunkFormat::kInt8, TrunkFormat::kQ4}) {
    const std::string stored = folder.Path(std::string(checkpoint::TrunkFormatName(format)));
    convert::ShatterOptions options;
    options.trunk_formats = TrunkFormats::All(format);
    const auto report = convert::Shatter(DeepseekFolder(), stored, options, no_progress);
    ASSERT_TRUE(report.has_value()) << report.error().message();
    const std::vector<float> logits = LogitsOfFile(source, format);
    ASSERT_FALSE(logits.empty());
    EXPECT_EQ(LogitsOfFile(stored, TrunkFormat::kSource), logits)
        << checkpoint::TrunkFormatName(format);
    EXPECT_EQ(LogitsOfFile(stored, format), logits) << checkpoint::TrunkFormatName(format);
  }
}

TEST(TrunkFormat, AWeightBeyondBf16IsRefusedByName) {
  EditableFolder folder(DeepseekFolder());
  folder.Fill("model.layers.1.self_attn.q_proj.weight", 3.4e38F);
  const auto written = folder.Write();
  const auto test = LoadTestModel(OpenFolder(written->path()), 2, kernels::kScalarKernels,
                                  OptionsWith(TrunkFormat::kBf16, experts::Arithmetic::kF32));
  ASSERT_FALSE(test.has_value());
  EXPECT_NE(test.error().message().find(
                "tensor model.layers.1.self_attn.q_proj.weight, counted from element 0: element 0 "
                "is 3.4e+38"),
            std::string::npos)
      << test.error().message();
}

// Norm weights of 3e38 make the input of the projections infinite.
TEST(TrunkFormat, AnInfiniteActivationFailsItsSequenceByLayer) {
  for (const char* norm : {"model.layers.1.input_layernorm.weight", "model.norm.weight",
                           "model.layers.0.post_attention_layernorm.weight"}) {
    EditableFolder folder(DeepseekFolder());
    folder.Fill(norm, 3e38F);
    const auto written = folder.Write();
    auto test = LoadTestModel(OpenFolder(written->path()), 2, kernels::kScalarKernels,
                              OptionsWith(TrunkFormat::kInt8, experts::Arithmetic::kInt8));
    ASSERT_TRUE(test.has_value()) << test.error().message();
    KvSequence kv = test->kv->NewSequence();
    const std::vector<uint32_t> ids = SomeIds();
    const SequenceRows rows = {&kv, ids, SequenceRows::Logits::kAll};
    const auto result = test->model->Step({&rows, 1}, nullptr);
    ASSERT_TRUE(result.has_value()) << result.error().message();
    ASSERT_EQ(result->failures.size(), 1u) << norm;
    const std::string& message = result->failures[0].error.message();
    EXPECT_NE(message.find("is NaN or infinite, finite numbers expected"), std::string::npos)
        << message;
    EXPECT_EQ(message.find("output head"),
              std::string_view(norm) == "model.norm.weight" ? size_t{0} : std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace smoe::model
