// One group of int8 for AVX2. Same bits as the scalar function of quantise_int8.cc, whose order of
// operations it keeps; compiled with -mavx2 and therefore free of shared inline functions.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "tensor/quantise_int8_kernels.h"

namespace smoe::tensor {
namespace {

constexpr int kVectors = 8;  // of 8 floats, in a group
constexpr uint32_t kInfinityBits = 0x7f800000U;

uint32_t LargestMagnitude(const __m256* weights) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  __m256i largest = _mm256_setzero_si256();
  for (int v = 0; v < kVectors; ++v) {
    largest = _mm256_max_epu32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign, weights[v])));
  }
  __m128i half =
      _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

// Four vectors of whole numbers as bytes, in their order.
void StoreCodes(const __m256* values, int8_t* codes) {
  const __m256i low =
      _mm256_packs_epi32(_mm256_cvttps_epi32(values[0]), _mm256_cvttps_epi32(values[1]));
  const __m256i high =
      _mm256_packs_epi32(_mm256_cvttps_epi32(values[2]), _mm256_cvttps_epi32(values[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
}

void AddSquares(const __m256* values, double* lanes) {
  __m256d low = _mm256_loadu_pd(lanes);
  __m256d high = _mm256_loadu_pd(lanes + 4);
  for (int v = 0; v < kVectors; ++v) {
    const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(values[v]));
    const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(values[v], 1));
    low = _mm256_add_pd(low, _mm256_mul_pd(first, first));
    high = _mm256_add_pd(high, _mm256_mul_pd(second, second));
  }
  _mm256_storeu_pd(lanes, low);
  _mm256_storeu_pd(lanes + 4, high);
}

}  // namespace

bool QuantiseInt8GroupAvx2(const float* weights, int8_t* codes, float* scale, Int8Errors* errors) {
  __m256 loaded[kVectors];
  for (int v = 0; v < kVectors; ++v) loaded[v] = _mm256_loadu_ps(weights + 8 * v);
  const uint32_t largest = LargestMagnitude(loaded);
  if (largest >= kInfinityBits) return false;
  const float absmax =
      _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest))));
  __m256 values[kVectors];
  if (absmax < kInt8ZeroBelow) {
    for (int v = 0; v < kVectors; ++v) values[v] = _mm256_setzero_ps();
    *scale = 0;
  } else {
    const __m256 inverse = _mm256_set1_ps(kInt8CodeMax / absmax);
    const __m256 round = _mm256_set1_ps(kInt8Round);
    for (int v = 0; v < kVectors; ++v) {
      values[v] = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(loaded[v], inverse), round), round);
    }
    const float wanted = absmax / kInt8CodeMax;
    *scale = wanted < kInt8ScaleMax ? wanted : kInt8ScaleMax;
  }
  StoreCodes(values, codes);
  StoreCodes(values + 4, codes + 32);
  const __m256 scales = _mm256_set1_ps(*scale);
  const __m256 sign = _mm256_set1_ps(-0.0F);
  __m256 distances[kVectors];
  __m256 error_max = _mm256_loadu_ps(errors->error_max);
  for (int v = 0; v < kVectors; ++v) {
    distances[v] = _mm256_sub_ps(loaded[v], _mm256_mul_ps(values[v], scales));
    error_max = _mm256_max_ps(error_max, _mm256_andnot_ps(sign, distances[v]));
  }
  _mm256_storeu_ps(errors->error_max, error_max);
  AddSquares(distances, errors->squared_error);
  AddSquares(loaded, errors->squared_value);
  return true;
}

}  // namespace smoe::tensor
#endif  // defined(__x86_64__)
