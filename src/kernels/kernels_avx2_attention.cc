// Compiled for AVX2 like kernels_avx2.cc: what it says about inline functions holds here too.
#include "kernels/attention_tiles.h"
#include "kernels/avx2.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

namespace smoe::kernels {

namespace {

// Sixteen floats in two registers.
struct Pair {
  __m256 low;
  __m256 high;
};

struct Avx2 {
  using Vector = Pair;
  using Register = __m256;
  static constexpr size_t kLanes = 8;
  // Eight sums, as many as a multiply-add's latency wants in flight. With eight queries a register
  // of keys is converted once for all.
  static constexpr size_t kQueries = 8;
  static constexpr size_t Wide(size_t queries) { return queries == 8 ? 1 : 2; }

  static Pair Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static float First(Pair x) { return _mm256_cvtss_f32(x.low); }
  static Pair LoadFloats(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
  static void Store(float* at, Pair x) {
    _mm256_storeu_ps(at, x.low);
    _mm256_storeu_ps(at + 8, x.high);
  }

  static __m256 SetRegister(float x) { return _mm256_set1_ps(x); }
  static __m256 LoadRegister(const float* at) { return _mm256_loadu_ps(at); }
  static __m128i Load128(const uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m256 LoadF32(const uint8_t* at) {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static __m256 LoadF16(const uint8_t* at) { return _mm256_cvtph_ps(Load128(at)); }
  static __m256 LoadInt8(const uint8_t* at) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  }
  static __m256 LoadBf16(const uint8_t* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load128(at)), 16));
  }
  static void Store(float* at, __m256 x) { _mm256_storeu_ps(at, x); }
  static __m256 Fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256 Mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }

  static constexpr bool kFetchesBetween = false;
  [[gnu::always_inline]] static void Prefetch(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
  static Pair Fma(Pair a, Pair b, Pair c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Pair Add(Pair a, Pair b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Pair Sub(Pair a, Pair b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static Pair Mul(Pair a, Pair b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Pair Div(Pair a, Pair b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  static Pair Min(Pair a, Pair b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Pair Max(Pair a, Pair b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }

  // x * 2^n in two factors, both normal; only the second multiplication can round.
  static __m256 TimesPowerOfTwo(__m256 x, __m256 n) {
    const __m256i exponent = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(exponent, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
  }
  static Pair TimesPowerOfTwo(Pair x, Pair n) {
    return {TimesPowerOfTwo(x.low, n.low), TimesPowerOfTwo(x.high, n.high)};
  }

  static float MaxLanes(Pair x) {
    const __m256 eight = _mm256_max_ps(x.low, x.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }

  // The tree of kernels.h.
  static float SumLanes(Pair x) {
    const __m256 eight = _mm256_add_ps(x.low, x.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace

void AttendAvx2(const AttentionJob& job) { AttendWith<Avx2>(job); }

void MergeAttentionAvx2(const AttentionParts& parts, size_t head_dim, float* out) {
  MergeAttentionWith<Avx2>(parts, head_dim, out);
}

void ToF16Avx2(const float* x, size_t count, uint16_t* out) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bits);
  }
  for (; i < count; ++i) {
    const __m128i bits = _mm_cvtps_ph(_mm_set_ss(x[i]), _MM_FROUND_TO_NEAREST_INT);
    out[i] = static_cast<uint16_t>(_mm_extract_epi16(bits, 0));
  }
}

}  // namespace smoe::kernels
#endif
