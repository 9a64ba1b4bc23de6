// The NVFP4 quantiser's loop on AVX2, to the bit as quantise_nvfp4_scalar.cc has it.
//
// Block scales are searched eight at a time, one to a lane, so that nothing is added across lanes;
// the ninth, amax's own, is measured with its weights in lanes.
#include "tensor/nvfp4_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::tensor {
namespace {

constexpr uint32_t kBlock = 16;
constexpr float kNormalMin = 0x1p-126F;

struct Block {
  __m256 low;  // weights 0 to 7
  __m256 high;
};

__m256 Abs(__m256 value) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), value); }

__m256 LevelOf(__m256 steps) {
  const __m256 inside = _mm256_min_ps(steps, _mm256_set1_ps(6.0F));
  const __m256 exponent = _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000));
  const __m256 octave = _mm256_and_ps(_mm256_max_ps(inside, _mm256_set1_ps(1.0F)), exponent);
  const __m256 rounder = _mm256_mul_ps(octave, _mm256_set1_ps(0x1p22F));
  return _mm256_sub_ps(_mm256_add_ps(inside, rounder), rounder);
}

float LargestOf(__m256 low, __m256 high) {
  const __m256 eight = _mm256_max_ps(low, high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

__m256 Square(__m256 value) { return _mm256_mul_ps(value, value); }

// Of amax's scale code; weights in lanes.
float BaseError(__m256 low, __m256 high, float scale, float scale2, bool as_zeros) {
  const __m256 inverse = _mm256_set1_ps(1.0F / (scale * scale2));
  __m256 low_steps = _mm256_mul_ps(low, inverse);
  __m256 high_steps = _mm256_mul_ps(high, inverse);
  if (!as_zeros) {
    low_steps = _mm256_sub_ps(low_steps, LevelOf(low_steps));
    high_steps = _mm256_sub_ps(high_steps, LevelOf(high_steps));
  }
  float l[kSumLanes];
  _mm256_storeu_ps(l, _mm256_add_ps(Square(low_steps), Square(high_steps)));
  return (((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))) * (scale * scale);
}

// Of eight scales, one to a lane. Scales that do not exist (0 or NaN) give NaN.
__m256 ErrorsOf(const float* magnitudes, __m256 scales, float scale2) {
  const __m256 inverse =
      _mm256_div_ps(_mm256_set1_ps(1.0F), _mm256_mul_ps(scales, _mm256_set1_ps(scale2)));
  __m256 l[kSumLanes];
  for (uint32_t i = 0; i < kBlock; ++i) {
    const __m256 steps = _mm256_mul_ps(_mm256_broadcast_ss(magnitudes + i), inverse);
    const __m256 squared = Square(_mm256_sub_ps(steps, LevelOf(steps)));
    l[i % kSumLanes] = i < kSumLanes ? squared : _mm256_add_ps(l[i % kSumLanes], squared);
  }
  const __m256 first = _mm256_add_ps(_mm256_add_ps(l[0], l[1]), _mm256_add_ps(l[2], l[3]));
  const __m256 second = _mm256_add_ps(_mm256_add_ps(l[4], l[5]), _mm256_add_ps(l[6], l[7]));
  return _mm256_mul_ps(_mm256_add_ps(first, second), _mm256_mul_ps(scales, scales));
}

uint32_t SearchScale(const float* weights, __m256 low, __m256 high, uint32_t base, float scale2,
                     const Nvfp4Tables& tables) {
  const uint32_t lowest = base > kNvfp4StepsBelow ? base - kNvfp4StepsBelow : 1;
  if (tables.e4m3[lowest] * scale2 < kNormalMin) return base;
  const float unit = tables.e4m3[base == 0 ? 1 : base];
  const float base_error = BaseError(low, high, unit, scale2, base == 0);
  float magnitudes[kBlock];
  _mm256_storeu_ps(magnitudes, low);
  _mm256_storeu_ps(magnitudes + 8, high);
  // Steps -1 to 6, and -2 in the place of 0.
  const float* at = tables.padded_e4m3 + kE4M3PadBefore + base;
  const __m256 neighbours = _mm256_loadu_ps(at - 1);
  const __m256 scales = _mm256_blend_ps(neighbours, _mm256_broadcast_ss(at - 2), 2);
  float errors[8];
  _mm256_storeu_ps(errors, ErrorsOf(magnitudes, scales, scale2));
  float best_error = base_error;
  int best_step = 0;
  const auto look_at = [&](int step, float error) {
    if (!(error < best_error)) return;
    best_error = error;
    best_step = step;
  };
  look_at(-2, errors[1]);
  look_at(-1, errors[0]);
  for (int step = 1; step <= kNvfp4StepsAbove; ++step) look_at(step, errors[step + 1]);
  if (best_step == 0) return base;
  const uint32_t best = static_cast<uint32_t>(static_cast<int>(base) + best_step);
  const bool is_clear =
      base_error > kNvfp4ClearError * (unit * unit) && best_error < base_error * kNvfp4ClearGain;
  if (is_clear) return best;
  const double exact = Nvfp4BlockError(weights, best, scale2, tables);
  return exact < Nvfp4BlockError(weights, base, scale2, tables) ? best : base;
}

// Sums in registers: lanes 0 to 3 and 4 to 7.
struct Sums {
  __m256d error[2];
  __m256d value[2];
  __m256 error_max;
};

void AddHalf(__m128 weights, __m128 values, int lanes, Sums* sums) {
  const __m256d weight = _mm256_cvtps_pd(weights);
  const __m256d distance = _mm256_sub_pd(weight, _mm256_cvtps_pd(values));
  sums->error[lanes] = _mm256_add_pd(sums->error[lanes], _mm256_mul_pd(distance, distance));
  sums->value[lanes] = _mm256_add_pd(sums->value[lanes], _mm256_mul_pd(weight, weight));
}

void AddSums(__m256 weights, __m256 values, Sums* sums) {
  AddHalf(_mm256_castps256_ps128(weights), _mm256_castps256_ps128(values), 0, sums);
  AddHalf(_mm256_extractf128_ps(weights, 1), _mm256_extractf128_ps(values, 1), 1, sums);
  sums->error_max = _mm256_max_ps(sums->error_max, Abs(_mm256_sub_ps(weights, values)));
}

// Codes with signs, one in 32 bits, of levels with signs.
__m256i CodesOf(__m256 levels) {
  // Of twice the level: 0, 1, 2, 3, 4, 6, 8, 12.
  const __m256i code_of_twice = _mm256_setr_epi8(0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0,
                                                 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0);
  const __m256 magnitudes = Abs(levels);
  const __m256i twice = _mm256_cvttps_epi32(_mm256_add_ps(magnitudes, magnitudes));
  const __m256i signs = _mm256_srli_epi32(_mm256_castps_si256(levels), 31);
  return _mm256_or_si256(_mm256_shuffle_epi8(code_of_twice, twice), _mm256_slli_epi32(signs, 3));
}

void StoreCodes(__m256i low, __m256i high, std::byte* packed) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(packed), _mm_packus_epi16(pairs, pairs));
}

// The nearest levels with the signs of the weights.
__m256 SignedLevels(__m256 weights, float scale) {
  if (scale == 0) return _mm256_setzero_ps();
  const __m256 steps = _mm256_div_ps(weights, _mm256_set1_ps(scale));
  const __m256 signs = _mm256_and_ps(steps, _mm256_set1_ps(-0.0F));
  return _mm256_or_ps(LevelOf(Abs(steps)), signs);
}

void QuantiseBlock(const Block& block, float block_scale, float scale2, std::byte* packed,
                   Sums* sums) {
  const auto decode = [&](__m256 levels) {
    return _mm256_mul_ps(_mm256_mul_ps(levels, _mm256_set1_ps(block_scale)),
                         _mm256_set1_ps(scale2));
  };
  const float scale = block_scale * scale2;
  const __m256 low = SignedLevels(block.low, scale);
  const __m256 high = SignedLevels(block.high, scale);
  StoreCodes(CodesOf(low), CodesOf(high), packed);
  AddSums(block.low, decode(low), sums);
  AddSums(block.high, decode(high), sums);
}

void Quantise(const float* weights, uint64_t block_count, float scale2, bool searches,
              const Nvfp4Tables& tables, std::byte* packed, std::byte* scales, Nvfp4Sums* total) {
  Sums sums = {{_mm256_loadu_pd(total->squared_error), _mm256_loadu_pd(total->squared_error + 4)},
               {_mm256_loadu_pd(total->squared_value), _mm256_loadu_pd(total->squared_value + 4)},
               _mm256_set1_ps(total->error_max)};
  for (uint64_t i = 0; i < block_count; ++i, weights += kBlock) {
    const Block block = {_mm256_loadu_ps(weights), _mm256_loadu_ps(weights + 8)};
    const __m256 low = Abs(block.low);
    const __m256 high = Abs(block.high);
    uint32_t code = E4M3CodeOf(LargestOf(low, high) / 6.0F / scale2);
    if (searches) code = SearchScale(weights, low, high, code, scale2, tables);
    scales[i] = static_cast<std::byte>(code);
    QuantiseBlock(block, tables.e4m3[code], scale2, packed + i * (kBlock / 2), &sums);
  }
  _mm256_storeu_pd(total->squared_error, sums.error[0]);
  _mm256_storeu_pd(total->squared_error + 4, sums.error[1]);
  _mm256_storeu_pd(total->squared_value, sums.value[0]);
  _mm256_storeu_pd(total->squared_value + 4, sums.value[1]);
  total->error_max = LargestOf(sums.error_max, sums.error_max);
}

}  // namespace

const Nvfp4Kernels kNvfp4Avx2 = {"avx2", Quantise};

}  // namespace smoe::tensor
#endif
