// Integer products for many tokens; kernels_avx512.cc says what holds for all of the table.
//
// Sixteen rows are transposed, 32 bits at a time, and then split into codes: a quad, 64 bytes,
// holds four codes of each row, doubled so that a dpbusd adds 2 code * x. The columns of a quad are
// those that share a place in the bytes (the even or the odd ones of eight for Q4, every fourth of
// sixteen for Q2); activations are put into the same order once.
#include "kernels/avx2.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

constexpr size_t kQuadCols = 4;
constexpr size_t kStretchCols = 512;  // columns transposed at once: 8 KiB
constexpr size_t kPieceColsMin = 32;
constexpr size_t kPiecesMax = kStretchCols / kPieceColsMin;
constexpr size_t kBatch = 32;          // tokens that use transposed weights
constexpr size_t kTokensTogether = 8;  // accumulators that hide the latency of dpbusd

// What one stretch of columns needs; everything lives on the stack of MatMulBatches.
struct Stretch {
  alignas(64) uint8_t quads[kStretchCols / kQuadCols][64];
  alignas(64) float w_scales[kPiecesMax][kWideRows];
  alignas(64) int8_t codes[kBatch][kStretchCols];
  int32_t starts[kBatch][kPiecesMax];  // -Z2 * the sum of the piece's activations
};

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// 16 x 16 of 32 bits: rows[i] holds row i's; then rows[i] holds the i-th of each row.
void Transpose(__m512i* rows) {
  __m512i t[16];
  for (size_t i = 0; i < 16; i += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    const __m512i high01 = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
    t[i] = _mm512_unpacklo_epi64(low01, low23);
    t[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    t[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    t[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  // t[4 r + c], part l: place 4 l + c of the rows 4 r to 4 r + 3.
  for (size_t c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

struct Q4 {
  static constexpr size_t kCodesPerByte = 2;
  static constexpr int kZero2 = tensor::kSmoeQ4Zero2;

  static void Split(__m512i bytes, uint8_t (*quads)[64]) {
    const __m512i mask = _mm512_set1_epi8(0x1e);
    _mm512_store_si512(quads[0], _mm512_and_si512(_mm512_add_epi8(bytes, bytes), mask));
    _mm512_store_si512(quads[1], _mm512_and_si512(_mm512_srli_epi16(bytes, 3), mask));
  }
  static __m128i Order() {
    return _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  }
};

struct Q2 {
  static constexpr size_t kCodesPerByte = 4;
  static constexpr int kZero2 = tensor::kSmoeQ2Zero2;

  static void Split(__m512i bytes, uint8_t (*quads)[64]) {
    const __m512i mask = _mm512_set1_epi8(0x06);
    _mm512_store_si512(quads[0], _mm512_and_si512(_mm512_add_epi8(bytes, bytes), mask));
    _mm512_store_si512(quads[1], _mm512_and_si512(_mm512_srli_epi16(bytes, 1), mask));
    _mm512_store_si512(quads[2], _mm512_and_si512(_mm512_srli_epi16(bytes, 3), mask));
    _mm512_store_si512(quads[3], _mm512_and_si512(_mm512_srli_epi16(bytes, 5), mask));
  }
  static __m128i Order() {
    return _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  }
};

struct Job {
  const QuantisedRows& x;
  const MatMulRange& y;
  size_t col;        // of the stretch's first column
  size_t col_count;  // a multiple of kActivationBlock
};

// One piece of kQuads quads for kTokens tokens; those of token t at codes + t * kStretchCols.
template <size_t kQuads, size_t kTokens>
void AddPiece(const uint8_t (*quads)[64], const int8_t* codes, const float* w_scales,
              const float* x_scales, const int32_t* starts, __m512* sums) {
  __m512i dots[kTokens];
  for (size_t t = 0; t < kTokens; ++t) dots[t] = _mm512_set1_epi32(starts[t]);
  for (size_t i = 0; i < kQuads; ++i) {
    const __m512i quad = _mm512_load_si512(quads[i]);
    for (size_t t = 0; t < kTokens; ++t) {
      int four;
      __builtin_memcpy(&four, codes + t * kStretchCols + i * kQuadCols, sizeof(four));
      dots[t] = _mm512_dpbusd_epi32(dots[t], quad, _mm512_set1_epi32(four));
    }
  }
  const __m512 w_scale = _mm512_load_ps(w_scales);
  for (size_t t = 0; t < kTokens; ++t) {
    const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x_scales[t]));
    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), scale, sums[t]);
  }
}

// One stretch for kTokens tokens from `token` on, the slot-th and later of the batch. Between two
// stretches the sums wait in the output.
template <size_t kQuads, size_t kTokens>
void AddStretch(const Job& job, const Stretch& stretch, size_t row, __mmask16 is_there,
                size_t token, size_t slot) {
  constexpr size_t kPieceCols = kQuads * kQuadCols;
  const size_t blocks = job.x.col_stride / kActivationBlock;
  __m512 sums[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    const float* out = job.y.out + (token + t) * job.y.out_stride + row;
    sums[t] = job.col == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(is_there, out);
  }
  for (size_t piece = 0; piece < job.col_count / kPieceCols; ++piece) {
    const size_t block = (job.col + piece * kPieceCols) / kActivationBlock;
    float x_scales[kTokens];
    int32_t starts[kTokens];
    for (size_t t = 0; t < kTokens; ++t) {
      x_scales[t] = job.x.scales[(token + t) * blocks + block];
      starts[t] = stretch.starts[slot + t][piece];
    }
    AddPiece<kQuads, kTokens>(stretch.quads + piece * kQuads,
                              stretch.codes[slot] + piece * kPieceCols, stretch.w_scales[piece],
                              x_scales, starts, sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    _mm512_mask_storeu_ps(job.y.out + (token + t) * job.y.out_stride + row, is_there, sums[t]);
  }
}

template <class Format>
void ArrangeCodes(const Job& job, size_t token, size_t batch, size_t piece_cols, Stretch* stretch) {
  for (size_t slot = 0; slot < batch; ++slot) {
    const int8_t* codes = job.x.codes + (token + slot) * job.x.col_stride + job.col;
    for (size_t i = 0; i < job.col_count; i += 16) {
      const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
      _mm_store_si128(reinterpret_cast<__m128i*>(stretch->codes[slot] + i),
                      _mm_shuffle_epi8(loaded, Format::Order()));
    }
    for (size_t piece = 0; piece < job.col_count / piece_cols; ++piece, codes += piece_cols) {
      int32_t sum = 0;
      for (size_t i = 0; i < piece_cols; ++i) sum += codes[i];
      stretch->starts[slot][piece] = -sum * Format::kZero2;
    }
  }
}

template <class Format>
void TransposeTile(const WideTile& tile, const Job& job, Stretch* stretch) {
  constexpr size_t kCols = 64 * Format::kCodesPerByte;
  for (size_t col = 0; col < job.col_count; col += kCols) {
    const size_t bytes = Min(kCols, job.col_count - col) / Format::kCodesPerByte;
    const __mmask64 there = bytes == 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
    __m512i rows[kWideRows];
    for (size_t i = 0; i < kWideRows; ++i) {
      rows[i] =
          _mm512_maskz_loadu_epi8(there, tile.codes[i] + (job.col + col) / Format::kCodesPerByte);
    }
    Transpose(rows);
    uint8_t(*quads)[64] = stretch->quads + col / kQuadCols;
    for (size_t i = 0; i < bytes / 4; ++i)
      Format::Split(rows[i], quads + i * Format::kCodesPerByte);
  }
}

template <size_t kQuads, size_t kTokens>
size_t AddTokens(const Job& job, const Stretch& stretch, size_t row, __mmask16 is_there,
                 size_t token, size_t slot, size_t batch) {
  for (; slot + kTokens <= batch; slot += kTokens) {
    AddStretch<kQuads, kTokens>(job, stretch, row, is_there, token + slot, slot);
  }
  return slot;
}

// All tokens, batch by batch; for each stretch of columns the rows of the range, tile by tile.
template <class Format, size_t kQuads>
void MatMulBatches(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  constexpr size_t kPieceCols = kQuads * kQuadCols;
  Stretch stretch;
  for (size_t token = 0; token < x.token_count; token += kBatch) {
    const size_t batch = Min(kBatch, x.token_count - token);
    for (size_t col = 0; col < weights.cols; col += kStretchCols) {
      const Job job = {
          .x = x, .y = y, .col = col, .col_count = Min(kStretchCols, weights.cols - col)};
      ArrangeCodes<Format>(job, token, batch, kPieceCols, &stretch);
      for (size_t row = y.row_begin; row < y.row_end; row += kWideRows) {
        const WideTile tile = MakeWideTile(weights, row, y.row_end);
        const auto is_there = static_cast<__mmask16>((1u << tile.row_count) - 1);
        TransposeTile<Format>(tile, job, &stretch);
        DecodeScalesAvx512(weights, tile, kPieceCols, col / kPieceCols, job.col_count / kPieceCols,
                           stretch.w_scales[0]);
        size_t slot = 0;
        slot = AddTokens<kQuads, kTokensTogether>(job, stretch, row, is_there, token, slot, batch);
        slot = AddTokens<kQuads, 4>(job, stretch, row, is_there, token, slot, batch);
        AddTokens<kQuads, 1>(job, stretch, row, is_there, token, slot, batch);
      }
    }
  }
}

}  // namespace

void MatMulInt8BatchAvx512(const PlainWeights& weights, const QuantisedRows& x,
                           const MatMulRange& y) {
  const bool is_narrow = weights.group_size == 32;
  if (weights.format == WeightFormat::kSmoeQ4) {
    if (is_narrow) return MatMulBatches<Q4, 8>(weights, x, y);
    return MatMulBatches<Q4, 16>(weights, x, y);
  }
  if (is_narrow) return MatMulBatches<Q2, 8>(weights, x, y);
  MatMulBatches<Q2, 16>(weights, x, y);
}

}  // namespace smoe::kernels
#endif
