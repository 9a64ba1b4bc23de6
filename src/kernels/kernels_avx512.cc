// The table for AVX-512 F, BW, DQ, VL and VNNI. Its files are compiled with these and nothing else
// is: no inline function of a shared header may be used here, or the linker may give our copy of it
// to the whole program. tests/CMakeLists.txt looks at the symbols. The bits are those of scalar.cc.
//
// Here are the products that decoding and prefill wait for: integers of Q4, Q2 and NVFP4, and f32
// with bf16, f16 and f32 weights. The rest is taken from the AVX2 table, which gives the same bits:
// matmul_f32 of Q4, Q2 and NVFP4, integers in groups of 8 and 16, and all that works on one row of
// floats.
#include "kernels/avx2.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VNNI__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || \
    !defined(__AVX512VL__) || !defined(__AVX512VNNI__)
#error "CMakeLists.txt must give the AVX-512 files the flags of what their table claims"
#endif
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Sixteen weights, or the first of them, from the element at `at`.
struct F32 {
  static constexpr size_t kBytes = 4;
  static __m512 Load(const uint8_t* at) { return _mm512_loadu_ps(at); }
  static __m512 LoadFirst(const uint8_t* at, __mmask16 there) {
    return _mm512_maskz_loadu_ps(there, at);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static __m512 Load(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static __m512 LoadFirst(const uint8_t* at, __mmask16 there) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, at));
  }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  static __m512 Widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static __m512 Load(const uint8_t* at) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static __m512 LoadFirst(const uint8_t* at, __mmask16 there) {
    return Widen(_mm256_maskz_loadu_epi16(there, at));
  }
};

// The tree over the sixteen partial sums, one in each lane.
float SumLanes(__m512 lanes) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// kRows rows from `row` on (at the end of the range the last repeats) for kTokens tokens. One line
// of the rows behind is fetched with each line of these: the processor guesses only to the end of a
// row. A prefetch cannot fault, so the last tile needs no care.
template <class Format, size_t kRows, size_t kTokens>
void MultiplyTile(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y,
                  size_t token, size_t row) {
  constexpr size_t kLineCols = 64 / Format::kBytes;
  const size_t cols = weights.cols;
  const size_t row_count = Min(kRows, y.row_end - row);
  const size_t ahead = kRows * cols * Format::kBytes;
  const uint8_t* rows[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    rows[r] = weights.data + (row + Min(r, row_count - 1)) * cols * Format::kBytes;
  }
  const float* in[kTokens];
  for (size_t t = 0; t < kTokens; ++t) in[t] = x.data + (token + t) * x.stride;
  __m512 sums[kTokens][kRows];
  for (size_t t = 0; t < kTokens; ++t) {
    for (__m512& sum : sums[t]) sum = _mm512_setzero_ps();
  }
  size_t col = 0;
  for (; col + kLineCols <= cols; col += kLineCols) {
    for (size_t r = 0; r < kRows; ++r) {
      const auto next = reinterpret_cast<uintptr_t>(rows[r]) + col * Format::kBytes + ahead;
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
    }
    for (size_t i = col; i < col + kLineCols; i += kSumLanes) {
      __m512 values[kTokens];
      for (size_t t = 0; t < kTokens; ++t) values[t] = _mm512_loadu_ps(in[t] + i);
      for (size_t r = 0; r < kRows; ++r) {
        const __m512 w = Format::Load(rows[r] + i * Format::kBytes);
        for (size_t t = 0; t < kTokens; ++t) {
          sums[t][r] = _mm512_fmadd_ps(w, values[t], sums[t][r]);
        }
      }
    }
  }
  for (; col < cols; col += kSumLanes) {
    // Lanes that are not there keep their sums: a zero added might change the sign of one.
    const auto there = static_cast<__mmask16>((1u << Min(kSumLanes, cols - col)) - 1);
    for (size_t r = 0; r < kRows; ++r) {
      const __m512 w = Format::LoadFirst(rows[r] + col * Format::kBytes, there);
      for (size_t t = 0; t < kTokens; ++t) {
        const __m512 value = _mm512_maskz_loadu_ps(there, in[t] + col);
        sums[t][r] = _mm512_mask3_fmadd_ps(w, value, sums[t][r], there);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    float* out = y.out + (token + t) * y.out_stride + row;
    for (size_t r = 0; r < row_count; ++r) out[r] = SumLanes(sums[t][r]);
  }
}

template <class Format, size_t kRows, size_t kTokens>
void MultiplyTokens(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y,
                    size_t token) {
  for (size_t row = y.row_begin; row < y.row_end; row += kRows) {
    MultiplyTile<Format, kRows, kTokens>(weights, x, y, token, row);
  }
}

// Tokens are taken in sixes: 24 accumulators and what feeds them fill the registers. While one tile
// of rows is in the nearest cache, all tokens use it.
constexpr size_t kTokensTogether = 6;

template <class Format>
void Multiply(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y) {
  if (x.token_count == 1) return MultiplyTokens<Format, 8, 1>(weights, x, y, 0);
  constexpr size_t kRows = 4;
  for (size_t row = y.row_begin; row < y.row_end; row += kRows) {
    size_t token = 0;
    for (; token + kTokensTogether <= x.token_count; token += kTokensTogether) {
      MultiplyTile<Format, kRows, kTokensTogether>(weights, x, y, token, row);
    }
    const size_t left = x.token_count - token;
    if (left == 5) MultiplyTile<Format, kRows, 5>(weights, x, y, token, row);
    if (left == 4) MultiplyTile<Format, kRows, 4>(weights, x, y, token, row);
    if (left == 3) MultiplyTile<Format, kRows, 3>(weights, x, y, token, row);
    if (left == 2) MultiplyTile<Format, kRows, 2>(weights, x, y, token, row);
    if (left == 1) MultiplyTile<Format, kRows, 1>(weights, x, y, token, row);
  }
}

}  // namespace

void MatMulF32Avx512(const tensor::WeightView& view, const FloatRows& x, const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  switch (weights.format) {
    case WeightFormat::kF32:
      return Multiply<F32>(weights, x, y);
    case WeightFormat::kF16:
      return Multiply<F16>(weights, x, y);
    case WeightFormat::kBF16:
      return Multiply<BF16>(weights, x, y);
    case WeightFormat::kSmoeQ4:
    case WeightFormat::kSmoeQ2:
    case WeightFormat::kNvfp4:
    case WeightFormat::kInt8:
      break;
  }
  MatMulF32Avx2(view, x, y);
}

const KernelTable kAvx512Kernels = {.name = "avx512vnni",
                                    .runs_here = CpuRunsAvx512Vnni,
                                    .matmul_f32 = MatMulF32Avx512,
                                    .matmul_int8 = MatMulInt8Avx512,
                                    .quantise_row = QuantiseRowAvx2,
                                    .rms_norm = RmsNormAvx2,
                                    .silu_mul = SiluMulAvx2,
                                    .softmax = SoftmaxAvx2,
                                    .sigmoid = SigmoidAvx2,
                                    .add_scaled = AddScaledAvx2,
                                    .to_f16 = ToF16Avx2,
                                    .attend = AttendAvx512,
                                    .merge_attention = MergeAttentionAvx2};

}  // namespace smoe::kernels
#endif
