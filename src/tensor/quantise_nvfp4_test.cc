#include "tensor/quantise_nvfp4.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/dtype.h"
#include "tensor/nvfp4_kernels.h"
#include "tensor/weights.h"

namespace smoe::tensor {
namespace {

constexpr size_t kBlock = 16;

struct Quantised {
  float scale2 = 0;
  std::vector<std::byte> packed;
  std::vector<std::byte> scales;
  QuantisationError error;
};

Quantised Quantise(const std::vector<float>& weights, Nvfp4Quantiser quantiser) {
  Quantised out;
  out.scale2 = Nvfp4GlobalScale(weights);
  out.packed.resize(weights.size() / 2);
  out.scales.resize(weights.size() / kBlock);
  out.error = QuantiseNvfp4(weights, out.scale2, quantiser, out.packed, out.scales);
  return out;
}

std::vector<double> BlockErrors(const std::vector<float>& weights, const Quantised& quantised) {
  std::vector<float> decoded(weights.size());
  DequantiseNvfp4(quantised.packed, quantised.scales, quantised.scale2, decoded);
  std::vector<double> errors(quantised.scales.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const double distance = double{weights[i]} - double{decoded[i]};
    errors[i / kBlock] += distance * distance;
  }
  return errors;
}

std::vector<float> Normal(size_t count, float deviation, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> weights(count);
  for (float& weight : weights) weight = normal(generator);
  return weights;
}

// Blocks that arithmetic trips over, one after another.
std::vector<float> OddBlocks() {
  const float values[] = {0.0F,   -0.0F,    1e-38F, 1e-42F, 6e-8F,      1.0F,
                          448.0F, 60000.0F, 1e30F,  -1e30F, 0x1.fp-10F, -3.5F};
  std::vector<float> weights;
  for (const float value : values) {
    weights.insert(weights.end(), kBlock, value);
    weights.insert(weights.end(), kBlock - 1, 0.0F);
    weights.push_back(value);
  }
  return weights;
}

std::vector<std::byte> FromHex(const Json* text) {
  const std::string& hex = *text->AsString();
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Json Goldens() {
  const std::string path = std::string(SMOE_SOURCE_DIR) + "/tests/golden/nvfp4_quantiser.json";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto json = Json::Parse(text, path);
  EXPECT_TRUE(json) << json.error().message();
  return json ? std::move(*json) : Json();
}

TEST(F8E4M3FromF32, RoundsToTheNearestHalfToEven) {
  for (uint8_t code = 0; code < kE4M3CodeMax; ++code) {
    const float value = F32FromF8E4M3(code);
    const float next = F32FromF8E4M3(static_cast<uint8_t>(code + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(F8E4M3FromF32(value), code);
    EXPECT_EQ(F8E4M3FromF32(middle), code % 2 == 0 ? code : code + 1) << int{code};
    EXPECT_EQ(F8E4M3FromF32(std::nextafter(middle, 0.0F)), code) << int{code};
    EXPECT_EQ(F8E4M3FromF32(std::nextafter(middle, 1e9F)), code + 1) << int{code};
  }
  EXPECT_EQ(F8E4M3FromF32(448.0F), kE4M3CodeMax);
  EXPECT_EQ(F8E4M3FromF32(1e30F), kE4M3CodeMax);
}

TEST(Nvfp4Quantiser, GivesTheBytesOfAnIndependentOne) {
  const Json goldens = Goldens();
  ASSERT_EQ(goldens.Find("cases")->AsArray()->size(), 4U);
  for (const Json& golden : *goldens.Find("cases")->AsArray()) {
    SCOPED_TRACE(*golden.Find("name")->AsString());
    const std::vector<std::byte> bytes = FromHex(golden.Find("weights"));
    std::vector<float> weights(bytes.size() / sizeof(float));
    std::memcpy(weights.data(), bytes.data(), bytes.size());
    const Quantised amax = Quantise(weights, Nvfp4Quantiser::kAmax);
    EXPECT_EQ(std::bit_cast<uint32_t>(amax.scale2),
              LoadStruct<uint32_t>(FromHex(golden.Find("scale2"))));
    EXPECT_EQ(amax.scales, FromHex(golden.Find("amax_scales")));
    EXPECT_EQ(amax.packed, FromHex(golden.Find("amax_codes")));
    // The golden's search is exhaustive; blocks with two scales that are as good do not count.
    const Quantised mse = Quantise(weights, Nvfp4Quantiser::kMse);
    const std::vector<std::byte> scales = FromHex(golden.Find("mse_scales"));
    const std::vector<std::byte> codes = FromHex(golden.Find("mse_codes"));
    const std::string& sure = *golden.Find("sure")->AsString();
    size_t compared_count = 0;
    for (size_t block = 0; block < scales.size(); ++block) {
      if (sure[block] != '1') continue;
      ++compared_count;
      EXPECT_EQ(mse.scales[block], scales[block]) << block;
      EXPECT_EQ(std::memcmp(mse.packed.data() + block * 8, codes.data() + block * 8, 8), 0)
          << block;
    }
    EXPECT_GE(compared_count * 4, scales.size());
  }
}

TEST(Nvfp4Quantiser, IsNeverWorseWithTheSearchInAnyBlock) {
  for (const std::vector<float>& weights :
       {Normal(size_t{1} << 16, 0.02F, 1), Normal(size_t{1} << 12, 1e-30F, 2), OddBlocks()}) {
    const std::vector<double> amax = BlockErrors(weights, Quantise(weights, Nvfp4Quantiser::kAmax));
    const std::vector<double> mse = BlockErrors(weights, Quantise(weights, Nvfp4Quantiser::kMse));
    for (size_t block = 0; block < amax.size(); ++block) ASSERT_LE(mse[block], amax[block]);
  }
}

TEST(Nvfp4Quantiser, LowersTheErrorOfNormalWeightsByASeventh) {
  const std::vector<float> weights = Normal(size_t{1} << 18, 0.02F, 3);
  const double amax = Quantise(weights, Nvfp4Quantiser::kAmax).error.Rmse();
  const double mse = Quantise(weights, Nvfp4Quantiser::kMse).error.Rmse();
  EXPECT_NEAR(1 - mse / amax, 0.146, 0.004);
}

TEST(Nvfp4Quantiser, SaysTheErrorThatItsResultHas) {
  const std::vector<float> weights = Normal(4096, 0.5F, 4);
  const Quantised quantised = Quantise(weights, Nvfp4Quantiser::kMse);
  double error = 0;
  for (const double block : BlockErrors(weights, quantised)) error += block;
  double square = 0;
  for (const float weight : weights) square += double{weight} * double{weight};
  EXPECT_EQ(quantised.error.weight_count, 4096U);
  EXPECT_NEAR(quantised.error.squared_error, error, error * 1e-12);
  EXPECT_NEAR(quantised.error.squared_value, square, square * 1e-12);
}

// Case C06.
TEST(Nvfp4Quantiser, GivesZerosForZerosAndNothingThatIsNotFinite) {
  const std::vector<float> zeros(64, 0.0F);
  const Quantised of_zeros = Quantise(zeros, Nvfp4Quantiser::kMse);
  EXPECT_EQ(of_zeros.scale2, 1.0F);
  EXPECT_EQ(of_zeros.packed, std::vector<std::byte>(32));
  EXPECT_EQ(of_zeros.scales, std::vector<std::byte>(4));
  std::vector<std::vector<float>> matrices = {OddBlocks()};
  for (const float value :
       {1e-38F, 1e-45F, 6e-8F, 65504.0F, 3.3895314e38F, std::numeric_limits<float>::max()}) {
    matrices.emplace_back(kBlock, value);
    matrices.back()[3] = -value;
    matrices.back()[5] = 0;
  }
  for (const std::vector<float>& weights : matrices) {
    for (const Nvfp4Quantiser quantiser : {Nvfp4Quantiser::kAmax, Nvfp4Quantiser::kMse}) {
      const Quantised quantised = Quantise(weights, quantiser);
      EXPECT_TRUE(std::isfinite(quantised.scale2) && quantised.scale2 > 0);
      for (const std::byte scale : quantised.scales) {
        EXPECT_LT(std::to_integer<uint32_t>(scale), 0x7FU);
      }
      std::vector<float> decoded(weights.size());
      DequantiseNvfp4(quantised.packed, quantised.scales, quantised.scale2, decoded);
      for (const float value : decoded) EXPECT_TRUE(std::isfinite(value));
      if (weights.size() != kBlock || weights[0] < 1e-37F) continue;
      EXPECT_NEAR(decoded[0] / weights[0], 1.0F, 1e-6F);
      EXPECT_NEAR(decoded[3] / weights[3], 1.0F, 1e-6F);
      EXPECT_EQ(decoded[5], 0.0F);
    }
  }
}

#if defined(__x86_64__)
TEST(Nvfp4Kernels, GiveTheSameBitsOnAvx2) {
  if (__builtin_cpu_supports("avx2") == 0) GTEST_SKIP() << "no AVX2 here";
  std::vector<std::vector<float>> matrices = {OddBlocks()};
  for (uint32_t seed = 0; seed < 8; ++seed) {
    matrices.push_back(
        Normal(size_t{1} << 14, std::pow(10.0F, static_cast<float>(seed) * 4 - 20), seed));
  }
  Nvfp4Tables tables = {};
  std::fill(std::begin(tables.padded_e4m3), std::end(tables.padded_e4m3),
            std::numeric_limits<float>::quiet_NaN());
  for (uint32_t i = 0; i < 128; ++i) {
    tables.e4m3[i] = F32FromF8E4M3(static_cast<uint8_t>(i));
    tables.padded_e4m3[i + kE4M3PadBefore] = tables.e4m3[i];
  }
  for (uint32_t i = 0; i < kE4M3PadBefore; ++i) tables.padded_e4m3[i] = 0;
  for (uint32_t i = 0; i < 16; ++i) tables.e2m1[i] = F32FromE2M1(i);
  for (const std::vector<float>& weights : matrices) {
    for (const float share : {1.0F, 0.01F, 300.0F}) {
      for (const bool searches : {false, true}) {
        const float scale2 = Nvfp4GlobalScale(weights) * share;
        if (scale2 == 0 || !std::isfinite(scale2)) continue;
        const uint64_t count = weights.size() / kBlock;
        std::vector<std::byte> packed[2];
        std::vector<std::byte> scales[2];
        Nvfp4Sums sums[2] = {};
        for (const int i : {0, 1}) {
          packed[i].resize(count * 8);
          scales[i].resize(count);
          const Nvfp4Kernels& kernels = i == 0 ? kNvfp4Scalar : kNvfp4Avx2;
          kernels.quantise(weights.data(), count, scale2, searches, tables, packed[i].data(),
                           scales[i].data(), &sums[i]);
        }
        EXPECT_EQ(packed[0], packed[1]);
        EXPECT_EQ(scales[0], scales[1]);
        EXPECT_EQ(std::memcmp(&sums[0], &sums[1], sizeof(Nvfp4Sums)), 0);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace smoe::tensor
