// Integer products for many tokens; kernels_avx2.cc says what holds for all of the table.
//
// Eight rows of weight codes are unpacked and transposed once: a quad, 32 bytes, holds four columns
// of each row. Four activations of a token are broadcast against it, and the 16-bit sums of eight
// quads stay below 15 * 127 * 2 * 8 = 30480. So rows lie in the lanes from the start, and no
// horizontal add is needed.
#include "kernels/avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

constexpr size_t kQuadCols = 4;
constexpr size_t kStretchCols = 512;  // columns transposed at once: 16 KiB
constexpr size_t kPieceColsMin = 8;
constexpr size_t kPiecesMax = kStretchCols / kPieceColsMin;

// What one stretch of columns needs; everything lives on the stack of MatMulInt8BatchAvx2.
struct Stretch {
  alignas(32) uint8_t quads[kStretchCols / kQuadCols][32];
  alignas(32) float w_scales[kPiecesMax][kIntRows];
  int32_t zero_parts[kBatchTokens][kPiecesMax];  // Z2 * sum of the piece's activations
};

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// rows[i] holds eight dwords of row i, four quads in each 128-bit half: quads first..first + 3, and
// those from second on.
void StoreTransposed(const __m256i* rows, size_t first, size_t second, uint8_t (*quads)[32]) {
  __m256i four[2][4];  // of rows 0..3 and of rows 4..7
  for (size_t i = 0; i < 2; ++i) {
    const __m256i low01 = _mm256_unpacklo_epi32(rows[4 * i], rows[4 * i + 1]);
    const __m256i high01 = _mm256_unpackhi_epi32(rows[4 * i], rows[4 * i + 1]);
    const __m256i low23 = _mm256_unpacklo_epi32(rows[4 * i + 2], rows[4 * i + 3]);
    const __m256i high23 = _mm256_unpackhi_epi32(rows[4 * i + 2], rows[4 * i + 3]);
    four[i][0] = _mm256_unpacklo_epi64(low01, low23);
    four[i][1] = _mm256_unpackhi_epi64(low01, low23);
    four[i][2] = _mm256_unpacklo_epi64(high01, high23);
    four[i][3] = _mm256_unpackhi_epi64(high01, high23);
  }
  for (size_t i = 0; i < 4; ++i) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(quads[first + i]),
                       _mm256_permute2x128_si256(four[0][i], four[1][i], 0x20));
    _mm256_store_si256(reinterpret_cast<__m256i*>(quads[second + i]),
                       _mm256_permute2x128_si256(four[0][i], four[1][i], 0x31));
  }
}

// 64 columns, 16 quads: 32 bytes of each row.
void TransposeQ4(const IntTile& tile, size_t offset, uint8_t (*quads)[32]) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  __m256i low[kIntRows];   // columns 0..15 and 32..47
  __m256i high[kIntRows];  // columns 16..31 and 48..63
  for (size_t i = 0; i < kIntRows; ++i) {
    const __m256i bytes =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile.codes[i] + offset));
    const __m256i even = _mm256_and_si256(bytes, mask);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
    low[i] = _mm256_unpacklo_epi8(even, odd);
    high[i] = _mm256_unpackhi_epi8(even, odd);
  }
  StoreTransposed(low, 0, 8, quads);
  StoreTransposed(high, 4, 12, quads);
}

// 64 columns, 16 quads: 16 bytes of each row. A byte is a quad; its codes move to a byte each.
void TransposeQ2(const IntTile& tile, size_t offset, uint8_t (*quads)[32]) {
  const __m256i mask = _mm256_set1_epi8(0x03);
  for (size_t half = 0; half < 2; ++half) {
    __m256i rows[kIntRows];
    for (size_t i = 0; i < kIntRows; ++i) {
      const __m256i bytes = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(tile.codes[i] + offset + 8 * half)));
      const __m256i two = _mm256_or_si256(bytes, _mm256_slli_epi32(bytes, 12));
      rows[i] = _mm256_and_si256(_mm256_or_si256(two, _mm256_slli_epi32(two, 6)), mask);
    }
    StoreTransposed(rows, 8 * half, 8 * half + 4, quads);
  }
}

// One piece of kQuads quads for kTokens tokens.
template <size_t kQuads, size_t kTokens>
void AddPiece(const uint8_t (*quads)[32], const int8_t* const* codes, const float* w_scales,
              const float* x_scales, const int32_t* zero_parts, __m256* sums) {
  constexpr size_t kRun = kQuads < 8 ? kQuads : 8;
  const __m256i two = _mm256_set1_epi16(2);
  __m256i dots[kTokens];
  for (size_t t = 0; t < kTokens; ++t) dots[t] = _mm256_set1_epi32(-zero_parts[t]);
  for (size_t begin = 0; begin < kQuads; begin += kRun) {
    __m256i words[kTokens];
    for (__m256i& word : words) word = _mm256_setzero_si256();
    for (size_t i = begin; i < begin + kRun; ++i) {
      const __m256i quad = _mm256_load_si256(reinterpret_cast<const __m256i*>(quads[i]));
      for (size_t t = 0; t < kTokens; ++t) {
        int four;
        __builtin_memcpy(&four, codes[t] + i * kQuadCols, sizeof(four));
        words[t] = _mm256_add_epi16(words[t], _mm256_maddubs_epi16(quad, _mm256_set1_epi32(four)));
        // g++ 12 would collect all products first, to add them as a tree, and run out of registers.
        __asm__("" : "+x"(words[t]));
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(words[t], two));
    }
  }
  const __m256 w_scale = _mm256_load_ps(w_scales);
  for (size_t t = 0; t < kTokens; ++t) {
    const __m256 scale = _mm256_mul_ps(w_scale, _mm256_set1_ps(x_scales[t]));
    sums[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t]), scale, sums[t]);
  }
}

struct Job {
  const QuantisedRows& x;
  const MatMulRange& y;
  size_t col;         // of the stretch's first column
  size_t col_count;   // a multiple of kActivationBlock
  size_t quad_count;  // of a piece
};

// One stretch for kTokens tokens from `token` on, the slot-th and later of the batch. Between two
// stretches the sums wait in the output.
template <size_t kQuads, size_t kTokens>
void AddStretch(const Job& job, const Stretch& stretch, size_t row, __m256i is_there, size_t token,
                size_t slot) {
  constexpr size_t kPieceCols = kQuads * kQuadCols;
  const size_t blocks = job.x.col_stride / kActivationBlock;
  const int8_t* codes[kTokens];
  __m256 sums[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    codes[t] = job.x.codes + (token + t) * job.x.col_stride + job.col;
    const float* out = job.y.out + (token + t) * job.y.out_stride + row;
    sums[t] = job.col == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(out, is_there);
  }
  for (size_t piece = 0; piece < job.col_count / kPieceCols; ++piece) {
    const size_t block = (job.col + piece * kPieceCols) / kActivationBlock;
    const int8_t* piece_codes[kTokens];
    float x_scales[kTokens];
    int32_t zero_parts[kTokens];
    for (size_t t = 0; t < kTokens; ++t) {
      piece_codes[t] = codes[t] + piece * kPieceCols;
      x_scales[t] = job.x.scales[(token + t) * blocks + block];
      zero_parts[t] = stretch.zero_parts[slot + t][piece];
    }
    AddPiece<kQuads, kTokens>(stretch.quads + piece * kQuads, piece_codes, stretch.w_scales[piece],
                              x_scales, zero_parts, sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    _mm256_maskstore_ps(job.y.out + (token + t) * job.y.out_stride + row, is_there, sums[t]);
  }
}

void SumActivations(const Job& job, size_t token, size_t batch, size_t piece_cols, int zero2,
                    Stretch* stretch) {
  for (size_t slot = 0; slot < batch; ++slot) {
    const int8_t* codes = job.x.codes + (token + slot) * job.x.col_stride + job.col;
    for (size_t piece = 0; piece < job.col_count / piece_cols; ++piece, codes += piece_cols) {
      int32_t sum = 0;
      for (size_t i = 0; i < piece_cols; ++i) sum += codes[i];
      stretch->zero_parts[slot][piece] = sum * zero2;
    }
  }
}

void TransposeTile(const PlainWeights& weights, const IntTile& tile, const Job& job,
                   Stretch* stretch) {
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  for (size_t i = 0; i < job.col_count; i += kActivationBlock) {
    uint8_t(*quads)[32] = stretch->quads + i / kQuadCols;
    if (is_q4) TransposeQ4(tile, (job.col + i) / 2, quads);
    if (!is_q4) TransposeQ2(tile, (job.col + i) / 4, quads);
  }
  const size_t piece_cols = job.quad_count * kQuadCols;
  DecodeScalesAvx2(weights, tile, piece_cols, job.col / piece_cols, job.col_count / piece_cols,
                   stretch->w_scales[0]);
}

// All tokens, batch by batch; for each stretch of columns the rows of the range, tile by tile.
template <size_t kQuads>
void MatMulBatches(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  const int zero2 = is_q4 ? tensor::kSmoeQ4Zero2 : tensor::kSmoeQ2Zero2;
  Stretch stretch;
  for (size_t token = 0; token < x.token_count; token += kBatchTokens) {
    const size_t batch = Min(kBatchTokens, x.token_count - token);
    for (size_t col = 0; col < weights.cols; col += kStretchCols) {
      const Job job = {.x = x,
                       .y = y,
                       .col = col,
                       .col_count = Min(kStretchCols, weights.cols - col),
                       .quad_count = kQuads};
      SumActivations(job, token, batch, kQuads * kQuadCols, zero2, &stretch);
      for (size_t row = y.row_begin; row < y.row_end; row += kIntRows) {
        const IntTile tile = MakeTile(weights, row, y.row_end);
        const __m256i is_there =
            _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(tile.row_count)),
                               _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        TransposeTile(weights, tile, job, &stretch);
        size_t slot = 0;
        for (; slot + 4 <= batch; slot += 4) {
          AddStretch<kQuads, 4>(job, stretch, row, is_there, token + slot, slot);
        }
        for (; slot < batch; ++slot) {
          AddStretch<kQuads, 1>(job, stretch, row, is_there, token + slot, slot);
        }
      }
    }
  }
}

}  // namespace

void MatMulInt8BatchAvx2(const PlainWeights& weights, const QuantisedRows& x,
                         const MatMulRange& y) {
  switch (weights.group_size) {
    case 8:
      return MatMulBatches<2>(weights, x, y);
    case 16:
      return MatMulBatches<4>(weights, x, y);
    case 32:
      return MatMulBatches<8>(weights, x, y);
    default:
      return MatMulBatches<16>(weights, x, y);
  }
}

}  // namespace smoe::kernels
#endif
