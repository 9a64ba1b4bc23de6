#include "convert/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/dtype.h"
#include "tensor/quantise_nvfp4.h"

namespace smoe::convert {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;
};

Moments MomentsOf(std::span<const float> values) {
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double count = static_cast<double>(values.size());
  return {sum / count, std::sqrt(squares / count)};
}

constexpr size_t kWeights = size_t{1} << 18;
constexpr RandomMatrix kMatrix = {11, 12, 0.02};

// The tables of the standard normal distribution.
TEST(NormalQuantile, IsTheTablesValue) {
  EXPECT_NEAR(NormalQuantile(0.975), 1.959964, 1e-6);
  EXPECT_NEAR(NormalQuantile(0.5), 0, 1e-9);
  EXPECT_NEAR(NormalQuantile(0.001), -3.090232, 1e-6);
}

TEST(RandomWeights, OfAVaultHaveTheDeviationAskedForAndNoMean) {
  for (const auto bits : {tensor::SmoeBits::kQ2, tensor::SmoeBits::kQ4}) {
    std::vector<std::byte> packed(tensor::PackedBytes(kWeights, bits));
    std::vector<std::byte> scales(tensor::ScaleBytes(kWeights, 64));
    FillRandomCodes(kMatrix.codes_key, packed);
    FillSmoeScales(kMatrix, bits, scales);
    std::vector<float> weights(kWeights);
    tensor::DequantiseSmoe(packed, scales, bits, 64, weights);
    const Moments moments = MomentsOf(weights);
    // Four standard errors of the mean, and 1 % for the deviation.
    EXPECT_NEAR(moments.mean, 0, 4 * 0.02 / std::sqrt(kWeights));
    EXPECT_NEAR(moments.deviation, 0.02, 0.0002);
  }
}

TEST(RandomWeights, OfARecordHaveTheDeviationAskedForAndNoMean) {
  std::vector<std::byte> packed(kWeights / 2);
  std::vector<std::byte> scales(kWeights / 16);
  FillRandomCodes(kMatrix.codes_key, packed);
  const float scale2 = FillNvfp4Scales(kMatrix, scales);
  std::vector<float> weights(kWeights);
  tensor::DequantiseNvfp4(packed, scales, scale2, weights);
  const Moments moments = MomentsOf(weights);
  EXPECT_NEAR(moments.mean, 0, 4 * 0.02 / std::sqrt(kWeights));
  EXPECT_NEAR(moments.deviation, 0.02, 0.0002);
}

TEST(RandomWeights, OfATrunkAreTheSameInWhateverPieces) {
  const NormalBf16 normal(1.5);
  std::vector<uint16_t> whole(kWeights + 3);
  normal.Fill(5, 0, whole);
  std::vector<uint16_t> pieces(whole.size());
  normal.Fill(5, 1024, std::span(pieces).subspan(1024));
  normal.Fill(5, 0, std::span(pieces).first(1024));
  EXPECT_EQ(pieces, whole);
  std::vector<float> values;
  for (const uint16_t bits : whole) values.push_back(tensor::F32FromBF16(bits));
  const Moments moments = MomentsOf(values);
  EXPECT_NEAR(moments.mean, 0, 4 * 1.5 / std::sqrt(kWeights));
  EXPECT_NEAR(moments.deviation, 1.5, 0.015);
}

TEST(RandomWeights, DifferBetweenExpertsProjectionsAndSeeds) {
  RandomExperts random;
  random.seed = 1;
  random.down_deviations = {0.1, 0.2};
  random.experts_per_layer = 4;
  RandomExperts other = random;
  other.seed = 2;
  const uint64_t key = random.Matrix(0, 0).codes_key;
  EXPECT_NE(key, random.Matrix(1, 0).codes_key);
  EXPECT_NE(key, random.Matrix(0, 1).codes_key);
  EXPECT_NE(key, random.Matrix(0, 0).scales_key);
  EXPECT_NE(key, other.Matrix(0, 0).codes_key);
  EXPECT_EQ(random.Matrix(3, 2).deviation, 0.1);
  EXPECT_EQ(random.Matrix(4, 2).deviation, 0.2);
}

}  // namespace
}  // namespace smoe::convert
