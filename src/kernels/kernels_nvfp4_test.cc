// NVFP4 in every table: the scalar one against double precision, the others against the scalar one,
// to the bit, and experts through feed_forward.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/data_for_test.h"
#include "kernels/feed_forward.h"

namespace smoe::kernels {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;

enum class Content {
  kPlain,      // any codes, any scales but NaN
  kAllScales,  // scale bytes in sequence, NaN included
  kLargest,    // every code 6
  kSmallest,   // every code -6
  kZeros,      // codes of both zeros
  kDenormals,  // subnormal scales under a global scale that leaves subnormal weights
};

// A transposed matrix behind one byte, in memory that ends with it.
struct Matrix {
  Matrix(Rng& rng, uint32_t rows, uint32_t cols, Content content) {
    const size_t count = size_t{rows} * cols;
    data.resize(1 + count / 2);
    scales.resize(1 + count / tensor::kNvfp4Group);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<uint8_t>(rng());
      if (content == Content::kLargest) data[i] = 0x77;
      if (content == Content::kSmallest) data[i] = 0xff;
      if (content == Content::kZeros) data[i] &= 0x88;
    }
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = static_cast<uint8_t>(content == Content::kAllScales ? i : rng());
      if (content == Content::kDenormals) scales[i] &= 0x87;
      const bool is_nan = (scales[i] & 0x7f) == 0x7f;
      if (is_nan && content != Content::kAllScales) scales[i] = 0x38;
    }
    view = {.format = tensor::WeightFormat::kNvfp4,
            .rows = rows,
            .cols = cols,
            .data = AsBytes(std::span<const uint8_t>(data)).subspan(1),
            .scales = AsBytes(std::span<const uint8_t>(scales)).subspan(1),
            .group_size = tensor::kNvfp4Group,
            .scale2 = content == Content::kDenormals ? 0x1p-130f : 0.0371f};
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  tensor::WeightView view;
};

TEST(ScalarNvfp4, MeetsDoublePrecisionInBothArithmetics) {
  Rng rng(11);
  for (const uint32_t cols : {16u, 48u, 64u, 80u, 528u}) {
    const Matrix w(rng, 5, cols, Content::kPlain);
    const std::vector<float> x = RandomFloats(rng, cols);
    const ActivationData q = QuantiseRows(kScalarKernels, x, 1, cols);
    const std::vector<float> in_f32 = MultiplyF32(kScalarKernels, w.view, x, 1, 0, 5);
    const std::vector<float> in_int8 = MultiplyInt8(kScalarKernels, w.view, q.rows, 0, 5);
    for (uint32_t row = 0; row < 5; ++row) {
      const RowProduct expected = MultiplyInDouble(w.view, row, x, q);
      // f32: as in scalar_test.cc. int8: WeightAt rounds once, the product of scales once, the last
      // two products once each, and each of cols / 16 pieces once.
      const double roundings = cols / 16.0 + 6;
      EXPECT_NEAR(static_cast<double>(in_f32[row]), expected.f32,
                  roundings * kUnitRoundoff * expected.f32_magnitude)
          << cols;
      EXPECT_NEAR(static_cast<double>(in_int8[row]), expected.int8,
                  roundings * kUnitRoundoff * expected.int8_magnitude)
          << cols;
    }
  }
}

// By hand: 2 * 6 * 127 * 16 = 24384 for each group, scales 448 and 2^-9, all else a power of two.
TEST(ScalarNvfp4, AddsTheLargestGroupsExactly) {
  Rng rng(12);
  Matrix w(rng, 1, 32, Content::kLargest);
  w.scales = {0, 0x7e, 0x01};
  w.view.scales = AsBytes(std::span<const uint8_t>(w.scales)).subspan(1);
  w.view.scale2 = 0.25f;
  std::vector<int8_t> codes(64);
  for (size_t i = 0; i < 32; ++i) codes[i] = 127;
  const float x_scale = 0.5f;
  const QuantisedRows x = {
      .codes = codes.data(), .scales = &x_scale, .token_count = 1, .cols = 32, .col_stride = 64};
  // 6 * 127 * 16 * 448 / 8 = 682752 and 6 * 127 * 16 * 2^-9 / 8 = 2.9765625; 24 bits hold the sum
  // to a step of 2^-4.
  EXPECT_EQ(MultiplyInt8(kScalarKernels, w.view, x, 0, 1)[0], 682755.0f);
}

class Nvfp4 : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!table().runs_here()) GTEST_SKIP() << "this CPU does not run the table " << table().name;
  }
  const KernelTable& table() const { return *GetParam(); }

  void ExpectScalarBits(uint32_t rows, uint32_t cols, size_t tokens, uint32_t row_begin,
                        uint32_t row_end, Content content) {
    const Matrix w(rng_, rows, cols, content);
    const std::vector<float> x = RandomFloats(rng_, tokens * cols);
    ActivationData q = QuantiseRows(kScalarKernels, x, tokens, cols);
    if (content == Content::kLargest || content == Content::kSmallest) {
      for (int8_t& code : q.codes) code = 127;
    }
    EXPECT_TRUE(SameBits(MultiplyInt8(kScalarKernels, w.view, q.rows, row_begin, row_end),
                         MultiplyInt8(table(), w.view, q.rows, row_begin, row_end)))
        << "int8 " << rows << "x" << cols << " tokens " << tokens << " rows " << row_begin << ".."
        << row_end << " content " << static_cast<int>(content);
    EXPECT_TRUE(SameBits(MultiplyF32(kScalarKernels, w.view, x, tokens, row_begin, row_end),
                         MultiplyF32(table(), w.view, x, tokens, row_begin, row_end)))
        << "f32 " << rows << "x" << cols << " tokens " << tokens << " rows " << row_begin << ".."
        << row_end << " content " << static_cast<int>(content);
  }
  Rng rng_{42};
};

INSTANTIATE_TEST_SUITE_P(, Nvfp4, testing::ValuesIn(AllKernels().begin(), AllKernels().end() - 1),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(Nvfp4, GivesTheScalarBitsForAllSizesAndRowRanges) {
  for (const uint32_t rows : {1u, 7u, 8u, 16u, 31u, 32u, 33u, 63u, 64u, 100u}) {
    for (const uint32_t cols : {0u, 16u, 48u, 64u, 80u, 272u, 528u}) {
      for (const size_t tokens : {0u, 1u, 2u, 5u}) {
        ExpectScalarBits(rows, cols, tokens, 0, rows, Content::kPlain);
        ExpectScalarBits(rows, cols, tokens, rows / 3, rows, Content::kPlain);
        ExpectScalarBits(rows, cols, tokens, rows / 2, rows - rows / 4, Content::kPlain);
        ExpectScalarBits(rows, cols, tokens, rows - 1, rows, Content::kPlain);
      }
    }
  }
}

TEST_P(Nvfp4, GivesTheScalarBitsForAnyNumberOfTokens) {
  for (const size_t tokens : {3u, 4u, 6u, 7u, 15u, 16u, 17u, 33u, 64u, 65u}) {
    ExpectScalarBits(75, 80, tokens, 0, 75, Content::kPlain);
  }
  // More rows than a block of sums holds, for one token and for a batch.
  ExpectScalarBits(4200, 32, 1, 5, 4199, Content::kPlain);
  ExpectScalarBits(600, 32, 16, 1, 600, Content::kPlain);
}

TEST_P(Nvfp4, TakesEveryScaleExtremesZerosAndDenormals) {
  for (const Content content : {Content::kAllScales, Content::kLargest, Content::kSmallest,
                                Content::kZeros, Content::kDenormals}) {
    for (const size_t tokens : {1u, 5u}) ExpectScalarBits(70, 272, tokens, 0, 70, content);
  }
}

// Every code, low and high, under every byte of scales: the f32 result of one column at a time,
// with a single activation of 1, is the weight itself.
TEST_P(Nvfp4, DecodesEveryCodeUnderEveryScaleExactly) {
  constexpr uint32_t kRows = 256;  // one for each scale byte
  Matrix w(rng_, kRows, 256 * 16, Content::kAllScales);
  for (size_t i = 0; i < w.data.size() - 1; ++i) {
    w.data[1 + i] = static_cast<uint8_t>(i / (8 * kRows));  // group g holds byte g
  }
  for (size_t i = 0; i + 1 < w.scales.size(); ++i) w.scales[1 + i] = static_cast<uint8_t>(i);
  for (uint32_t group = 0; group < 256; group += 17) {  // each with two other nibbles
    for (const uint32_t col : {group * 16, group * 16 + 1}) {
      std::vector<float> x(w.view.cols);
      x[col] = 1;
      const std::vector<float> y = MultiplyF32(table(), w.view, x, 1, 0, kRows);
      for (uint32_t row = 0; row < kRows; ++row) {
        if ((row & 0x7f) == 0x7f) {
          EXPECT_TRUE(std::isnan(y[row])) << row;
        } else {
          ASSERT_EQ(y[row], tensor::WeightAt(w.view, row, col)) << row << " " << col;
        }
      }
    }
  }
}

TEST(FeedForwardNvfp4, HasTheBitsOfWholeRowsWithEveryTableAndThreadCount) {
  constexpr size_t kTokens = 3;
  constexpr uint32_t kHidden = 80;
  constexpr uint32_t kFfn = 176;  // two blocks and a part
  Rng rng(13);
  const Matrix gate(rng, kFfn, kHidden, Content::kPlain);
  const Matrix up(rng, kFfn, kHidden, Content::kPlain);
  const Matrix down(rng, kHidden, kFfn, Content::kPlain);
  const std::vector<float> x = RandomFloats(rng, kTokens * kHidden, 0.1f);
  for (const bool quantise : {false, true}) {
    const ActivationData q = QuantiseRows(kScalarKernels, x, kTokens, kHidden);
    const auto multiply = [&](const Matrix& w, const std::vector<float>& in, size_t cols) {
      if (!quantise) return MultiplyF32(kScalarKernels, w.view, in, kTokens, 0, w.view.rows);
      const ActivationData codes = QuantiseRows(kScalarKernels, in, kTokens, cols);
      return MultiplyInt8(kScalarKernels, w.view, codes.rows, 0, w.view.rows);
    };
    std::vector<float> inner = multiply(gate, x, kHidden);
    const std::vector<float> up_rows = multiply(up, x, kHidden);
    kScalarKernels.silu_mul(inner.data(), up_rows.data(), inner.size());
    const std::vector<float> expected = multiply(down, inner, kFfn);
    for (const KernelTable* kernels : AllKernels()) {
      if (!kernels->runs_here()) continue;
      for (const size_t thread_count : {1u, 2u, 3u, 4u}) {
        ThreadPool pool(thread_count);
        FeedForward runner = std::move(*FeedForward::Create(
            *kernels, pool,
            {.token_count_max = 8 * kTokens, .intermediate_size_max = kFfn, .quantise = quantise}));
        Activations input = {
            .floats = {.data = x.data(), .token_count = kTokens, .stride = kHidden},
            .quantised = {}};
        if (quantise) input.quantised = q.rows;
        for (const size_t job_count : {1u, 3u, 8u}) {  // cut otherwise each
          std::vector<std::vector<float>> outs(job_count, std::vector<float>(kTokens * kHidden));
          std::vector<FeedForwardJob> jobs;
          for (std::vector<float>& out : outs) {
            jobs.push_back({.weights = {.gate = gate.view, .up = up.view, .down = down.view},
                            .x = input,
                            .out = out.data(),
                            .out_stride = kHidden,
                            .finite = {}});
          }
          runner.Run(jobs);
          for (const std::vector<float>& out : outs) {
            EXPECT_TRUE(SameBits(expected, out))
                << kernels->name << ", " << thread_count << " threads, " << job_count
                << " jobs, quantise " << quantise;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace smoe::kernels
