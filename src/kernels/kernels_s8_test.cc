// int8 matrices in every table: the scalar one against double precision, the others against the
// scalar one, to the bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/data_for_test.h"

namespace smoe::kernels {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;

enum class Content {
  kPlain,       // every byte but -128, scales near those of real weights
  kEveryByte,   // bytes in sequence, -128 included
  kSmallest,    // every code -128
  kZeros,       // every code 0
  kSubnormals,  // scales below the normal numbers
  kSpecials,    // scales of 0, -0, both infinities, NaN, the largest and the smallest float
};

// A matrix behind one byte, in memory that ends with it. Padding is zero, as the quantiser leaves
// it.
struct Matrix {
  Matrix(Rng& rng, uint32_t rows, uint32_t cols, Content content)
      : codes(1 + *tensor::Int8CodeBytes(rows, cols)),
        scales(1 + *tensor::Int8ScaleBytes(rows, cols)) {
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t col = 0; col < cols; ++col) {
        codes[1 + tensor::Int8CodeIndex(cols, row, col)] = Code(rng, content);
        if (col % tensor::kInt8Group != 0) continue;
        const float scale = Scale(rng, content);
        std::memcpy(&scales[1 + tensor::Int8ScaleIndex(cols, row, col) * sizeof(scale)], &scale,
                    sizeof(scale));
      }
    }
    view = {.format = tensor::WeightFormat::kInt8,
            .rows = rows,
            .cols = cols,
            .data = AsBytes(std::span<const uint8_t>(codes)).subspan(1),
            .scales = AsBytes(std::span<const uint8_t>(scales)).subspan(1),
            .group_size = tensor::kInt8Group};
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  uint8_t Code(Rng& rng, Content content) {
    if (content == Content::kSmallest) return 0x80;
    if (content == Content::kZeros) return 0;
    if (content == Content::kEveryByte) return static_cast<uint8_t>(count_++);
    const auto byte = static_cast<uint8_t>(rng());
    return byte == 0x80 ? 0x81 : byte;
  }
  static float Scale(Rng& rng, Content content) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecials[] = {
        0.0f,   -0.0f,   kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
        1e-45f, -1e-42f, 3.4e38f,   0x1p-126f,  std::numeric_limits<float>::max()};
    const float plain = RandomFloats(rng, 1, 0.01f)[0];
    if (content == Content::kSubnormals) return plain * 0x1p-125f;
    if (content == Content::kSpecials && rng() % 4 == 0) {
      return kSpecials[rng() % std::size(kSpecials)];
    }
    return plain;
  }

  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  tensor::WeightView view;

 private:
  uint32_t count_ = 0;
};

TEST(ScalarS8, MeetsDoublePrecisionInBothArithmetics) {
  Rng rng(11);
  for (const uint32_t cols : {1u, 48u, 64u, 65u, 531u}) {
    const Matrix w(rng, 19, cols, Content::kEveryByte);
    const std::vector<float> x = RandomFloats(rng, cols);
    const ActivationData q = QuantiseRows(kScalarKernels, x, 1, cols);
    const std::vector<float> in_f32 = MultiplyF32(kScalarKernels, w.view, x, 1, 0, 19);
    const std::vector<float> in_int8 = MultiplyInt8(kScalarKernels, w.view, q.rows, 0, 19);
    for (uint32_t row = 0; row < 19; ++row) {
      const RowProduct expected = MultiplyInDouble(w.view, row, x, q);
      // f32: as in scalar_test.cc. int8: WeightAt rounds once, the product of scales once, and each
      // of cols / 64 pieces once.
      EXPECT_NEAR(static_cast<double>(in_f32[row]), expected.f32,
                  (cols / 16.0 + 6) * kUnitRoundoff * expected.f32_magnitude)
          << cols;
      EXPECT_NEAR(static_cast<double>(in_int8[row]), expected.int8,
                  (cols / 64.0 + 3) * kUnitRoundoff * expected.int8_magnitude)
          << cols;
    }
  }
}

// By hand: -128 * 127 * 64 = -1040384 in each group; scales 2^-4 and 2^-3, activations 2^-1 and 4.
TEST(ScalarS8, AddsTheLargestGroupsExactly) {
  Rng rng(12);
  Matrix w(rng, 1, 128, Content::kSmallest);
  const float w_scales[] = {0x1p-4f, 0x1p-3f};
  for (uint32_t group = 0; group < 2; ++group) {
    std::memcpy(&w.scales[1 + tensor::Int8ScaleIndex(128, 0, group * 64) * 4], &w_scales[group], 4);
  }
  const std::vector<int8_t> codes(128, 127);
  const float x_scales[] = {0.5f, 4.0f};
  const QuantisedRows x = {
      .codes = codes.data(), .scales = x_scales, .token_count = 1, .cols = 128, .col_stride = 128};
  EXPECT_EQ(MultiplyInt8(kScalarKernels, w.view, x, 0, 1)[0], -1040384.0f / 32 - 1040384.0f / 2);
}

class S8 : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!table().runs_here()) GTEST_SKIP() << "this CPU does not run the table " << table().name;
  }
  const KernelTable& table() const { return *GetParam(); }

  void ExpectScalarBits(const Matrix& w, size_t tokens, uint32_t row_begin, uint32_t row_end,
                        bool with_extremes = false) {
    const uint32_t cols = w.view.cols;
    const std::vector<float> x = RandomFloats(rng_, tokens * cols);
    ActivationData q = QuantiseRows(kScalarKernels, x, tokens, cols);
    for (size_t i = 0; i < q.codes.size() && with_extremes; ++i) {
      if (i % q.rows.col_stride < cols) q.codes[i] = rng_() % 2 == 0 ? 127 : -127;
    }
    EXPECT_TRUE(SameBits(MultiplyInt8(kScalarKernels, w.view, q.rows, row_begin, row_end),
                         MultiplyInt8(table(), w.view, q.rows, row_begin, row_end)))
        << "int8 " << w.view.rows << "x" << cols << " tokens " << tokens << " rows " << row_begin
        << ".." << row_end;
    EXPECT_TRUE(SameBits(MultiplyF32(kScalarKernels, w.view, x, tokens, row_begin, row_end),
                         MultiplyF32(table(), w.view, x, tokens, row_begin, row_end)))
        << "f32 " << w.view.rows << "x" << cols << " tokens " << tokens << " rows " << row_begin
        << ".." << row_end;
  }
  Rng rng_{42};
};

INSTANTIATE_TEST_SUITE_P(, S8, testing::ValuesIn(AllKernels().begin(), AllKernels().end() - 1),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(S8, GivesTheScalarBitsForAllSizes) {
  for (const uint32_t rows : {1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 70u}) {
    for (const uint32_t cols :
         {0u, 1u, 2u, 3u, 4u, 7u, 8u, 63u, 64u, 65u, 72u, 127u, 128u, 131u, 512u, 1037u}) {
      const Matrix w(rng_, rows, cols, Content::kPlain);
      for (const size_t tokens : {0u, 1u, 2u, 5u, 21u}) ExpectScalarBits(w, tokens, 0, rows);
    }
  }
}

TEST_P(S8, GivesTheScalarBitsForRangesThatCutTiles) {
  const Matrix w(rng_, 75, 136, Content::kPlain);
  for (const size_t tokens : {1u, 2u, 9u, 19u}) {
    for (const uint32_t begin : {0u, 1u, 5u, 15u, 16u, 17u, 31u, 32u, 47u, 74u, 75u}) {
      for (const uint32_t end : {0u, 1u, 6u, 16u, 18u, 31u, 33u, 48u, 64u, 74u, 75u}) {
        if (begin <= end) ExpectScalarBits(w, tokens, begin, end);
      }
    }
  }
}

TEST_P(S8, GivesTheScalarBitsForAnyNumberOfTokens) {
  const Matrix w(rng_, 49, 200, Content::kPlain);
  for (size_t tokens = 0; tokens <= 40; ++tokens) ExpectScalarBits(w, tokens, 3, 48);
  for (const size_t tokens : {63u, 64u, 65u, 130u, 257u, 531u}) ExpectScalarBits(w, tokens, 0, 49);
}

TEST_P(S8, GivesTheScalarBitsForLongRows) {
  const Matrix w(rng_, 18, 9000, Content::kPlain);
  for (const size_t tokens : {1u, 3u, 17u}) ExpectScalarBits(w, tokens, 0, 18);
}

TEST_P(S8, TakesEveryByteExtremesAndEveryKindOfScale) {
  for (const Content content : {Content::kEveryByte, Content::kSmallest, Content::kZeros,
                                Content::kSubnormals, Content::kSpecials}) {
    const Matrix w(rng_, 70, 272, content);
    for (const size_t tokens : {1u, 2u, 3u, 4u, 37u}) {
      ExpectScalarBits(w, tokens, 0, 70);
      ExpectScalarBits(w, tokens, 0, 70, true);
    }
  }
}

// Every code at every column of a group: with a single activation of 1 the f32 result of a row is
// the weight itself.
TEST_P(S8, DecodesEveryCodeExactly) {
  constexpr uint32_t kCols = 64;
  Matrix w(rng_, 256, kCols, Content::kPlain);
  for (uint32_t row = 0; row < 256; ++row) {
    for (uint32_t col = 0; col < kCols; ++col) {
      w.codes[1 + tensor::Int8CodeIndex(kCols, row, col)] = static_cast<uint8_t>(row + col);
    }
  }
  for (uint32_t col = 0; col < kCols; ++col) {
    std::vector<float> x(kCols);
    x[col] = 1;
    const std::vector<float> y = MultiplyF32(table(), w.view, x, 1, 0, 256);
    for (uint32_t row = 0; row < 256; ++row) {
      ASSERT_EQ(y[row], tensor::WeightAt(w.view, row, col)) << row << " " << col;
    }
  }
}

}  // namespace
}  // namespace smoe::kernels
