// Compiled for AVX-512 like kernels_avx512.cc: what it says about inline functions holds here too.
#include "kernels/attention_tiles.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VNNI__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

namespace smoe::kernels {

namespace {

struct Avx512 {
  using Vector = __m512;
  using Register = __m512;
  static constexpr size_t kLanes = 16;
  // Sixteen sums, two keys and the query's element: half of the registers, and enough multiply-adds
  // in flight.
  static constexpr size_t kQueries = 8;
  static constexpr size_t Wide(size_t /*queries*/) { return 2; }

  static __m512 Set(float x) { return _mm512_set1_ps(x); }
  static __m512 SetRegister(float x) { return Set(x); }
  static __m512 LoadRegister(const float* at) { return LoadFloats(at); }
  static float First(__m512 x) { return _mm512_cvtss_f32(x); }
  static __m512 LoadFloats(const float* at) { return _mm512_loadu_ps(at); }
  static __m512 LoadF32(const uint8_t* at) { return _mm512_loadu_ps(at); }
  static __m512 LoadF16(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static __m512 LoadInt8(const uint8_t* at) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
  static __m512 LoadBf16(const uint8_t* at) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void Store(float* at, __m512 x) { _mm512_storeu_ps(at, x); }
  static constexpr bool kFetchesBetween = true;
  [[gnu::always_inline]] static void Prefetch(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
  static __m512 Fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512 Add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static __m512 Sub(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
  static __m512 Mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 Div(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
  static __m512 Min(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
  static __m512 Max(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }

  // Rounded once, where the result is subnormal: as two factors do of which the first is exact.
  static __m512 TimesPowerOfTwo(__m512 x, __m512 n) { return _mm512_scalef_ps(x, n); }

  static __m256 HighHalf(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }

  static float MaxLanes(__m512 x) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), HighHalf(x));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }

  // The tree of kernels.h.
  static float SumLanes(__m512 x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), HighHalf(x));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace

void AttendAvx512(const AttentionJob& job) { AttendWith<Avx512>(job); }

}  // namespace smoe::kernels
#endif
