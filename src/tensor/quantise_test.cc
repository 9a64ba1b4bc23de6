#include "tensor/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/dtype.h"
#include "tensor/quantise_kernels.h"

namespace smoe::tensor {
namespace {

struct Quantised {
  std::vector<std::byte> packed;
  std::vector<std::byte> scales;
};

Quantised Quantise(const std::vector<float>& weights, SmoeBits bits, uint32_t group_size,
                   Quantiser quantiser) {
  Quantised out;
  out.packed.resize(PackedBytes(weights.size(), bits));
  out.scales.resize(ScaleBytes(weights.size(), group_size));
  const Status status = QuantiseSmoe(weights, bits, group_size, quantiser, out.packed, out.scales);
  EXPECT_TRUE(status) << status.error().message();
  return out;
}

double SquaredError(const std::vector<float>& weights, const Quantised& quantised, SmoeBits bits,
                    uint32_t group_size) {
  return MeasureError(weights, quantised.packed, quantised.scales, bits, group_size).squared_error;
}

std::string Hex(Bytes bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

uint16_t Scale(const Quantised& quantised, size_t index) {
  return LoadStruct<uint16_t>(quantised.scales, index * 2);
}

std::vector<float> Normal(size_t count, float deviation, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> weights(count);
  for (float& weight : weights) weight = normal(generator);
  return weights;
}

// Runs the body once with each kernel table that this machine has.
template <class Body>
void WithEachIsa(const Body& body) {
  for (const char* isa : {"scalar", "avx2"}) {
    SCOPED_TRACE(isa);
    setenv("SMOE_ISA", isa, 1);
    body();
  }
  unsetenv("SMOE_ISA");
}

struct Golden {
  const char* name;
  std::vector<float> weights;
  const char* packed_q2;
  const char* scales_q2;
  const char* packed_q4;
  const char* scales_q4;
};

// Golden vectors A, B, C, D, E of the format page, made by the original converter.
std::vector<Golden> Goldens() {
  std::vector<float> a(64);
  for (int i = 0; i < 64; ++i)
    a[static_cast<size_t>(i)] = static_cast<float>(37 * i % 101 - 50) / 64;
  std::vector<float> b(100);
  for (int i = 0; i < 100; ++i) {
    b[static_cast<size_t>(i)] = static_cast<float>(53 * i % 127 - 63) / 256;
  }
  std::vector<float> c(64);
  std::vector<float> d(64);
  d[0] = 15, d[1] = 2, d[2] = -2, d[3] = 4, d[4] = -4;
  return {
      {"A", a, "248d278de349e379d278d2349e349e27", "d238",
       "602bd7934e0ac6823df9a5612ce8945f1bc7834e0ab6723de9a5612cd8945f1b", "403a"},
      {"B", b, "74e28d74e28d74e28d74e28d74e28d74e38d74e38d74e38d74", "f631e730",
       "604d1ae8b593604d1ae8c593704d2ae8c593704d2ae8c593704d2be8c693714d2bf8c6a3704e2bf8c6a3715e2bf"
       "8c6a3715e",
       "e033a033"},
      {"C", c, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "662e",
       "8888888888888888888888888888888888888888888888888888888888888888", "003c"},
      {"D", d, "cfa8aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "b740",
       "8fa6868888888888888888888888888888888888888888888888888888888888", "804b"},
      {"E", {1, 2, 3}, "3f", "cd38", "ca0f", "0042"},
  };
}

TEST(QuantiseReference, GivesTheGoldenVectors) {
  WithEachIsa([] {
    for (const Golden& golden : Goldens()) {
      SCOPED_TRACE(golden.name);
      const Quantised q2 = Quantise(golden.weights, SmoeBits::kQ2, 64, Quantiser::kReference);
      EXPECT_EQ(Hex(q2.packed), golden.packed_q2);
      EXPECT_EQ(Hex(q2.scales), golden.scales_q2);
      const Quantised q4 = Quantise(golden.weights, SmoeBits::kQ4, 64, Quantiser::kReference);
      EXPECT_EQ(Hex(q4.packed), golden.packed_q4);
      EXPECT_EQ(Hex(q4.scales), golden.scales_q4);
    }
  });
}

std::vector<std::byte> ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Bytes bytes = AsBytes(std::string_view(text));
  return {bytes.begin(), bytes.end()};
}

// The expert matrices of a one-file checkpoint, by name, as f32.
std::map<std::string, std::vector<float>> ReadExperts(const std::filesystem::path& path) {
  const std::vector<std::byte> file = ReadFile(path);
  const uint64_t header_bytes = LoadStruct<uint64_t>(file);
  std::string text(header_bytes, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = std::to_integer<char>(file[8 + i]);
  const Json header = Json::Parse(text, path.string()).value();
  std::map<std::string, std::vector<float>> experts;
  for (const auto& [name, info] : *header.AsObject()) {
    if (name.find(".mlp.experts.") == std::string::npos) continue;
    const uint64_t begin = 8 + header_bytes + *(*info.Find("data_offsets")->AsArray())[0].AsUint();
    const uint64_t end = 8 + header_bytes + *(*info.Find("data_offsets")->AsArray())[1].AsUint();
    const std::string& dtype = *info.Find("dtype")->AsString();
    std::vector<float>& weights = experts[name];
    const uint64_t element_bytes = dtype == "F32" ? 4 : 2;
    for (uint64_t at = begin; at < end; at += element_bytes) {
      weights.push_back(dtype == "F32"    ? LoadStruct<float>(file, at)
                        : dtype == "BF16" ? F32FromBF16(LoadStruct<uint16_t>(file, at))
                                          : F32FromF16(LoadStruct<uint16_t>(file, at)));
    }
  }
  return experts;
}

struct VaultCase {
  const char* vault;
  const char* checkpoint;
};

// Fields of header, table entry and descriptor by their offsets: docs/formats/vault.md.
void CompareVault(const VaultCase& c) {
  const std::filesystem::path root = std::filesystem::path(SMOE_SHARED_DIR) / "reference";
  const std::vector<std::byte> vault = ReadFile(root / "vaults" / c.vault);
  const auto experts = ReadExperts(root / "checkpoints" / c.checkpoint / "model.safetensors");
  const uint32_t expert_count = LoadStruct<uint32_t>(vault, 20);
  const uint32_t group_size = LoadStruct<uint32_t>(vault, 40);
  const SmoeBits bits = static_cast<SmoeBits>(LoadStruct<uint32_t>(vault, 44));
  ASSERT_GT(expert_count, 0U);
  for (uint32_t i = 0; i < expert_count; ++i) {
    const uint64_t entry = 64 + uint64_t{48} * i;
    const uint64_t blob = LoadStruct<uint64_t>(vault, entry + 8);
    for (uint32_t t = 0; t < 3; ++t) {
      const uint64_t descriptor = 64 + uint64_t{48} * expert_count + uint64_t{44} * (3 * i + t);
      const std::string name =
          fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight",
                      LoadStruct<uint32_t>(vault, entry), LoadStruct<uint32_t>(vault, entry + 4),
                      t == 0   ? "gate"
                      : t == 1 ? "up"
                               : "down");
      SCOPED_TRACE(name);
      const Quantised ours = Quantise(experts.at(name), bits, group_size, Quantiser::kReference);
      const Bytes bytes(vault);
      const Bytes packed = bytes.subspan(blob + LoadStruct<uint64_t>(vault, descriptor + 12),
                                         LoadStruct<uint64_t>(vault, descriptor + 20));
      const Bytes scales = bytes.subspan(blob + LoadStruct<uint64_t>(vault, descriptor + 28),
                                         LoadStruct<uint64_t>(vault, descriptor + 36));
      ASSERT_TRUE(std::equal(packed.begin(), packed.end(), ours.packed.begin(), ours.packed.end()));
      ASSERT_TRUE(std::equal(scales.begin(), scales.end(), ours.scales.begin(), ours.scales.end()));
    }
  }
}

TEST(QuantiseReference, GivesTheBytesOfWholeVaultsOfTheOriginalConverter) {
  const std::filesystem::path root = std::filesystem::path(SMOE_SHARED_DIR) / "reference";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "no reference data at " << root;
  WithEachIsa([] {
    for (const VaultCase& c : std::vector<VaultCase>{
             {"qwen3_moe.smoe", "qwen3_moe"},
             {"qwen3_moe.q2.smoe", "qwen3_moe"},
             {"qwen3_moe.q2g128.smoe", "qwen3_moe"},
             {"qwen3_moe.q4g32.smoe", "qwen3_moe"},
             {"qwen3_moe_odd.smoe", "qwen3_moe_odd"},
             {"qwen3_moe_odd.q2.smoe", "qwen3_moe_odd"},
             {"qwen3_moe_odd.q2g32.smoe", "qwen3_moe_odd"},
             {"qwen3_moe_odd.q4g128.smoe", "qwen3_moe_odd"},
             {"qwen3_moe_zeros.smoe", "qwen3_moe_zeros"},
             {"qwen3_moe_zeros.q2.smoe", "qwen3_moe_zeros"},
             {"qwen3_moe_f16.smoe", "qwen3_moe_f16"},
         }) {
      SCOPED_TRACE(c.vault);
      CompareVault(c);
    }
  });
}

// 1 - RMSE(mse) / RMSE(reference) over all tensors; each tensor must not be worse.
double Gain(const std::vector<std::vector<float>>& tensors, SmoeBits bits) {
  double reference = 0;
  double mse = 0;
  for (const std::vector<float>& weights : tensors) {
    const double r =
        SquaredError(weights, Quantise(weights, bits, 64, Quantiser::kReference), bits, 64);
    const double m = SquaredError(weights, Quantise(weights, bits, 64, Quantiser::kMse), bits, 64);
    EXPECT_LE(m, r);
    reference += r;
    mse += m;
  }
  return 1 - std::sqrt(mse / reference);
}

TEST(QuantiseMse, IsSevenPercentBetterThanTheReferenceOnNormalWeights) {
  const std::vector<std::vector<float>> tensors = {Normal(1 << 18, 0.02F, 1)};
  EXPECT_GE(Gain(tensors, SmoeBits::kQ4), 0.0705);
  EXPECT_GE(Gain(tensors, SmoeBits::kQ2), 0.0001);
}

TEST(QuantiseMse, IsSevenPercentBetterThanTheReferenceOnTheBundledModel) {
  const std::filesystem::path path =
      std::filesystem::path(SMOE_SOURCE_DIR) / "models/tiny-moe/model.safetensors";
  std::vector<std::vector<float>> tensors;
  for (auto& [name, weights] : ReadExperts(path)) {
    if (tensors.size() < 24) tensors.push_back(std::move(weights));
  }
  ASSERT_FALSE(tensors.empty());
  EXPECT_GE(Gain(tensors, SmoeBits::kQ4), 0.070);
}

TEST(QuantiseMse, IsNeverAboveTheReferenceOnAnyGroup) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::cauchy_distribution<float> heavy(0, 1);
  WithEachIsa([&] {
    for (int round = 0; round < 400; ++round) {
      const uint32_t group_size = 8U << (round % 5);
      const size_t count = group_size - static_cast<size_t>(round / 5 % 3);
      const float magnitude = std::ldexp(1.0F, round % 37 - 30);
      std::vector<float> weights(count);
      for (float& weight : weights) {
        weight = round % 2 == 0 ? uniform(generator) : heavy(generator);
        weight = std::clamp(weight * magnitude, -65504.0F, 65504.0F);
        if (round % 3 == 0) weight = F32FromBF16(BF16FromF32(weight));
        // Exactly on levels: nothing to gain, and nothing may be lost.
        if (round % 7 == 0) weight = std::round(weight / magnitude * 7.5F - 0.5F) + 0.5F;
      }
      for (SmoeBits bits : {SmoeBits::kQ2, SmoeBits::kQ4}) {
        const auto error = [&](Quantiser quantiser) {
          return SquaredError(weights, Quantise(weights, bits, group_size, quantiser), bits,
                              group_size);
        };
        ASSERT_LE(error(Quantiser::kMse), error(Quantiser::kReference)) << "round " << round;
      }
    }
  });
}

TEST(QuantiseKernels, GiveTheScalarBytesOnEveryInstructionSet) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this CPU has no AVX2";
#endif
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const size_t count = seed % 3 == 0 ? 4096 : 4096 + 7 * seed;
    std::vector<float> weights =
        Normal(count, std::ldexp(1.0F, static_cast<int>(seed % 30) - 22), seed);
    // Shapes that are hard for the search: few values, heavy tails, outliers among zeros.
    for (size_t i = 0; i < count && seed % 4 != 0; ++i) {
      float& weight = weights[i];
      if (seed % 4 == 1) weight = std::ldexp(std::round(weight * 0x1p22F / 4), -20);
      if (seed % 4 == 2) weight = std::clamp(weight * weight * weight * 1e6F, -6e4F, 6e4F);
      if (seed % 4 == 3 && i % 37 != 0) weight = 0;
    }
    for (SmoeBits bits : {SmoeBits::kQ2, SmoeBits::kQ4}) {
      for (Quantiser quantiser : {Quantiser::kReference, Quantiser::kMse}) {
        for (uint32_t group_size : {8U, 16U, 32U, 64U, 128U}) {
          setenv("SMOE_ISA", "scalar", 1);
          const Quantised scalar = Quantise(weights, bits, group_size, quantiser);
          unsetenv("SMOE_ISA");
          const Quantised best = Quantise(weights, bits, group_size, quantiser);
          ASSERT_EQ(scalar.packed, best.packed) << seed << " " << group_size;
          ASSERT_EQ(scalar.scales, best.scales) << seed << " " << group_size;
        }
      }
    }
  }
}

// Groups that are zero, nearly zero, or huge.
TEST(QuantiseSmoe, KeepsNearlyEmptyGroupsFiniteAndCloseToTheirWeights) {
  const auto one_among_zeros = [](float value) {
    std::vector<float> weights(64);
    weights[5] = value;
    return weights;
  };
  const std::vector<std::vector<float>> groups = {
      std::vector<float>(64, -0.0F), one_among_zeros(1e-38F),
      one_among_zeros(1e-45F),       std::vector<float>(64, 1e-6F),
      std::vector<float>(64, 6e-8F), std::vector<float>(64, -3e-5F),
      one_among_zeros(60000.0F),     std::vector<float>(64, 65504.0F),
      Normal(64, 1e-7F, 3),          Normal(64, 1e-39F, 4),
  };
  WithEachIsa([&] {
    for (size_t g = 0; g < groups.size(); ++g) {
      for (SmoeBits bits : {SmoeBits::kQ2, SmoeBits::kQ4}) {
        for (Quantiser quantiser : {Quantiser::kReference, Quantiser::kMse}) {
          const Quantised quantised = Quantise(groups[g], bits, 64, quantiser);
          std::vector<float> decoded(64);
          DequantiseSmoe(quantised.packed, quantised.scales, bits, 64, decoded);
          for (float value : decoded) ASSERT_TRUE(std::isfinite(value)) << "group " << g;
        }
      }
    }
  });
  // A constant group is met within half an f16 subnormal step, 2^-25.
  for (float value : {1e-6F, 6e-8F, -3e-5F}) {
    const std::vector<float> weights(64, value);
    const Quantised quantised = Quantise(weights, SmoeBits::kQ4, 64, Quantiser::kMse);
    std::vector<float> decoded(64);
    DequantiseSmoe(quantised.packed, quantised.scales, SmoeBits::kQ4, 64, decoded);
    EXPECT_NEAR(decoded[0], value, 0x1p-25F);
  }
}

TEST(QuantiseSmoe, TreatsAllZeroGroupsAsTheReferenceDoes) {
  for (Quantiser quantiser : {Quantiser::kReference, Quantiser::kMse}) {
    const std::vector<float> zeros(70, -0.0F);
    EXPECT_EQ(Scale(Quantise(zeros, SmoeBits::kQ4, 64, quantiser), 1), 0x3C00);
    EXPECT_EQ(Scale(Quantise(zeros, SmoeBits::kQ2, 64, quantiser), 1), 0x2E66);
    EXPECT_EQ(Hex(Quantise(zeros, SmoeBits::kQ4, 64, quantiser).packed).substr(62), "88888888");
  }
}

TEST(QuantiseSmoe, RefusesWeightsBeyondTheLargestScaleNamingIndexAndValue) {
  std::vector<float> weights(200, 1.0F);
  weights[130] = -65505.0F;
  std::vector<std::byte> packed(PackedBytes(200, SmoeBits::kQ4));
  std::vector<std::byte> scales(ScaleBytes(200, 64));
  const Status status = QuantiseSmoe(weights, SmoeBits::kQ4, 64, Quantiser::kMse, packed, scales);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.error().message(),
            "weight 130: -65505 is beyond 65504, the largest scale of an f16");
  weights[130] = 65504.0F;
  EXPECT_TRUE(QuantiseSmoe(weights, SmoeBits::kQ4, 64, Quantiser::kMse, packed, scales));
}

TEST(QuantiseSmoe, WritesTheGroupSizesOfTheFormatOnly) {
  for (uint32_t size : {8U, 16U, 32U, 64U, 128U}) EXPECT_TRUE(CheckGroupSize(size));
  for (uint32_t size : {0U, 1U, 7U, 24U, 256U, 1024U}) EXPECT_FALSE(CheckGroupSize(size));
}

TEST(MeasureError, CountsSquaresAndTheLargestByHand) {
  // Golden E: scale 3, codes 10, 12, 15: 1, 1.8, 3.
  const std::vector<float> weights = {1, 2, 3};
  const Quantised quantised = Quantise(weights, SmoeBits::kQ4, 64, Quantiser::kReference);
  const QuantisationError error =
      MeasureError(weights, quantised.packed, quantised.scales, SmoeBits::kQ4, 64);
  EXPECT_EQ(error.weight_count, 3U);
  EXPECT_NEAR(error.squared_error, 0.04, 1e-6);
  EXPECT_NEAR(error.error_max, 0.2, 1e-6);
  EXPECT_NEAR(error.Rmse(), std::sqrt(0.04 / 3), 1e-6);
  EXPECT_NEAR(error.SnrDb(), 10 * std::log10(14 / 0.04), 1e-4);
}

}  // namespace
}  // namespace smoe::tensor
