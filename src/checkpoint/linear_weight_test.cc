#include "checkpoint/linear_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

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

// Two rows of 96 columns: codes 0, 1, 2, ... 95 and their negatives; two scales a row, the second
// for half a group.
void FillInt8(Matrix* matrix) {
  std::string codes;
  for (const int sign : {1, -1}) {
    for (int i = 0; i < 96; ++i) codes.push_back(static_cast<char>(sign * i));
  }
  matrix->tensors = {{"m.weight", DType::kI8, {2, 96}, codes},
                     {"m.weight_int8_scale", DType::kF32, {2, 2}, F32Data({1, 0.5F, 2, 0})}};
}

// Two rows of 64 columns: codes 0 to 15 in turn. F16 scales 1, 2, 0.5 and 0.
void FillQ4(Matrix* matrix) {
  std::string codes;
  for (int i = 0; i < 64; ++i) {
    const int even = 2 * i % 16;
    codes.push_back(static_cast<char>(even | (even + 1) << 4));
  }
  matrix->tensors = {{"m.weight", DType::kU8, {2, 32}, codes},
                     {"m.weight_q4_scale",
                      DType::kF16,
                      {2, 2},
                      std::string("\x00\x3c\x00\x40\x00\x38\x00\x00", 8)}};
}

TEST(LinearWeight, OurInt8IsCodeTimesTheScaleOf64Columns) {
  Matrix matrix;
  FillInt8(&matrix);
  const std::vector<float> values = Values(matrix, 0, 192);
  for (size_t i = 0; i < 96; ++i) {
    const auto code = static_cast<float>(i);
    EXPECT_EQ(values[i], i < 64 ? code : code / 2) << i;
    EXPECT_EQ(values[96 + i], i < 64 ? -2 * code : 0) << i;
  }
  EXPECT_EQ(Values(matrix, 1, 96)[3], -6);
}

// 127 x 2.7e36 is beyond the 3.4e38 of f32.
TEST(LinearWeight, AnInt8ScaleThatMakesInfiniteWeightsIsNamed) {
  Matrix matrix;
  FillInt8(&matrix);
  matrix.Find("m.weight_int8_scale").data = F32Data({1, 2.6e36F, 2, 0});
  EXPECT_EQ(Values(matrix, 0, 192)[64], 2.6e36F * 64);
  matrix.Find("m.weight_int8_scale").data = F32Data({1, 2.7e36F, 2, 0});
  EXPECT_EQ(matrix.Error(),
            "tensor m.weight_int8_scale: element 1 is 2.7e+36, expected a scale whose 127 fold is "
            "finite");
}

TEST(LinearWeight, OurQ4IsTheCodeFromMinusOneToOneTimesTheScaleOf32Columns) {
  Matrix matrix;
  FillQ4(&matrix);
  const std::vector<float> values = Values(matrix, 0, 128);
  const float scales[] = {1, 2, 0.5F, 0};
  for (size_t i = 0; i < 128; ++i) {
    const auto code = static_cast<float>(i % 16);
    EXPECT_EQ(values[i], (code - 7.5F) / 7.5F * scales[i / 32]) << i;
  }
}

TEST(LinearWeight, OurFormatsAreRefusedByTheNameOfWhatIsWrong) {
  const auto expect = [](const Matrix& matrix, const std::string& words) {
    EXPECT_NE(matrix.Error().find(words), std::string::npos) << matrix.Error();
  };
  const auto damaged = [](auto fill, auto edit) {
    auto matrix = std::make_unique<Matrix>();
    fill(matrix.get());
    edit(*matrix);
    return matrix;
  };
  const std::string scale = "m.weight_int8_scale";
  expect(*damaged(FillInt8, [&](Matrix& m) { m.Remove(scale); }),
         "tensor m.weight: elements of type I8 and no " + scale);
  expect(*damaged(FillInt8,
                  [&](Matrix& m) {
                    m.Find(scale).shape = {4, 1};
                  }),
         "tensor " + scale + ": F32 [4, 1], expected F32 [2, 2]");
  expect(*damaged(FillInt8, [&](Matrix& m) { m.Find("m.weight").data[97] = '\x80'; }),
         "tensor m.weight: element 97 is -128, expected -127 to 127");
  for (const float bad : {NAN, INFINITY, -1.0F}) {
    expect(*damaged(FillInt8,
                    [&](Matrix& m) {
                      m.Find(scale).data = F32Data({1, 1, bad, 1});
                    }),
           fmt::format("tensor {}: element 2 is {}, expected a finite scale", scale, bad));
  }
  expect(*damaged(FillQ4, [&](Matrix& m) { m.Find("m.weight_q4_scale").shape = {4}; }),
         "tensor m.weight_q4_scale: F16 [4], expected F16 [2, 2]");
  expect(*damaged(FillQ4, [&](Matrix& m) { m.Find("m.weight_q4_scale").data[1] = '\x7c'; }),
         "tensor m.weight_q4_scale: element 0 is inf, expected a finite scale");
  expect(*damaged(FillQ4,
                  [&](Matrix& m) {
                    m.Find("m.weight").shape = {8, 8};
                    m.Find("m.weight_q4_scale").shape = {4, 1};
                  }),
         "tensor m.weight: 16 columns, expected a multiple of 32");
}

}  // namespace
}  // namespace smoe::checkpoint
