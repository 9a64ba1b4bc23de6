// The definition of the NVFP4 quantiser's loop. Kept in step with quantise_avx2_nvfp4.cc by
// quantise_nvfp4_test.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor/nvfp4_kernels.h"

namespace smoe::tensor {
namespace {

constexpr uint32_t kBlock = 16;
constexpr float kLevelMax = 6.0F;

// The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, half to the level whose code is even. In each octave
// the levels are equally spaced, and adding a power of two with that spacing rounds to them.
float LevelOf(float steps) {
  const float inside = std::min(steps, kLevelMax);
  const float octave =
      std::bit_cast<float>(std::bit_cast<uint32_t>(std::max(inside, 1.0F)) & 0x7F800000U);
  const float rounder = octave * 0x1p22F;
  return (inside + rounder) - rounder;
}

// The code of a level: its exponent and its one bit of mantissa, rebiased.
uint32_t CodeOf(float level) {
  if (level < 1.0F) return level == 0 ? 0 : 1;
  return (std::bit_cast<uint32_t>(level) >> 22) - (126U << 1);
}

float AddLanes(const float* l) {
  return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}

float LargestOf(const float* weights) {
  float largest = 0;
  for (uint32_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(weights[i]));
  return largest;
}

// Squared error under a scale, in units of scale2. With `as_zeros` all codes are 0.
float SearchError(const float* weights, float scale, float scale2, bool as_zeros) {
  const float inverse = 1.0F / (scale * scale2);
  float lanes[kSumLanes] = {};
  for (uint32_t i = 0; i < kBlock; ++i) {
    const float steps = std::fabs(weights[i]) * inverse;
    const float distance = steps - (as_zeros ? 0.0F : LevelOf(steps));
    lanes[i % kSumLanes] += distance * distance;
  }
  return AddLanes(lanes) * (scale * scale);
}

uint32_t SearchScale(const float* weights, uint32_t base, float scale2, const Nvfp4Tables& tables) {
  const auto lowest = static_cast<uint32_t>(std::max(static_cast<int>(base) - kNvfp4StepsBelow, 1));
  const uint32_t highest = std::min(base + kNvfp4StepsAbove, kE4M3CodeMax);
  // Below, an inverse might be infinite.
  if (tables.e4m3[lowest] * scale2 < std::numeric_limits<float>::min()) return base;
  const float base_error = SearchError(weights, tables.e4m3[std::max(base, 1U)], scale2, base == 0);
  uint32_t best = base;
  float best_error = base_error;
  for (uint32_t code = lowest; code <= highest; ++code) {
    if (code == base) continue;
    const float error = SearchError(weights, tables.e4m3[code], scale2, false);
    if (!(error < best_error)) continue;
    best = code;
    best_error = error;
  }
  if (best == base) return base;
  const float unit = tables.e4m3[std::max(base, 1U)];
  const bool is_clear =
      base_error > kNvfp4ClearError * (unit * unit) && best_error < base_error * kNvfp4ClearGain;
  if (is_clear) return best;
  const double exact = Nvfp4BlockError(weights, best, scale2, tables);
  return exact < Nvfp4BlockError(weights, base, scale2, tables) ? best : base;
}

// The code of a weight with its sign. `scale`: block scale times scale2, not 0.
uint32_t SignedCode(float weight, float scale) {
  const float steps = weight / scale;
  return CodeOf(LevelOf(std::fabs(steps))) | (std::signbit(steps) ? 8U : 0U);
}

float Decode(uint32_t code, uint32_t scale_code, float scale2, const Nvfp4Tables& tables) {
  return tables.e2m1[code] * tables.e4m3[scale_code] * scale2;
}

void QuantiseBlock(const float* weights, uint32_t scale_code, float scale2,
                   const Nvfp4Tables& tables, std::byte* packed, Nvfp4Sums* sums) {
  const float scale = tables.e4m3[scale_code] * scale2;
  uint32_t codes[kBlock] = {};
  for (uint32_t i = 0; i < kBlock; ++i) {
    if (scale != 0) codes[i] = SignedCode(weights[i], scale);
    const float value = Decode(codes[i], scale_code, scale2, tables);
    const double distance = double{weights[i]} - double{value};
    sums->squared_error[i % kSumLanes] += distance * distance;
    sums->squared_value[i % kSumLanes] += double{weights[i]} * double{weights[i]};
    sums->error_max = std::max(sums->error_max, std::fabs(weights[i] - value));
  }
  for (uint32_t i = 0; i < kBlock; i += 2) {
    packed[i / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
  }
}

void Quantise(const float* weights, uint64_t block_count, float scale2, bool searches,
              const Nvfp4Tables& tables, std::byte* packed, std::byte* scales, Nvfp4Sums* sums) {
  for (uint64_t block = 0; block < block_count; ++block, weights += kBlock) {
    uint32_t code = E4M3CodeOf(LargestOf(weights) / kLevelMax / scale2);
    if (searches) code = SearchScale(weights, code, scale2, tables);
    scales[block] = static_cast<std::byte>(code);
    QuantiseBlock(weights, code, scale2, tables, packed + block * (kBlock / 2), sums);
  }
}

}  // namespace

uint8_t E4M3CodeOf(float value) {
  // Below 2^-6 the step is 2^-9, as it is from 2^14 on: there an addition rounds for us.
  constexpr float kNormalMin = 0x1p-6F;
  constexpr float kRounder = 0x1p14F;
  if (value < kNormalMin) {
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(value + kRounder) -
                                std::bit_cast<uint32_t>(kRounder));
  }
  if (value >= 448.0F) return kE4M3CodeMax;
  const auto bits = std::bit_cast<uint32_t>(value) - (120U << 23);
  return static_cast<uint8_t>((bits + 0x7FFFFU + ((bits >> 20) & 1U)) >> 20);
}

double Nvfp4BlockError(const float* weights, uint32_t scale_code, float scale2,
                       const Nvfp4Tables& tables) {
  std::byte packed[kBlock / 2];
  Nvfp4Sums sums = {};
  QuantiseBlock(weights, scale_code, scale2, tables, packed, &sums);
  const double* l = sums.squared_error;
  return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}

const Nvfp4Kernels kNvfp4Scalar = {"scalar", Quantise};

}  // namespace smoe::tensor
