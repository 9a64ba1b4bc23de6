// One group of int8 for AVX2. Same bits as the scalar function of quantise_int8.cc, whose order of
// operations it keeps; compiled with -mavx2 and therefore free of shared inline functions.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "tensor/quantise_int8_kernels.h"

namespace smoe::tensor {
namespace {

constexpr int kHalf = 32;  // weights; a group has two halves
constexpr int kHalfVectors = kHalf / 8;
constexpr uint32_t kInfinityBits = 0x7f800000U;

uint32_t LargestMagnitude(const float* weights) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 2 * kHalf; i += 8) {
    const __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(weights + i));
    largest = _mm256_max_epu32(largest, _mm256_castps_si256(magnitude));
  }
  __m128i half =
      _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

// The lanes of Int8Errors in registers.
struct Sums {
  __m256d error[2];
  __m256d value[2];
  __m256 error_max;
};

void AddSquares(__m256 values, __m256d* sums) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
  sums[0] = _mm256_add_pd(sums[0], _mm256_mul_pd(low, low));
  sums[1] = _mm256_add_pd(sums[1], _mm256_mul_pd(high, high));
}

// 32 weights to codes. `inverse` 0: all codes are 0.
void QuantiseHalf(const float* weights, __m256 inverse, __m256 scale, int8_t* codes, Sums* sums) {
  const __m256 round = _mm256_set1_ps(kInt8Round);
  const __m256 sign = _mm256_set1_ps(-0.0F);
  __m256i whole[kHalfVectors];
  for (int v = 0; v < kHalfVectors; ++v) {
    const __m256 weight = _mm256_loadu_ps(weights + 8 * v);
    const __m256 code = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(weight, inverse), round), round);
    const __m256 distance = _mm256_sub_ps(weight, _mm256_mul_ps(code, scale));
    whole[v] = _mm256_cvttps_epi32(code);
    sums->error_max = _mm256_max_ps(sums->error_max, _mm256_andnot_ps(sign, distance));
    AddSquares(distance, sums->error);
    AddSquares(weight, sums->value);
  }
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]);
  const __m256i high = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(codes)), bytes);
}

}  // namespace

bool QuantiseInt8GroupAvx2(const float* weights, int8_t* codes, float* scale, Int8Errors* errors) {
  const uint32_t largest = LargestMagnitude(weights);
  if (largest >= kInfinityBits) return false;
  const float absmax =
      _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest))));
  float inverse = 0;
  *scale = 0;
  if (absmax >= kInt8ZeroBelow) {
    inverse = kInt8CodeMax / absmax;
    const float wanted = absmax / kInt8CodeMax;
    *scale = wanted < kInt8ScaleMax ? wanted : kInt8ScaleMax;
  }
  Sums sums = {{_mm256_loadu_pd(errors->squared_error), _mm256_loadu_pd(errors->squared_error + 4)},
               {_mm256_loadu_pd(errors->squared_value), _mm256_loadu_pd(errors->squared_value + 4)},
               _mm256_loadu_ps(errors->error_max)};
  for (int first = 0; first < 2 * kHalf; first += kHalf) {
    QuantiseHalf(weights + first, _mm256_set1_ps(inverse), _mm256_set1_ps(*scale), codes + first,
                 &sums);
  }
  _mm256_storeu_pd(errors->squared_error, sums.error[0]);
  _mm256_storeu_pd(errors->squared_error + 4, sums.error[1]);
  _mm256_storeu_pd(errors->squared_value, sums.value[0]);
  _mm256_storeu_pd(errors->squared_value + 4, sums.value[1]);
  _mm256_storeu_ps(errors->error_max, sums.error_max);
  return true;
}

}  // namespace smoe::tensor
#endif  // defined(__x86_64__)
