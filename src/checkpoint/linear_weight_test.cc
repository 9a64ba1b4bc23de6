#include "checkpoint/linear_weight.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/files_for_test.h"

namespace smoe::checkpoint {
namespace {

using tensor::DType;
using tensor::Shape;

// E4M3 codes by hand: sign, 4 bits of exponent with bias 7, 3 bits of fraction.
constexpr char kHalf = 0x30;
constexpr char kOne = 0x38;
constexpr char kNine8ths = 0x39;
constexpr char kTwo = 0x40;
constexpr char kSmallest = 0x01;  // 2^-9
constexpr char kNan = 0x7f;

// The tensors of one matrix "m" of 2 rows and 32 columns, to be damaged.
struct Matrix {
  std::vector<TestTensor> tensors;
  ModelConfig config;
  TestFolder folder;

  TestTensor& Find(const std::string& name) {
    for (TestTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors[0];
  }
  void Remove(const std::string& name) {
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
  }
  TensorFiles Open() const {
    const std::string path = folder.Write("model.safetensors", MakeSafetensors(tensors));
    auto files = TensorFiles::Open(path);
    EXPECT_TRUE(files) << files.error().message();
    return std::move(*files);
  }
  // What is said about it, by either function.
  std::string Error() const {
    const TensorFiles files = Open();
    const auto found = FindLinear(files, "m", config);
    if (!found) return found.error().message();
    std::vector<float> values(*tensor::ElementCount(found->shape));
    std::vector<std::byte> staging;
    const Status read = ReadLinearRows(files, *found, 0, values, &staging);
    return read ? "" : read.error().message();
  }
};

// Row 0: codes 0, 1, 2, ... 15, 0, ... with scales 1 and 2. Row 1: code 5 (3) and 13 (-3) in turn,
// with scales 2^-9 and 9/8.
std::string Codes() {
  std::string codes;
  for (int i = 0; i < 16; ++i) {
    const int even = 2 * i % 16;
    codes.push_back(static_cast<char>(even | (even + 1) << 4));
  }
  return codes + std::string(16, static_cast<char>(0xd5));
}
std::string Scales() { return {kOne, kTwo, kSmallest, kNine8ths}; }

void FillModelOpt(float scale2, Matrix* matrix) {
  matrix->tensors = {{"m.weight", DType::kU8, {2, 16}, Codes()},
                     {"m.weight_scale", DType::kF8E4M3, {2, 2}, Scales()},
                     {"m.weight_scale_2", DType::kF32, {}, F32Data({scale2})},
                     {"m.input_scale", DType::kF32, {}, F32Data({77})}};
}
void FillCompressed(float global_scale, Matrix* matrix) {
  matrix->tensors = {{"m.weight_packed", DType::kU8, {2, 16}, Codes()},
                     {"m.weight_scale", DType::kF8E4M3, {2, 2}, Scales()},
                     {"m.weight_global_scale", DType::kF32, {1}, F32Data({global_scale})},
                     {"m.input_global_scale", DType::kF32, {1}, F32Data({77})}};
}

std::vector<float> Values(const Matrix& matrix, uint64_t first_row, size_t count) {
  const TensorFiles files = matrix.Open();
  const auto found = FindLinear(files, "m", matrix.config);
  if (!found) {
    ADD_FAILURE() << found.error().message();
    return {};
  }
  std::vector<float> values(count);
  std::vector<std::byte> staging;
  const Status read = ReadLinearRows(files, *found, first_row, values, &staging);
  EXPECT_TRUE(read) << read.error().message();
  return values;
}

TEST(LinearWeight, ModelOptIsCodeTimesBlockScaleTimesGlobalScale) {
  Matrix matrix;
  FillModelOpt(0.25F, &matrix);
  const std::vector<float> row = {0, 0.125F,  0.25F,  0.375F,  0.5F,  0.75F,  1,  1.5F,
                                  0, -0.125F, -0.25F, -0.375F, -0.5F, -0.75F, -1, -1.5F};
  const std::vector<float> values = Values(matrix, 0, 64);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], row[i]) << i;
    EXPECT_EQ(values[16 + i], 2 * row[i]) << i;
    EXPECT_EQ(values[32 + i], (i % 2 == 0 ? 3.0F : -3.0F) / 2048) << i;
    EXPECT_EQ(values[48 + i], (i % 2 == 0 ? 27.0F : -27.0F) / 32) << i;
  }
}

TEST(LinearWeight, CompressedTensorsDividesByItsGlobalScale) {
  Matrix matrix;
  FillCompressed(3, &matrix);
  constexpr float kThird = 1.0F / 3.0F;
  const std::vector<float> values = Values(matrix, 0, 64);
  EXPECT_EQ(values[1], 0.5F * kThird);
  EXPECT_EQ(values[31], -12 * kThird);
  EXPECT_EQ(values[48], 3.375F * kThird);
}

// (3 x 9/8) x scale2 has one rounding; scale2 first would have two, and other bits here.
TEST(LinearWeight, CodesMeetTheBlockScaleBeforeTheGlobalScale) {
  Matrix matrix;
  constexpr float kScale2 = 0.001F;
  FillModelOpt(kScale2, &matrix);
  const volatile float scaled = kNine8ths == 0x39 ? 1.125F * kScale2 : 0;
  ASSERT_NE(3.375F * kScale2, 3 * scaled);
  EXPECT_EQ(Values(matrix, 0, 64)[48], 3.375F * kScale2);
}

TEST(LinearWeight, RowsAreReadFromAnyRowOn) {
  Matrix matrix;
  FillModelOpt(0.25F, &matrix);
  const std::vector<float> all = Values(matrix, 0, 64);
  EXPECT_EQ(Values(matrix, 1, 32), std::vector<float>(all.begin() + 32, all.end()));
}

// 3 rows and 5 columns in blocks of 2 x 4: those at the edges are partial.
TEST(LinearWeight, Fp8IsScaledByBlockRowOrMatrix) {
  Matrix matrix;
  matrix.config.fp8_block_rows = 2;
  matrix.config.fp8_block_cols = 4;
  const std::string codes(15, kHalf);
  matrix.tensors = {
      {"m.weight", DType::kF8E4M3, {3, 5}, codes},
      {"m.weight_scale_inv", DType::kF32, {2, 2}, F32Data({2, 4, 8, 16})},
  };
  const std::vector<float> blocks = {1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 4, 4, 4, 4, 8};
  EXPECT_EQ(Values(matrix, 0, 15), blocks);
  EXPECT_EQ(Values(matrix, 2, 5), std::vector<float>(blocks.begin() + 10, blocks.end()));
  matrix.tensors[1] = {"m.weight_scale", DType::kBF16, {3, 1}, BF16Data({2, 4, 8})};
  EXPECT_EQ(Values(matrix, 0, 15),
            (std::vector<float>{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4}));
  matrix.tensors[1] = {"m.weight_scale", DType::kF32, {}, F32Data({6})};
  EXPECT_EQ(Values(matrix, 1, 10), std::vector<float>(10, 3));
  matrix.tensors[1].shape = {1, 2};
  matrix.tensors[1].data = F32Data({6, 6});
  EXPECT_EQ(
      matrix.Error(),
      "tensor m.weight_scale: shape [1, 2], expected one number, 3 rows or [2, 2] for blocks of "
      "2 x 4");
  matrix.Remove("m.weight_scale");
  EXPECT_EQ(matrix.Error(), "tensor m.weight_scale_inv: missing, F8_E4M3 m.weight needs it");
}

TEST(LinearWeight, FloatsAreLeftAlone) {
  Matrix matrix;
  matrix.tensors = {{"m.weight", DType::kBF16, {2, 2}, BF16Data({1, 2, 3, 4})}};
  const TensorFiles files = matrix.Open();
  const auto found = FindLinear(files, "m", matrix.config);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, LinearKind::kFloat);
  EXPECT_EQ(found->shape, (Shape{2, 2}));
  matrix.tensors = {{"m.weight", DType::kI32, {1}, F32Data({1})}};
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight: elements of type I32, expected floats, F8_E4M3 or NVFP4");
  matrix.tensors = {{"n.weight", DType::kF32, {1}, F32Data({1})}};
  EXPECT_EQ(matrix.Error(), "tensor m.weight: missing");
}

TEST(LinearWeight, MissingTensorsAreNamed) {
  for (const char* name : {"m.weight_scale", "m.weight_scale_2"}) {
    Matrix matrix;
    FillModelOpt(1, &matrix);
    matrix.Remove(name);
    EXPECT_EQ(matrix.Error(), fmt::format("tensor {}: missing, U8 m.weight needs it", name));
  }
  for (const char* name : {"m.weight_scale", "m.weight_global_scale"}) {
    Matrix matrix;
    FillCompressed(1, &matrix);
    matrix.Remove(name);
    EXPECT_EQ(matrix.Error(), fmt::format("tensor {}: missing, U8 m.weight_packed needs it", name));
  }
}

TEST(LinearWeight, WrongShapesAndTypesAreNamed) {
  Matrix matrix;
  FillModelOpt(1, &matrix);
  matrix.Find("m.weight_scale").shape = {4, 1};
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_scale: F8_E4M3 [4, 1], expected F8_E4M3 [2, 2], one for 16 columns of "
            "m.weight");
  matrix.Find("m.weight_scale") = {"m.weight_scale", DType::kU8, {2, 2}, Scales()};
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_scale: U8 [2, 2], expected F8_E4M3 [2, 2], one for 16 columns of "
            "m.weight");
  FillModelOpt(1, &matrix);
  matrix.Find("m.weight").shape = {4, 8, 1};
  EXPECT_EQ(matrix.Error(), "tensor m.weight: shape [4, 8, 1], expected two dimensions");
  matrix.Find("m.weight").shape = {8, 4};
  EXPECT_EQ(matrix.Error(), "tensor m.weight: 8 columns, expected a multiple of 16");
  FillModelOpt(1, &matrix);
  matrix.Find("m.weight_scale_2") = {"m.weight_scale_2", DType::kF32, {2}, F32Data({1, 1})};
  EXPECT_EQ(matrix.Error(), "tensor m.weight_scale_2: F32 [2], expected one F32");
  FillCompressed(1, &matrix);
  matrix.Find("m.weight_packed").dtype = DType::kI8;
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_packed: elements of type I8, expected U8, two codes each");
}

TEST(LinearWeight, NamesOfBothKindsAreRefused) {
  Matrix matrix;
  FillModelOpt(1, &matrix);
  matrix.tensors.push_back({"m.weight_packed", DType::kU8, {2, 16}, Codes()});
  EXPECT_EQ(
      matrix.Error(),
      "tensor m.weight_packed: m.weight is there too: names of both NVFP4 kinds, expected one");
  FillModelOpt(1, &matrix);
  matrix.Find("m.weight_scale_2").name = "m.weight_global_scale";
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_global_scale: belongs to the other NVFP4 kind, m.weight goes with "
            "m.weight_scale_2");
  FillCompressed(1, &matrix);
  matrix.tensors.push_back({"m.weight_scale_2", DType::kF32, {}, F32Data({1})});
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_scale_2: belongs to the other NVFP4 kind, m.weight_packed goes with "
            "m.weight_global_scale");
}

TEST(LinearWeight, ScalesThatAreNoNumbersAreNamed) {
  Matrix matrix;
  FillModelOpt(1, &matrix);
  matrix.Find("m.weight_scale").data[3] = kNan;
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_scale: element 3 is nan, expected a finite scale that is not below 0");
  matrix.Find("m.weight_scale").data[3] = static_cast<char>(kOne | 0x80);
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_scale: element 3 is -1, expected a finite scale that is not below 0");
  for (const float scale : {0.0F, -1.0F, INFINITY, NAN}) {
    FillModelOpt(scale, &matrix);
    EXPECT_EQ(matrix.Error(),
              fmt::format("tensor m.weight_scale_2: {}, expected a finite number above 0", scale));
  }
  // 1e-39 is a number, its inverse is not one of f32.
  for (const float scale : {0.0F, 1e-39F}) {
    FillCompressed(scale, &matrix);
    EXPECT_EQ(
        matrix.Error(),
        fmt::format("tensor m.weight_global_scale: {}, expected a finite number above 0 whose "
                    "inverse is one too",
                    scale));
  }
}

TEST(LinearWeight, NamesAreToldApart) {
  std::string_view stem;
  EXPECT_TRUE(IsLinearName("a.b.weight", &stem));
  EXPECT_EQ(stem, "a.b");
  EXPECT_TRUE(IsLinearName("lm_head.weight_packed", &stem));
  EXPECT_EQ(stem, "lm_head");
  for (const char* name : {"weight", "a.weight_scale", "a.bias", "a.fweight", ""}) {
    EXPECT_FALSE(IsLinearName(name, &stem)) << name;
  }
  for (const char* name : {"a.weight_scale", "a.weight_scale_inv", "a.weight_scale_2",
                           "a.weight_global_scale", "a.input_scale", "a.k_scale"}) {
    EXPECT_TRUE(IsQuantisationName(name)) << name;
  }
  EXPECT_FALSE(IsQuantisationName("a.weight"));
  EXPECT_TRUE(IsActivationScaleName("a.input_global_scale"));
  EXPECT_FALSE(IsActivationScaleName("a.weight_scale"));
}

}  // namespace
}  // namespace smoe::checkpoint
