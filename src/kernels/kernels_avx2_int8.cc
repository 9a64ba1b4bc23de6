// Integer products for few tokens, the scales of rows, and activations made integers;
// kernels_avx2.cc says what holds for all of the table.
#include "kernels/avx2.h"
#include "kernels/int8_rows_256.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

// The scales of eight groups of eight rows, a row per lane: out[i] holds group i. rows[i] points at
// row i's first.
[[gnu::always_inline]] inline void TransposeScales(const uint8_t* const* rows, size_t group,
                                                   __m128i* out) {
  __m128i r[8];
  __m128i t[8];
  for (size_t i = 0; i < 8; ++i) r[i] = Load128(rows[i] + group * 2);
  for (size_t i = 0; i < 4; ++i) {
    t[i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
    t[i + 4] = _mm_unpackhi_epi16(r[i], r[i + 4]);
  }
  for (size_t i = 0; i < 8; i += 4) {
    r[i] = _mm_unpacklo_epi16(t[i], t[i + 2]);
    r[i + 1] = _mm_unpackhi_epi16(t[i], t[i + 2]);
    r[i + 2] = _mm_unpacklo_epi16(t[i + 1], t[i + 3]);
    r[i + 3] = _mm_unpackhi_epi16(t[i + 1], t[i + 3]);
  }
  // r[0], r[1]: groups 0..3 of rows 0, 2, 4, 6; r[2], r[3]: of rows 1, 3, 5, 7; r[4..7]:
  // groups 4..7.
  for (size_t i = 0; i < 8; i += 4) {
    out[i] = _mm_unpacklo_epi16(r[i], r[i + 2]);
    out[i + 1] = _mm_unpackhi_epi16(r[i], r[i + 2]);
    out[i + 2] = _mm_unpacklo_epi16(r[i + 1], r[i + 3]);
    out[i + 3] = _mm_unpackhi_epi16(r[i + 1], r[i + 3]);
  }
}

void StoreScales(__m128i scales, ScaleBits* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(*out), scales);
}

// Stores eight codes for each of the eight registers' floats.
void StoreCodes(const __m256* values, int8_t* codes) {
  __m256i words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = _mm256_packs_epi32(_mm256_cvtps_epi32(values[2 * i]),
                                  _mm256_cvtps_epi32(values[2 * i + 1]));
  }
  // Packing goes by 128-bit halves: each result holds the dwords 0 2 4 6 of the first half's
  // registers and 1 3 5 7, in this order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = _mm256_packs_epi16(words[2 * i], words[2 * i + 1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 32 * i),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
}

bool QuantiseBlock(const float* x, int8_t* codes, float* scale) {
  __m256 values[8];
  __m256i magnitude_max = _mm256_setzero_si256();
  for (size_t i = 0; i < 8; ++i) {
    values[i] = _mm256_loadu_ps(x + 8 * i);
    const __m256i magnitude =
        _mm256_and_si256(_mm256_castps_si256(values[i]), _mm256_set1_epi32(0x7fffffff));
    magnitude_max = _mm256_max_epi32(magnitude_max, magnitude);
  }
  __m128i max = _mm_max_epi32(_mm256_castsi256_si128(magnitude_max),
                              _mm256_extracti128_si256(magnitude_max, 1));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4e));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0xb1));
  if (_mm_cvtsi128_si32(max) >= 0x7f800000) return false;
  const float absmax = _mm_cvtss_f32(_mm_castsi128_ps(max));
  const bool is_zero = absmax < kQuantiseMin;
  *scale = is_zero ? 0 : absmax / 127;
  const __m256 inverse = _mm256_set1_ps(is_zero ? 0 : 127 / absmax);
  for (__m256& value : values) value = _mm256_mul_ps(value, inverse);
  StoreCodes(values, codes);
  return true;
}

}  // namespace

IntTile MakeTile(const PlainWeights& weights, size_t row, size_t row_end) {
  const size_t codes_per_byte = weights.format == WeightFormat::kSmoeQ4 ? 2 : 4;
  IntTile tile;
  tile.row_count = Min(kIntRows, row_end - row);
  for (size_t i = 0; i < kIntRows; ++i) {
    tile.row[i] = row + Min(i, tile.row_count - 1);
    tile.codes[i] = weights.data + tile.row[i] * weights.cols / codes_per_byte;
  }
  return tile;
}

void DecodeScaleBitsAvx2(const PlainWeights& weights, const IntTile& tile, size_t piece_cols,
                         size_t first, size_t count, ScaleBits* out) {
  const size_t repeat = weights.group_size / piece_cols;  // pieces that share a group
  const size_t last_group = (first + count - 1) / repeat;
  size_t group = first / repeat;
  if (weights.cols % weights.group_size != 0 || last_group - group + 1 < 8) {
    for (size_t i = 0; i < kIntRows; ++i) {
      for (size_t piece = first; piece < first + count; ++piece) {
        const uint64_t flat = tile.row[i] * weights.cols + piece * piece_cols;
        __builtin_memcpy(&out[piece - first][i], weights.scales + flat / weights.group_size * 2,
                         sizeof(uint16_t));
      }
    }
    return;
  }
  const size_t stride = weights.cols / weights.group_size * 2;
  const uint8_t* rows[kIntRows];
  for (size_t i = 0; i < kIntRows; ++i) rows[i] = weights.scales + tile.row[i] * stride;
  while (group <= last_group) {
    group = Min(group, last_group - 7);  // the last eight may overlap those before
    __m128i scales[8];
    TransposeScales(rows, group, scales);
    if (repeat == 1) {
      for (size_t i = 0; i < 8; ++i, ++group) StoreScales(scales[i], out + group - first);
      continue;
    }
    for (size_t i = 0; i < 8; ++i, ++group) {
      size_t piece = group * repeat;
      const size_t end = Min(piece + repeat, first + count);
      if (piece < first) piece = first;
      for (; piece < end; ++piece) StoreScales(scales[i], out + piece - first);
    }
  }
}

void DecodeScalesAvx2(const PlainWeights& weights, const IntTile& tile, size_t piece_cols,
                      size_t first, size_t count, float* out) {
  const __m256 unit = _mm256_set1_ps(weights.format == WeightFormat::kSmoeQ4 ? kQ4Unit : kQ2Unit);
  constexpr size_t kTogether = 64;
  ScaleBits bits[kTogether];
  for (size_t done = 0; done < count; done += kTogether) {
    const size_t together = Min(kTogether, count - done);
    DecodeScaleBitsAvx2(weights, tile, piece_cols, first + done, together, bits);
    for (size_t i = 0; i < together; ++i) {
      _mm256_store_ps(out + (done + i) * kIntRows,
                      _mm256_mul_ps(_mm256_cvtph_ps(Load128(bits[i])), unit));
    }
  }
}

// Rows of whole blocks, and groups of 8 (Q4), 16, 32, or any multiple of 64; the rest is rare and
// left to the scalar code.
void MatMulInt8Avx2(const tensor::WeightView& view, const QuantisedRows& x, const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (weights.format == WeightFormat::kNvfp4) {
    if (weights.rows < kNvfp4IntRowsMin) return MatMulInt8Scalar(view, x, y);
    return MatMulInt8Nvfp4Avx2(weights, x, y);
  }
  if (weights.format == WeightFormat::kInt8) return MatMulInt8TilesAvx2(weights, x, y);
  if (!HasInt8Shape(weights)) return MatMulInt8Scalar(view, x, y);
  if (x.token_count > kRowTokensMax) return MatMulInt8BatchAvx2(weights, x, y);
  if (!MatMulFewTokens(weights, x, y)) MatMulInt8BatchAvx2(weights, x, y);
}

bool QuantiseRowAvx2(const float* x, size_t cols, int8_t* codes, float* scales) {
  size_t col = 0;
  for (; col + kActivationBlock <= cols; col += kActivationBlock) {
    if (!QuantiseBlock(x + col, codes + col, scales + col / kActivationBlock)) return false;
  }
  if (col == cols) return true;
  float padded[kActivationBlock] = {};
  __builtin_memcpy(padded, x + col, (cols - col) * sizeof(float));
  return QuantiseBlock(padded, codes + col, scales + col / kActivationBlock);
}

}  // namespace smoe::kernels
#endif
