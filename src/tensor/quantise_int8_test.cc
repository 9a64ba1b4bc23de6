#include "tensor/quantise_int8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "tensor/dequantise.h"
#include "tensor/quantise_int8_kernels.h"

namespace smoe::tensor {
namespace {

constexpr uint32_t kSizes[] = {0, 1, 2, 3, 15, 16, 17, 33};
constexpr uint32_t kWidths[] = {0, 1, 3, 4, 5, 63, 64, 65, 128, 131};

// A matrix behind one byte, in memory that ends with it, full of junk until it is written.
struct Matrix {
  Matrix(uint32_t rows, uint32_t cols)
      : codes(1 + *Int8CodeBytes(rows, cols), std::byte{0xee}),
        scales(1 + *Int8ScaleBytes(rows, cols), std::byte{0xee}) {
    target = {.rows = rows,
              .cols = cols,
              .codes = MutableBytes(codes).subspan(1),
              .scales = MutableBytes(scales).subspan(1)};
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  WeightView view() const { return Int8View(target); }

  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  Int8Target target;
};

std::vector<float> Normal(size_t count) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, 0.05F);
  std::vector<float> weights(count);
  for (float& weight : weights) weight = normal(generator);
  return weights;
}

// All of one row's group under one scale; the codes in row 0.
std::vector<int> CodesOf(const std::vector<float>& weights, float* scale) {
  const auto cols = static_cast<uint32_t>(weights.size());
  Matrix matrix(1, cols);
  EXPECT_TRUE(QuantiseInt8(matrix.target, 0, 1, weights));
  std::vector<int> codes;
  for (uint32_t col = 0; col < cols; ++col) {
    codes.push_back(LoadStruct<int8_t>(matrix.view().data, Int8CodeIndex(cols, 0, col)));
  }
  *scale = LoadStruct<float>(matrix.view().scales);
  return codes;
}

TEST(Int8Layout, CountsPaddingAndRefusesOverflow) {
  EXPECT_EQ(Int8CodeBytes(0, 5), 0u);
  EXPECT_EQ(Int8CodeBytes(5, 0), 0u);
  EXPECT_EQ(Int8CodeBytes(1, 1), 1024u);  // 16 rows x 64 columns
  EXPECT_EQ(Int8ScaleBytes(1, 1), 64u);
  EXPECT_EQ(Int8CodeBytes(17, 65), 32u * 128u);
  EXPECT_EQ(Int8ScaleBytes(17, 65), 32u * 2u * 4u);
  EXPECT_EQ(Int8CodeBytes(uint64_t{1} << 40, uint64_t{1} << 40), std::nullopt);
  EXPECT_EQ(Int8CodeBytes(UINT64_MAX, 1), std::nullopt);
  EXPECT_EQ(Int8CodeBytes(1, UINT64_MAX), std::nullopt);
  EXPECT_EQ(Int8ScaleBytes(UINT64_MAX, UINT64_MAX), std::nullopt);
}

// By hand: a block of 16 rows of 128 padded columns is 2048 bytes and 32 scales.
TEST(Int8Layout, PutsFourColumnsOfSixteenRowsIntoATile) {
  EXPECT_EQ(Int8CodeIndex(100, 0, 3), 3u);
  EXPECT_EQ(Int8CodeIndex(100, 0, 4), 64u);
  EXPECT_EQ(Int8CodeIndex(100, 1, 0), 4u);
  EXPECT_EQ(Int8CodeIndex(100, 15, 99), 24u * 64 + 60 + 3);
  EXPECT_EQ(Int8CodeIndex(100, 16, 0), 2048u);
  EXPECT_EQ(Int8CodeIndex(100, 33, 5), 2 * 2048u + 64 + 4 + 1);
  EXPECT_EQ(Int8ScaleIndex(100, 0, 63), 0u);
  EXPECT_EQ(Int8ScaleIndex(100, 3, 64), 19u);
  EXPECT_EQ(Int8ScaleIndex(100, 18, 99), 32u + 16 + 2);
}

TEST(QuantiseInt8, RoundsHalfToEvenUnderAScaleOfTheLargest127th) {
  float scale = 0;
  const std::vector<int> codes = CodesOf({127, -127, 0.5F, 1.5F, -2.5F, -0.5F, 63.25F, 0}, &scale);
  EXPECT_EQ(scale, 1.0F);
  EXPECT_EQ(codes, (std::vector<int>{127, -127, 0, 2, -2, 0, 63, 0}));
}

TEST(QuantiseInt8, TakesAGroupBelowTwoToTheMinus100AsZero) {
  float scale = -1;
  EXPECT_EQ(CodesOf({0, -0.0F, 1e-42F, 0x1.fffffep-101F}, &scale), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(scale, 0.0F);
  EXPECT_EQ(CodesOf({0x1p-100F, -0x1p-101F, 1e-42F}, &scale), (std::vector<int>{127, -64, 0}));
  EXPECT_EQ(scale, 0x1p-100F / 127);
}

TEST(QuantiseInt8, KeepsTheLargestFloatsFinite) {
  constexpr float kMax = std::numeric_limits<float>::max();
  Matrix matrix(1, 2);
  ASSERT_TRUE(QuantiseInt8(matrix.target, 0, 1, std::vector<float>{kMax, -kMax}));
  EXPECT_NEAR(double{WeightAt(matrix.view(), 0, 0)}, double{kMax}, double{kMax} * 0x1p-22);
  EXPECT_EQ(WeightAt(matrix.view(), 0, 1), -WeightAt(matrix.view(), 0, 0));
}

TEST(QuantiseInt8, StaysWithinHalfAStepAndMeasuresIt) {
  for (const uint32_t rows : kSizes) {
    for (const uint32_t cols : kWidths) {
      const std::vector<float> weights = Normal(size_t{rows} * cols);
      Matrix matrix(rows, cols);
      const auto error = QuantiseInt8(matrix.target, 0, rows, weights);
      ASSERT_TRUE(error);
      double squared_error = 0;
      double squared_value = 0;
      double error_max = 0;
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t col = 0; col < cols; ++col) {
          const double weight = double{weights[size_t{row} * cols + col]};
          const double distance = weight - double{WeightAt(matrix.view(), row, col)};
          const auto scale = double{LoadStruct<float>(
              matrix.view().scales, Int8ScaleIndex(cols, row, col) * sizeof(float))};
          // Half a step, and what rounding 1 / scale and the product adds: 127 steps times 2^-22.
          EXPECT_LE(std::fabs(distance), scale * (0.5 + 127 * 0x1p-22));
          squared_error += distance * distance;
          squared_value += weight * weight;
          error_max = std::max(error_max, std::fabs(distance));
        }
      }
      EXPECT_EQ(error->weight_count, weights.size());
      EXPECT_NEAR(error->squared_error, squared_error, squared_error * 1e-12);
      EXPECT_NEAR(error->squared_value, squared_value, squared_value * 1e-12);
      EXPECT_EQ(error->error_max, error_max);
    }
  }
}

// A step is absmax / 127 and the error uniform within it: 10 log10(12 * 127^2 / E[absmax^2]) with
// E[absmax^2] of 64 normal numbers near 2.5^2 gives about 45 dB less the spread of absmax.
TEST(QuantiseInt8, ReachesTheSignalToNoiseOfEightBits) {
  const std::vector<float> weights = Normal(64 * 4096);
  Matrix matrix(64, 4096);
  const double snr = QuantiseInt8(matrix.target, 0, 64, weights)->SnrDb();
  EXPECT_GT(snr, 43.5);
  EXPECT_LT(snr, 46);
}

TEST(QuantiseInt8, NamesTheWeightThatIsNotFinite) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> weights(2 * 70, 0.5F);
    weights[70 + 66] = value;
    Matrix matrix(9, 70);
    const auto error = QuantiseInt8(matrix.target, 4, 2, weights);
    ASSERT_FALSE(error);
    EXPECT_EQ(error.error().code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.error().message().find("row 5, column 66"), std::string::npos)
        << error.error().message();
  }
}

TEST(QuantiseInt8, GivesTheSameBytesInAnyPiecesAndZeroesAllPadding) {
  constexpr uint32_t kRows = 21;
  constexpr uint32_t kCols = 70;
  const std::vector<float> weights = Normal(size_t{kRows} * kCols);
  Matrix whole(kRows, kCols);
  Matrix pieces(kRows, kCols);
  ASSERT_TRUE(QuantiseInt8(whole.target, 0, kRows, weights));
  for (const auto& [first, count] : {std::pair{15u, 6u}, std::pair{0u, 1u}, std::pair{1u, 14u}}) {
    const std::vector<float> part(weights.begin() + first * kCols,
                                  weights.begin() + (first + count) * kCols);
    ASSERT_TRUE(QuantiseInt8(pieces.target, first, count, part));
  }
  EXPECT_EQ(whole.codes, pieces.codes);
  EXPECT_EQ(whole.scales, pieces.scales);
  for (uint32_t row = 0; row < 32; ++row) {
    for (uint32_t col = row < kRows ? kCols : 0; col < 128; ++col) {
      EXPECT_EQ(LoadStruct<int8_t>(whole.view().data, Int8CodeIndex(kCols, row, col)), 0);
    }
    for (uint32_t col = 0; col < 128 && row >= kRows; col += 64) {
      EXPECT_EQ(LoadStruct<uint32_t>(whole.view().scales, 4 * Int8ScaleIndex(kCols, row, col)), 0u);
    }
  }
}

TEST(TileInt8, KeepsEveryBitThereAndBack) {
  std::mt19937 generator(6);
  for (const uint32_t rows : kSizes) {
    for (const uint32_t cols : kWidths) {
      const size_t groups = (cols + size_t{63}) / 64;
      std::vector<std::byte> codes(size_t{rows} * cols);
      std::vector<std::byte> scales(rows * groups * 4);
      for (std::byte& byte : codes) byte = static_cast<std::byte>(generator());
      for (std::byte& byte : scales) byte = static_cast<std::byte>(generator());
      Matrix matrix(rows, cols);
      TileInt8(matrix.target, 0, rows, codes, scales);
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t col = 0; col < cols; ++col) {
          ASSERT_EQ(LoadStruct<std::byte>(matrix.view().data, Int8CodeIndex(cols, row, col)),
                    codes[size_t{row} * cols + col]);
        }
      }
      const uint32_t first = rows / 3;
      std::vector<std::byte> codes_back((rows - first) * size_t{cols});
      std::vector<std::byte> scales_back((rows - first) * groups * 4);
      UntileInt8(matrix.view(), first, rows - first, codes_back, scales_back);
      EXPECT_TRUE(std::equal(codes_back.begin(), codes_back.end(),
                             codes.begin() + static_cast<ptrdiff_t>(size_t{first} * cols)));
      EXPECT_TRUE(std::equal(scales_back.begin(), scales_back.end(),
                             scales.begin() + static_cast<ptrdiff_t>(first * groups * 4)));
    }
  }
}

TEST(DequantiseInt8, GivesTheWeightsByRowAndAsAWhole) {
  constexpr uint32_t kRows = 19;
  constexpr uint32_t kCols = 75;
  Matrix matrix(kRows, kCols);
  ASSERT_TRUE(QuantiseInt8(matrix.target, 0, kRows, Normal(size_t{kRows} * kCols)));
  std::vector<float> whole(size_t{kRows} * kCols);
  Dequantise(matrix.view(), whole);
  for (uint32_t row = 0; row < kRows; ++row) {
    std::vector<float> out(kCols);
    DequantiseInt8Row(matrix.view(), row, out);
    for (uint32_t col = 0; col < kCols; ++col) {
      EXPECT_EQ(out[col], WeightAt(matrix.view(), row, col));
      EXPECT_EQ(out[col], whole[size_t{row} * kCols + col]);
    }
  }
}

#if defined(__x86_64__)
TEST(QuantiseInt8, GivesTheSameBitsOnAvx2) {
  if (__builtin_cpu_supports("avx2") == 0) GTEST_SKIP() << "no AVX2 here";
  std::vector<float> weights = Normal(size_t{64} * 4000);
  for (size_t i = 0; i < weights.size(); ++i) {
    // Magnitudes of every size, halves of steps, zeros of both signs, whole groups that count as 0.
    const size_t group = i / 64;
    if (group % 3 == 0) weights[i] *= std::exp2(static_cast<float>(group % 250) - 125);
    if (group % 5 == 0) weights[i] = (static_cast<float>(i % 255) - 127) * 0.5F;
    if (i % 11 == 0) weights[i] = -0.0F;
    if (group % 97 == 0) weights[i] *= 0x1p-120F;
  }
  weights[64] = std::numeric_limits<float>::max();
  Int8Errors scalar_errors;
  Int8Errors errors;
  for (size_t first = 0; first < weights.size(); first += 64) {
    int8_t scalar_codes[64];
    int8_t codes[64];
    float scalar_scale = 0;
    float scale = 0;
    const float* const group = weights.data() + first;
    ASSERT_TRUE(QuantiseInt8GroupScalar(group, scalar_codes, &scalar_scale, &scalar_errors));
    ASSERT_TRUE(QuantiseInt8GroupAvx2(group, codes, &scale, &errors));
    ASSERT_EQ(std::memcmp(codes, scalar_codes, sizeof(codes)), 0) << "group " << first / 64;
    ASSERT_EQ(std::bit_cast<uint32_t>(scale), std::bit_cast<uint32_t>(scalar_scale));
    ASSERT_EQ(std::memcmp(&errors, &scalar_errors, sizeof(errors)), 0) << "group " << first / 64;
  }
}

TEST(QuantiseInt8, RefusesWhatIsNotFiniteOnAvx2) {
  if (__builtin_cpu_supports("avx2") == 0) GTEST_SKIP() << "no AVX2 here";
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 64; ++at) {
      std::vector<float> weights = Normal(64);
      weights[at] = bad;
      int8_t codes[64];
      float scale = 0;
      Int8Errors errors;
      EXPECT_FALSE(QuantiseInt8GroupAvx2(weights.data(), codes, &scale, &errors));
    }
  }
}
#endif

}  // namespace
}  // namespace smoe::tensor
