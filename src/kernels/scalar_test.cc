// The scalar table against plain arithmetic in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/data_for_test.h"
#include "kernels/kernels.h"

namespace smoe::kernels {
namespace {

using tensor::WeightFormat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUnitRoundoff = 0x1p-24;  // relative error of one f32 operation, at most
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A sum of n products by fma in any order: each term meets at most n / 16 + 5 roundings (16 lanes,
// then the tree of 4 and a margin of 1), so the error is below that times u times the sum of
// magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1).
double SumBound(size_t count, double magnitude_sum) {
  return (static_cast<double>(count) / kSumLanes + 6) * kUnitRoundoff * magnitude_sum + 1e-44;
}

double UlpOf(double value) {
  const double magnitude = std::max(std::fabs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// The fused multiply-add itself, seen through add_scaled.
float FmaOf(float a, float b, float c) {
  kScalarKernels.add_scaled(&b, a, 1, &c);
  return c;
}

TEST(ScalarFma, RoundsOnceForRandomBitsOfEveryKind) {
  Rng rng(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const uint64_t bits = rng();
    float a = std::bit_cast<float>(static_cast<uint32_t>(bits));
    float b = std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
    float c = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (i % 2 == 0) c = -a * b * (1 + static_cast<float>(i % 64) * 0x1p-23f);  // cancels
    if (i % 8 == 1) a = std::ldexp(a, -100);                                   // subnormal sums
    const float expected = std::fma(a, b, c);
    const float actual = FmaOf(a, b, c);
    if (std::isnan(expected) && std::isnan(actual)) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(expected), std::bit_cast<uint32_t>(actual))
        << a << " " << b << " " << c;
  }
}

TEST(ScalarFma, SeesOnWhichSideOfATieTheProductLies) {
  // 1 + 2^-24 is half way between two floats; the product adds 2^-70 above or below it.
  const float tiny = 0x1p-35f;
  EXPECT_EQ(FmaOf(tiny, tiny, 1.0f), 1.0f);
  const float just_below = 0x1.fffffep-1f;
  EXPECT_EQ(FmaOf(just_below, 0x1p-24f, 1.0f), 1.0f);
  EXPECT_EQ(FmaOf(0x1.000002p+0f, 0x1p-24f, 1.0f), 0x1.000002p+0f);
  EXPECT_EQ(FmaOf(1.0f, 0x1p-24f, 1.0f), 1.0f);
  EXPECT_EQ(FmaOf(kInfinity, 1.0f, 1.0f), kInfinity);
  EXPECT_TRUE(std::isnan(FmaOf(kInfinity, 1.0f, -kInfinity)));
  EXPECT_TRUE(std::signbit(FmaOf(-0x1p-100f, 0x1p-100f, 0.0f)));
}

// exp has no entry of its own: sigmoid and softmax show it, with the bounds below.
TEST(ScalarSigmoid, IsWithinThreeRoundingsOfTheTruthForAllExponents) {
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 30011) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto x = std::bit_cast<float>(bits | sign);
      float actual = 0;
      kScalarKernels.sigmoid(&x, 1, &actual);
      const double expected = 1 / (1 + std::exp(-static_cast<double>(x)));
      // exp: 1 ulp = 2 u; the addition and the division: u each. Where exp(-x) overflows, 0.
      if (x < -88.7f) {
        ASSERT_LE(std::fabs(static_cast<double>(actual) - expected), 0x1p-126) << x;
      } else {
        ASSERT_NEAR(static_cast<double>(actual), expected, 4.1 * kUnitRoundoff * expected) << x;
      }
    }
  }
}

// softmax({x, 0}) for x so small that the sum rounds to 1 is exp(x) to the bit.
TEST(ScalarExp, IsWithinOneUlpBelowTheRoundingOfOne) {
  double worst = 0;
  for (uint32_t bits = std::bit_cast<uint32_t>(16.7f); bits < std::bit_cast<uint32_t>(120.0f);
       bits += 37) {
    const float x = -std::bit_cast<float>(bits);
    float row[2] = {x, 0};
    kScalarKernels.softmax(row, 2);
    const double expected = std::exp(static_cast<double>(x));
    const double error = std::fabs(static_cast<double>(row[0]) - expected) / UlpOf(expected);
    if (error > worst) worst = error;
    ASSERT_LE(error, 1.0) << x;
  }
  EXPECT_GT(worst, 0.3);  // the measure measures
  RecordProperty("worst_ulp", std::to_string(worst));
}

// Here the sum is 1 + exp(x).
TEST(ScalarExp, IsWithinOneUlpNearZero) {
  for (uint32_t bits = 0; bits < std::bit_cast<uint32_t>(17.0f); bits += 2579) {
    const auto x = -std::bit_cast<float>(bits);
    float row[2] = {x, 0};
    kScalarKernels.softmax(row, 2);
    const double e = std::exp(static_cast<double>(x));
    // exp 1 ulp (2 u), which counts once in the quotient and less in the sum; the sum; the
    // division.
    ASSERT_NEAR(static_cast<double>(row[0]), e / (1 + e), 4.1 * kUnitRoundoff * e / (1 + e)) << x;
  }
}

TEST(ScalarExp, HasTheRightLimits) {
  const float in[] = {0.0f,
                      -0.0f,
                      kInfinity,
                      -kInfinity,
                      kNan,
                      std::numeric_limits<float>::max(),
                      -std::numeric_limits<float>::max(),
                      1e-42f};
  float out[std::size(in)];
  kScalarKernels.sigmoid(in, std::size(in), out);
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[1], 0.5f);
  EXPECT_EQ(out[2], 1.0f);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], 1.0f);
  EXPECT_EQ(out[6], 0.0f);
  EXPECT_EQ(out[7], 0.5f);
}

TEST(ScalarMatMulF32, MeetsDoublePrecisionInEveryFormat) {
  Rng rng(2);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16,
                                    WeightFormat::kSmoeQ4, WeightFormat::kSmoeQ2}) {
    for (const uint32_t cols : {1u, 2u, 15u, 17u, 64u, 100u, 515u}) {
      const WeightData w = RandomWeights(rng, format, 5, cols, 32);
      const std::vector<float> x = RandomFloats(rng, size_t{2} * cols);
      std::vector<float> y(10, kNan);
      kScalarKernels.matmul_f32(w.view, {.data = x.data(), .token_count = 2, .stride = cols},
                                {.row_begin = 1, .row_end = 4, .out = y.data(), .out_stride = 5});
      for (uint32_t token = 0; token < 2; ++token) {
        EXPECT_TRUE(std::isnan(y[token * 5])) << "row 0 is outside of the range";
        EXPECT_TRUE(std::isnan(y[token * 5 + 4])) << "row 4 is outside of the range";
        for (uint32_t row = 1; row < 4; ++row) {
          double expected = 0;
          double magnitude = 0;
          for (uint32_t col = 0; col < cols; ++col) {
            const double product = static_cast<double>(tensor::WeightAt(w.view, row, col)) *
                                   static_cast<double>(x[token * cols + col]);
            expected += product;
            magnitude += std::fabs(product);
          }
          EXPECT_NEAR(static_cast<double>(y[token * 5 + row]), expected, SumBound(cols, magnitude))
              << tensor::WeightFormatName(format) << " " << cols;
        }
      }
    }
  }
}

// The codes and scales of the activations are taken as they are: only sums and scales round.
TEST(ScalarMatMulInt8, MeetsDoublePrecisionOnTheCodes) {
  Rng rng(3);
  for (const WeightFormat format : {WeightFormat::kSmoeQ4, WeightFormat::kSmoeQ2}) {
    for (const uint32_t group : {8u, 32u, 64u, 128u, 1024u}) {
      for (const uint32_t cols : {1u, 7u, 63u, 64u, 65u, 100u, 192u, 1030u}) {
        const WeightData w = RandomWeights(rng, format, 3, cols, group);
        const std::vector<float> x = RandomFloats(rng, cols);
        const ActivationData q = QuantiseRows(kScalarKernels, x, 1, cols);
        std::vector<float> y(3);
        kScalarKernels.matmul_int8(
            w.view, q.rows, {.row_begin = 0, .row_end = 3, .out = y.data(), .out_stride = 3});
        for (uint32_t row = 0; row < 3; ++row) {
          double expected = 0;
          double magnitude = 0;
          for (uint32_t col = 0; col < cols; ++col) {
            const double activation = static_cast<double>(q.scales[col / kActivationBlock]) *
                                      static_cast<double>(q.codes[col]);
            const double product =
                static_cast<double>(tensor::WeightAt(w.view, row, col)) * activation;
            expected += product;
            magnitude += std::fabs(product);
          }
          // WeightAt rounds twice, w_scale twice (1/15 is rounded too), its product with the
          // activations' scale once; then a rounding for each piece, of which a row has at most
          // cols / 8 + cols / 64 + 2.
          const double roundings = 6 + cols / 8.0 + cols / 64.0 + 2;
          EXPECT_NEAR(static_cast<double>(y[row]), expected,
                      roundings * kUnitRoundoff * magnitude + 1e-44)
              << tensor::WeightFormatName(format) << " " << group << " " << cols;
        }
      }
    }
  }
}

TEST(ScalarQuantiseRow, RoundsToTheNearestCodeAndPadsWithZeros) {
  // absmax 127 makes the scale 1 and the codes the rounded values, halves to even.
  std::vector<float> x = {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0.49f, 126.6f, 0};
  x.resize(70, 0.0f);
  std::vector<int8_t> codes(128, 99);
  std::vector<float> scales(2, kNan);
  ASSERT_TRUE(kScalarKernels.quantise_row(x.data(), x.size(), codes.data(), scales.data()));
  const std::vector<int8_t> expected = {127, -127, 0, 2, 2, 0, -2, 0, 127, 0};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), codes.begin()));
  EXPECT_TRUE(std::all_of(codes.begin() + 10, codes.end(), [](int8_t code) { return code == 0; }));
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[1], 0.0f) << "an all-zero block";
}

TEST(ScalarQuantiseRow, RefusesNanAndInfinityAnywhere) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const size_t at : {0u, 63u, 64u, 69u}) {
      std::vector<float> x(70, 1.0f);
      x[at] = bad;
      std::vector<int8_t> codes(128);
      std::vector<float> scales(2);
      EXPECT_FALSE(kScalarKernels.quantise_row(x.data(), x.size(), codes.data(), scales.data()));
    }
  }
}

TEST(ScalarQuantiseRow, StaysFiniteFromSubnormalToLargest) {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float big = std::ldexp(1.0f, exponent);
    const std::vector<float> x = {big, -big, big / 2};
    std::vector<int8_t> codes(64);
    float scale = kNan;
    ASSERT_TRUE(kScalarKernels.quantise_row(x.data(), x.size(), codes.data(), &scale));
    // Below 2^-100 the block counts as zero.
    EXPECT_EQ(codes[0], exponent < -100 ? 0 : 127) << exponent;
    EXPECT_EQ(codes[1], exponent < -100 ? 0 : -127) << exponent;
    EXPECT_EQ(codes[2], exponent < -100 ? 0 : 64) << exponent;  // 63.5 to even
    EXPECT_EQ(scale, exponent < -100 ? 0 : big / 127) << exponent;
  }
}

TEST(ScalarRmsNorm, MeetsDoublePrecision) {
  Rng rng(4);
  for (const size_t count : {1u, 2u, 16u, 33u, 2048u}) {
    const std::vector<float> x = RandomFloats(rng, count, 3);
    const std::vector<float> weight = RandomFloats(rng, count);
    std::vector<float> out(count);
    kScalarKernels.rms_norm(x.data(), weight.data(), 1e-6f, count, out.data());
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
    const double factor =
        1 / std::sqrt(sum / static_cast<double>(count) + static_cast<double>(1e-6f));
    for (size_t i = 0; i < count; ++i) {
      const double expected = static_cast<double>(x[i]) * factor * static_cast<double>(weight[i]);
      // The sum's error counts half behind the root; six more operations round.
      const double roundings = (static_cast<double>(count) / kSumLanes + 6) / 2 + 6;
      EXPECT_NEAR(static_cast<double>(out[i]), expected,
                  roundings * kUnitRoundoff * std::fabs(expected));
    }
  }
  kScalarKernels.rms_norm(nullptr, nullptr, 1e-6f, 0, nullptr);
}

TEST(ScalarSiluMul, MeetsDoublePrecision) {
  Rng rng(5);
  std::vector<float> gate = RandomFloats(rng, 1000, 10);
  const std::vector<float> up = RandomFloats(rng, 1000);
  const std::vector<float> before = gate;
  kScalarKernels.silu_mul(gate.data(), up.data(), gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double v = static_cast<double>(before[i]);
    const double expected = v / (1 + std::exp(-v)) * static_cast<double>(up[i]);
    // exp 2 u, addition, division, product.
    EXPECT_NEAR(static_cast<double>(gate[i]), expected,
                5.1 * kUnitRoundoff * std::fabs(expected) + 1e-44);
  }
}

TEST(ScalarSoftmax, MeetsDoublePrecisionAndSumsToOne) {
  Rng rng(6);
  for (const size_t count : {1u, 2u, 15u, 16u, 17u, 1000u}) {
    std::vector<float> x = RandomFloats(rng, count, 5);
    if (count > 2) x[1] = -kInfinity;
    const std::vector<float> before = x;
    kScalarKernels.softmax(x.data(), count);
    const double max = static_cast<double>(*std::max_element(before.begin(), before.end()));
    double sum = 0;
    for (const float value : before) sum += std::exp(static_cast<double>(value) - max);
    double total = 0;
    for (size_t i = 0; i < count; ++i) {
      const double shifted = static_cast<double>(before[i]) - max;
      const double expected = std::exp(shifted) / sum;
      // Rounding x - max by u |x - max| changes exp by that much, twice (here and in the sum).
      const double roundings = static_cast<double>(count) / kSumLanes + 12 + 100;
      EXPECT_NEAR(static_cast<double>(x[i]), expected, roundings * kUnitRoundoff * expected);
      total += static_cast<double>(x[i]);
    }
    EXPECT_NEAR(total, 1, 1e-5);
  }
}

TEST(ScalarSoftmax, SpreadsNanAndInfinityOverTheRow) {
  for (const std::vector<float>& row :
       {std::vector<float>{1, kNan, 2}, {1, kInfinity, 2}, {-kInfinity, -kInfinity}}) {
    std::vector<float> x = row;
    kScalarKernels.softmax(x.data(), x.size());
    EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](float value) { return std::isnan(value); }));
  }
}

TEST(ChooseKernels, TakesTheBestOrTheNamedAndRefusesOthers) {
  EXPECT_TRUE(AllKernels().back() == &kScalarKernels) << "best first, so scalar last";
  ASSERT_TRUE(ChooseKernels(nullptr));
  EXPECT_TRUE((*ChooseKernels(nullptr))->runs_here());
  EXPECT_EQ(*ChooseKernels(""), *ChooseKernels(nullptr));
  EXPECT_EQ(*ChooseKernels("scalar"), &kScalarKernels);
  const auto refused = ChooseKernels("avx3");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(refused.error().message().find("\"avx3\", expected one of"), std::string::npos);
  EXPECT_NE(refused.error().message().find("scalar"), std::string::npos);
}

}  // namespace
}  // namespace smoe::kernels
