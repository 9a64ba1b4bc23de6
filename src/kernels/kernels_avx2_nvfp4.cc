// NVFP4 matrices, read as records hold them; kernels_avx2.cc says what holds for all of the table.
#include "kernels/int8_nvfp4_256.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
namespace smoe::kernels {

namespace {

constexpr size_t kFloatRows = kNvfp4FloatRowsMin;
constexpr size_t kStretchCols = 256;  // columns decoded at once: 8 KiB

// Columns [col, col + count) of kFloatRows rows: out[column][row].
void DecodeColumns(const PlainWeights& weights, size_t row, size_t col, size_t count,
                   float (*out)[kFloatRows]) {
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256 scale2 = _mm256_set1_ps(weights.scale2);
  __m256 scale = _mm256_setzero_ps();
  for (size_t i = 0; i < count; i += 2) {
    if (i % kGroupCols == 0) {
      const uint8_t* at = weights.scales + (col + i) / kGroupCols * weights.rows + row;
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
      const __m256i halves = HalvesFromE4M3(_mm256_cvtepi8_epi16(bytes));
      const __m256 small = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      scale = _mm256_mul_ps(small, _mm256_set1_ps(1 / kNvfp4ScaleUnit));
    }
    const uint8_t* at = weights.data + (col + i) / 2 * weights.rows + row;
    const __m256i bytes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    const __m256i codes[2] = {bytes, _mm256_srli_epi32(bytes, 4)};
    for (size_t k = 0; k < 2; ++k) {
      const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, codes[k]);
      const __m256i minus = _mm256_and_si256(_mm256_slli_epi32(codes[k], 28), sign);
      const __m256 value = _mm256_xor_ps(magnitude, _mm256_castsi256_ps(minus));
      _mm256_storeu_ps(out[i + k], _mm256_mul_ps(_mm256_mul_ps(value, scale), scale2));
    }
  }
}

// lanes[kSumLanes][row] += decoded columns * x, partial sum by partial sum.
void AddColumns(const float (*columns)[kFloatRows], const float* x, size_t count,
                float (*lanes)[kFloatRows]) {
  constexpr size_t kTogether = 8;  // accumulators that hide the latency of the multiply-add
  for (size_t first = 0; first < kSumLanes; first += kTogether) {
    __m256 sums[kTogether];
    for (size_t i = 0; i < kTogether; ++i) sums[i] = _mm256_loadu_ps(lanes[first + i]);
    for (size_t col = first; col < count; col += kSumLanes) {
      for (size_t i = 0; i < kTogether; ++i) {
        sums[i] =
            _mm256_fmadd_ps(_mm256_loadu_ps(columns[col + i]), _mm256_set1_ps(x[col + i]), sums[i]);
      }
    }
    for (size_t i = 0; i < kTogether; ++i) _mm256_storeu_ps(lanes[first + i], sums[i]);
  }
}

// The tree of kernels.h, a row in each lane.
__m256 SumLanes(const float (*lanes)[kFloatRows]) {
  __m256 sums[kSumLanes];
  for (size_t i = 0; i < kSumLanes; ++i) sums[i] = _mm256_loadu_ps(lanes[i]);
  for (size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] = _mm256_add_ps(sums[i], sums[i + width]);
  }
  return sums[0];
}

}  // namespace

void MatMulInt8Nvfp4Avx2(const PlainWeights& weights, const QuantisedRows& x,
                         const MatMulRange& y) {
  MatMulInt8Nvfp4(weights, x, y);
}

void MatMulF32Nvfp4Avx2(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y) {
  float columns[kStretchCols][kFloatRows];
  float lanes[kTokenBatch][kSumLanes][kFloatRows];
  for (size_t row = y.row_begin; row < y.row_end; row += kFloatRows) {
    const size_t row_count = Min(kFloatRows, y.row_end - row);
    const size_t tile_row = Min(row, weights.rows - kFloatRows);
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      const size_t batch = Min(kTokenBatch, x.token_count - token);
      __builtin_memset(lanes, 0, sizeof(lanes[0]) * batch);
      for (size_t col = 0; col < weights.cols; col += kStretchCols) {
        const size_t count = Min(kStretchCols, weights.cols - col);
        DecodeColumns(weights, tile_row, col, count, columns);
        for (size_t t = 0; t < batch; ++t) {
          AddColumns(columns, x.data + (token + t) * x.stride + col, count, lanes[t]);
        }
      }
      for (size_t t = 0; t < batch; ++t) {
        float sums[kFloatRows];
        _mm256_storeu_ps(sums, SumLanes(lanes[t]));
        __builtin_memcpy(y.out + (token + t) * y.out_stride + row, sums + (row - tile_row),
                         row_count * sizeof(float));
      }
    }
  }
}

}  // namespace smoe::kernels
#endif
