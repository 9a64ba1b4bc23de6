// Every table against the scalar one, to the bit.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/data_for_test.h"

namespace smoe::kernels {
namespace {

using tensor::WeightFormat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16,
                                     WeightFormat::kSmoeQ4, WeightFormat::kSmoeQ2};
constexpr WeightFormat kQuantisedFormats[] = {WeightFormat::kSmoeQ4, WeightFormat::kSmoeQ2};

class Tables : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!table().runs_here()) GTEST_SKIP() << "this CPU does not run the table " << table().name;
  }
  const KernelTable& table() const { return *GetParam(); }
  Rng rng_{42};
};

// All but the last: that one is the scalar table itself.
INSTANTIATE_TEST_SUITE_P(, Tables, testing::ValuesIn(AllKernels().begin(), AllKernels().end() - 1),
                         [](const auto& test) { return std::string(test.param->name); });

// Numbers of every kind: normal, subnormal, zeros of both signs, huge; specials if wanted.
std::vector<float> Mixed(Rng& rng, size_t count, bool with_specials) {
  std::vector<float> values = RandomFloats(rng, count, 4);
  const float kinds[] = {0.0f,    -0.0f,  1e-42f,    -1e-45f,    0x1p-126f, 87.0f,
                         -104.0f, -90.0f, -103.5f,   1e-20f,     -88.8f,    88.8f,
                         3e30f,   -3e30f, kInfinity, -kInfinity, kNan};
  const size_t kind_count = std::size(kinds) - (with_specials ? 0 : 3);
  for (size_t i = 0; i < count; i += 3) values[i] = kinds[rng() % kind_count];
  return values;
}

void ExpectSameMatMulF32(const KernelTable& table, Rng& rng, const WeightData& w, size_t tokens,
                         uint32_t row_begin, uint32_t row_end) {
  const size_t stride = w.view.cols + size_t{3};
  const std::vector<float> x = RandomFloats(rng, tokens * stride);
  const FloatRows rows = {.data = x.data(), .token_count = tokens, .stride = stride};
  std::vector<float> expected(tokens * w.view.rows, -1);
  std::vector<float> actual(tokens * w.view.rows, -1);
  MatMulRange range = {.row_begin = row_begin,
                       .row_end = row_end,
                       .out = expected.data(),
                       .out_stride = w.view.rows};
  kScalarKernels.matmul_f32(w.view, rows, range);
  range.out = actual.data();
  table.matmul_f32(w.view, rows, range);
  EXPECT_TRUE(SameBits(expected, actual))
      << tensor::WeightFormatName(w.view.format) << " " << w.view.rows << "x" << w.view.cols
      << " group " << w.view.group_size << " tokens " << tokens << " rows " << row_begin << ".."
      << row_end;
}

TEST_P(Tables, MatMulF32GivesTheScalarBitsForAllFormatsAndSizes) {
  for (const WeightFormat format : kFormats) {
    for (const uint32_t cols :
         {0u, 1u, 2u, 7u, 8u, 15u, 16u, 17u, 63u, 64u, 96u, 100u, 512u, 513u, 768u, 1037u}) {
      for (const uint32_t rows : {1u, 3u, 4u, 5u, 9u}) {
        const WeightData w = RandomWeights(rng_, format, rows, cols, 64);
        ExpectSameMatMulF32(table(), rng_, w, 1, 0, rows);
      }
    }
    for (const uint32_t cols : {7u, 130u, 1100u}) {
      const WeightData w = RandomWeights(rng_, format, 7, cols, 32);
      for (const size_t tokens : {0u, 1u, 2u, 3u, 5u, 16u, 17u, 33u}) {
        ExpectSameMatMulF32(table(), rng_, w, tokens, 0, 7);
        ExpectSameMatMulF32(table(), rng_, w, tokens, 2, 6);
        ExpectSameMatMulF32(table(), rng_, w, tokens, 3, 3);
      }
    }
  }
}

TEST_P(Tables, MatMulF32GivesTheScalarBitsForAllGroupSizes) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {1u, 5u, 8u, 12u, 16u, 32u, 64u, 72u, 128u, 1024u}) {
      for (const uint32_t cols : {1u, 31u, 64u, 72u, 100u, 192u, 576u}) {
        const WeightData w = RandomWeights(rng_, format, 6, cols, group);
        ExpectSameMatMulF32(table(), rng_, w, 2, 1, 6);
      }
    }
  }
}

TEST_P(Tables, MatMulF32GivesTheScalarBitsForEveryBitPattern) {
  // All 65536 values of the 16-bit formats, and all bytes under every kind of scale.
  std::vector<uint8_t> all(1 + 2 * 65536);
  for (size_t i = 0; i < 65536; ++i) {
    all[1 + 2 * i] = static_cast<uint8_t>(i & 0xff);
    all[2 + 2 * i] = static_cast<uint8_t>(i >> 8);
  }
  const Bytes bytes = AsBytes(std::span<const uint8_t>(all)).subspan(1);
  const std::vector<float> x(1024, 1.0f);
  for (const WeightFormat format : kFormats) {
    if (format == WeightFormat::kF32) continue;
    const uint32_t element_bits = format == WeightFormat::kSmoeQ4   ? 4
                                  : format == WeightFormat::kSmoeQ2 ? 2
                                                                    : 16;
    // One column each, so that no value hides another.
    const auto rows =
        static_cast<uint32_t>(std::min<size_t>(all.size() / 2 * 16 / element_bits, 65536));
    const tensor::WeightView view = {
        .format = format, .rows = rows, .cols = 1, .data = bytes, .scales = bytes, .group_size = 1};
    std::vector<float> expected(rows);
    std::vector<float> actual(rows);
    const FloatRows in = {.data = x.data(), .token_count = 1, .stride = 1};
    kScalarKernels.matmul_f32(
        view, in, {.row_begin = 0, .row_end = rows, .out = expected.data(), .out_stride = rows});
    table().matmul_f32(view, in,
                       {.row_begin = 0, .row_end = rows, .out = actual.data(), .out_stride = rows});
    EXPECT_TRUE(SameBits(expected, actual)) << tensor::WeightFormatName(format);
    // And eight columns, where fast paths begin; 8192 rows of eight 16-bit values, or groups of 8.
    tensor::WeightView wide = view;
    wide.rows = 8192;
    wide.cols = 8;
    wide.group_size = 8;
    kScalarKernels.matmul_f32(
        wide, {.data = x.data(), .token_count = 1, .stride = 8},
        {.row_begin = 0, .row_end = 8192, .out = expected.data(), .out_stride = rows});
    table().matmul_f32(wide, {.data = x.data(), .token_count = 1, .stride = 8},
                       {.row_begin = 0, .row_end = 8192, .out = actual.data(), .out_stride = rows});
    EXPECT_TRUE(SameBits(expected, actual)) << tensor::WeightFormatName(format) << " wide";
  }
}

void ExpectSameMatMulInt8(const KernelTable& table, const WeightData& w, const QuantisedRows& x,
                          uint32_t row_begin, uint32_t row_end) {
  std::vector<float> expected(x.token_count * w.view.rows, -1);
  std::vector<float> actual(x.token_count * w.view.rows, -1);
  MatMulRange range = {.row_begin = row_begin,
                       .row_end = row_end,
                       .out = expected.data(),
                       .out_stride = w.view.rows};
  kScalarKernels.matmul_int8(w.view, x, range);
  range.out = actual.data();
  table.matmul_int8(w.view, x, range);
  EXPECT_TRUE(SameBits(expected, actual))
      << tensor::WeightFormatName(w.view.format) << " " << w.view.rows << "x" << w.view.cols
      << " group " << w.view.group_size << " tokens " << x.token_count << " rows " << row_begin
      << ".." << row_end;
}

TEST_P(Tables, MatMulInt8GivesTheScalarBitsForAllGroupsAndSizes) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {8u, 16u, 24u, 32u, 64u, 96u, 128u, 192u, 1024u}) {
      for (const uint32_t cols :
           {0u, 1u, 2u, 63u, 64u, 65u, 100u, 128u, 192u, 320u, 512u, 576u, 768u, 2112u}) {
        const uint32_t rows = 11;
        const WeightData w = RandomWeights(rng_, format, rows, cols, group);
        const std::vector<float> x = RandomFloats(rng_, size_t{2} * cols);
        const ActivationData q = QuantiseRows(kScalarKernels, x, 2, cols);
        ExpectSameMatMulInt8(table(), w, q.rows, 0, rows);
        ExpectSameMatMulInt8(table(), w, q.rows, 2, 10);
        ExpectSameMatMulInt8(table(), w, q.rows, 10, 11);
        ExpectSameMatMulInt8(table(), w, q.rows, 4, 4);
      }
    }
  }
}

// More columns than any buffer of scales holds, and several tokens.
TEST_P(Tables, MatMulInt8GivesTheScalarBitsForLongRowsAndManyTokens) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {16u, 32u, 64u, 128u, 192u, 1024u}) {
      const uint32_t cols = 64 * 301;
      const WeightData w = RandomWeights(rng_, format, 9, cols, group);
      const std::vector<float> x = RandomFloats(rng_, size_t{5} * cols);
      const ActivationData q = QuantiseRows(kScalarKernels, x, 5, cols);
      ExpectSameMatMulInt8(table(), w, q.rows, 0, 9);
    }
  }
}

TEST_P(Tables, MatMulInt8GivesTheScalarBitsForAnyNumberOfTokens) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {8u, 16u, 32u, 64u, 128u, 192u}) {
      for (const uint32_t cols : {64u, 576u}) {
        const WeightData w = RandomWeights(rng_, format, 13, cols, group);
        for (const size_t tokens : {0u,  1u,  2u,  3u,  4u,  5u,  7u,  8u,  9u,  11u, 12u,
                                    14u, 15u, 16u, 17u, 18u, 31u, 32u, 33u, 47u, 64u}) {
          const std::vector<float> x = RandomFloats(rng_, tokens * cols);
          const ActivationData q = QuantiseRows(kScalarKernels, x, tokens, cols);
          ExpectSameMatMulInt8(table(), w, q.rows, 0, 13);
          ExpectSameMatMulInt8(table(), w, q.rows, 3, 9);
        }
      }
    }
  }
}

// More rows than any tile holds, and a short tile behind; more tokens than any batch.
TEST_P(Tables, MatMulInt8GivesTheScalarBitsForManyRows) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {16u, 32u, 64u, 128u}) {
      for (const uint32_t cols : {64u, 192u, 1088u}) {
        const WeightData w = RandomWeights(rng_, format, 139, cols, group);
        for (const size_t tokens : {1u, 2u, 13u, 69u}) {
          const std::vector<float> x = RandomFloats(rng_, tokens * cols);
          const ActivationData q = QuantiseRows(kScalarKernels, x, tokens, cols);
          ExpectSameMatMulInt8(table(), w, q.rows, 0, 139);
          ExpectSameMatMulInt8(table(), w, q.rows, 5, 104);
        }
      }
    }
  }
}

// More tokens than any batch, and batches that are not all as long.
TEST_P(Tables, MatMulInt8GivesTheScalarBitsForMoreTokensThanABatchHas) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {32u, 64u}) {
      const WeightData w = RandomWeights(rng_, format, 45, 192, group);
      for (const size_t tokens : {129u, 256u, 257u, 531u}) {
        const std::vector<float> x = RandomFloats(rng_, tokens * 192);
        const ActivationData q = QuantiseRows(kScalarKernels, x, tokens, 192);
        ExpectSameMatMulInt8(table(), w, q.rows, 1, 44);
      }
    }
  }
}

// A sum of -0 must stay one where a row's last columns fill a part of the lanes only.
TEST_P(Tables, MatMulF32KeepsNegativeZeros) {
  for (const uint32_t cols : {1u, 5u, 16u, 17u, 40u}) {
    WeightData w = RandomWeights(rng_, WeightFormat::kF32, 9, cols, 64);
    const std::vector<float> weights(size_t{9} * cols, -0.0f);
    std::memcpy(w.data.data() + 1, weights.data(), weights.size() * sizeof(float));
    for (const float value : {1.0f, -1.0f}) {
      const std::vector<float> x(size_t{7} * cols, value);
      const FloatRows rows = {.data = x.data(), .token_count = 7, .stride = cols};
      std::vector<float> expected(63);
      std::vector<float> actual(63);
      kScalarKernels.matmul_f32(
          w.view, rows, {.row_begin = 0, .row_end = 9, .out = expected.data(), .out_stride = 9});
      table().matmul_f32(w.view, rows,
                         {.row_begin = 0, .row_end = 9, .out = actual.data(), .out_stride = 9});
      EXPECT_TRUE(SameBits(expected, actual)) << cols;
    }
  }
}

// The largest sums there are, of both signs: nothing may saturate.
TEST_P(Tables, MatMulInt8TakesTheExtremes) {
  for (const WeightFormat format : kQuantisedFormats) {
    for (const uint32_t group : {16u, 32u, 64u}) {
      for (const uint8_t code_byte : {uint8_t{0x00}, uint8_t{0xff}}) {
        for (const float value : {1.0f, -1.0f}) {
          WeightData w = RandomWeights(rng_, format, 8, 128, group);
          std::fill(w.data.begin(), w.data.end(), code_byte);
          for (const size_t tokens : {1u, 4u, 12u}) {
            const std::vector<float> x(tokens * 128, value);
            const ActivationData q = QuantiseRows(kScalarKernels, x, tokens, 128);
            ExpectSameMatMulInt8(table(), w, q.rows, 0, 8);
          }
        }
      }
    }
  }
}

// Every byte of codes and every f16 as a scale, infinities and NaNs included.
TEST_P(Tables, MatMulInt8TakesEveryScale) {
  for (const WeightFormat format : kQuantisedFormats) {
    WeightData w = RandomWeights(rng_, format, 1024, 64 * 64, 64);
    for (size_t i = 0; i < 65536; ++i) {
      w.scales[1 + 2 * i] = static_cast<uint8_t>(i & 0xff);
      w.scales[2 + 2 * i] = static_cast<uint8_t>(i >> 8);
    }
    for (size_t i = 1; i < w.data.size(); ++i) w.data[i] = static_cast<uint8_t>(i * 37);
    const std::vector<float> x = RandomFloats(rng_, 64 * 64, 1e-3f);
    const ActivationData q = QuantiseRows(kScalarKernels, x, 1, 64 * 64);
    ExpectSameMatMulInt8(table(), w, q.rows, 0, 1024);
  }
}

TEST_P(Tables, QuantiseRowGivesTheScalarCodesAndScales) {
  for (const size_t cols : {1u, 2u, 63u, 64u, 65u, 127u, 500u, 2048u}) {
    for (const float scale : {1.0f, 1e-30f, 1e-38f, 1e-44f, 1e38f}) {
      for (int round = 0; round < 20; ++round) {
        std::vector<float> x = RandomFloats(rng_, cols, scale);
        for (float& value : x) {
          if (!std::isfinite(value)) value = 3e38f;
          if (round % 4 == 3) value = 0;
        }
        // Halves of codes, to see ties: absmax 127 makes the inverse 1.
        if (round == 0) {
          for (size_t i = 0; i < cols; ++i) x[i] = static_cast<float>(i % 127) + 0.5f;
          x[0] = -127;
        }
        const ActivationData expected = QuantiseRows(kScalarKernels, x, 1, cols);
        const ActivationData actual = QuantiseRows(table(), x, 1, cols);
        ASSERT_EQ(expected.codes, actual.codes) << cols << " " << scale;
        ASSERT_TRUE(SameBits(expected.scales, actual.scales)) << cols << " " << scale;
      }
    }
  }
  EXPECT_TRUE(table().quantise_row(nullptr, 0, nullptr, nullptr));
}

TEST_P(Tables, QuantiseRowRefusesNanAndInfinityAnywhere) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (size_t at = 0; at < 70; ++at) {
      std::vector<float> x(70, 1.0f);
      x[at] = bad;
      std::vector<int8_t> codes(128);
      std::vector<float> scales(2);
      EXPECT_FALSE(table().quantise_row(x.data(), x.size(), codes.data(), scales.data())) << at;
    }
  }
}

constexpr size_t kCounts[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100, 2048, 2051};

TEST_P(Tables, RmsNormGivesTheScalarBits) {
  for (const size_t count : kCounts) {
    for (const bool with_specials : {false, true}) {
      const std::vector<float> x =
          with_specials ? Mixed(rng_, count, false) : RandomFloats(rng_, count);
      const std::vector<float> weight = RandomFloats(rng_, count);
      std::vector<float> expected(count);
      std::vector<float> actual = x;  // in place
      kScalarKernels.rms_norm(x.data(), weight.data(), 1e-6f, count, expected.data());
      table().rms_norm(actual.data(), weight.data(), 1e-6f, count, actual.data());
      EXPECT_TRUE(SameBits(expected, actual)) << count;
    }
  }
}

TEST_P(Tables, SiluMulSigmoidAndAddScaledGiveTheScalarBits) {
  for (const size_t count : kCounts) {
    const std::vector<float> x = Mixed(rng_, count, true);
    const std::vector<float> y = Mixed(rng_, count, true);
    std::vector<float> expected = x;
    std::vector<float> actual = x;
    kScalarKernels.silu_mul(expected.data(), y.data(), count);
    table().silu_mul(actual.data(), y.data(), count);
    EXPECT_TRUE(SameBits(expected, actual)) << count;
    kScalarKernels.sigmoid(x.data(), count, expected.data());
    table().sigmoid(x.data(), count, actual.data());
    EXPECT_TRUE(SameBits(expected, actual)) << count;
    expected = y;
    actual = y;
    kScalarKernels.add_scaled(x.data(), 0.3f, count, expected.data());
    table().add_scaled(x.data(), 0.3f, count, actual.data());
    EXPECT_TRUE(SameBits(expected, actual)) << count;
  }
}

// exp itself, through sigmoid, over all exponents and both signs.
TEST_P(Tables, SigmoidGivesTheScalarBitsOverTheWholeRange) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 30011) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  std::vector<float> expected(x.size());
  std::vector<float> actual(x.size());
  kScalarKernels.sigmoid(x.data(), x.size(), expected.data());
  table().sigmoid(x.data(), x.size(), actual.data());
  EXPECT_TRUE(SameBits(expected, actual));
}

TEST_P(Tables, SoftmaxGivesTheScalarBits) {
  for (const size_t count : kCounts) {
    if (count == 0) continue;
    for (int round = 0; round < 30; ++round) {
      std::vector<float> expected = round < 10   ? RandomFloats(rng_, count, 30)
                                    : round < 20 ? Mixed(rng_, count, false)
                                                 : Mixed(rng_, count, true);
      if (round == 0) std::fill(expected.begin(), expected.end(), -kInfinity);
      if (round == 1) std::fill(expected.begin(), expected.end(), kNan);
      if (round == 2) std::fill(expected.begin(), expected.end(), -0.0f);
      if (round == 3) expected.back() = -kInfinity;
      std::vector<float> actual = expected;
      kScalarKernels.softmax(expected.data(), count);
      table().softmax(actual.data(), count);
      ASSERT_TRUE(SameBits(expected, actual)) << count << " round " << round;
    }
  }
}

}  // namespace
}  // namespace smoe::kernels
