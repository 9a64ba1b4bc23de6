// kernels/int8_batch_256.h: integer products of Q4 and Q2 for many tokens, in 256-bit registers.
//
// Sixteen rows of weight codes are unpacked and transposed once for all tokens of a batch: a quad,
// 32 bytes, holds four columns of each of eight rows. Four activations of a token are broadcast
// against it. So rows lie in the lanes from the start, and no horizontal add is needed.
//
// With 16-bit sums: 2 code - Z2 = 2 (code - H) + 1, H = (Z2 + 1) / 2. A lane sums half of a piece's
// columns, at most 32 of them, and starts at -H times their activations: it may wrap on its way,
// but ends within 8 * 127 * 32 = 32512. Doubled, the two lanes of a row added to one another and to
// the sum of the activations, they are the dot product.
//
// With vpdpbusd the codes are doubled as they are unpacked, and a sum starts at -Z2 times the
// activations' sum.
#pragma once

#include "kernels/simd_256.h"

#if defined(__AVX2__)

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

constexpr size_t kQuadCols = 4;
constexpr size_t kStretchCols = 512;  // columns transposed at once: 8 KiB
constexpr size_t kPieceColsMin = 8;
constexpr size_t kPiecesMax = kStretchCols / kPieceColsMin;
constexpr size_t kBatchTokens = 64;  // their codes of a stretch take 32 KiB
constexpr size_t kVectors = 2;       // of eight rows, in a tile
constexpr size_t kBatchRows = kVectors * kIntRows;
// Sums in registers: kVectors times as many. vpdpbusd has a long latency to hide.
#if defined(__AVXVNNI__)
constexpr size_t kBatchTogether = 6;
constexpr bool kHasDotBytes = true;
#else
constexpr size_t kBatchTogether = 4;
constexpr bool kHasDotBytes = false;
#endif

// clang-format off
alignas(16) constexpr uint8_t kQuadOrderQ4[16] = {0, 2, 4, 6, 1, 3, 5, 7,
                                                  8, 10, 12, 14, 9, 11, 13, 15};
alignas(16) constexpr uint8_t kQuadOrderQ2[16] = {0, 4, 8, 12, 1, 5, 9, 13,
                                                  2, 6, 10, 14, 3, 7, 11, 15};
// clang-format on

struct Quad {
  __m256i rows[kVectors];
};

// Of one token and one piece; every lane of a dot product takes the same.
struct PieceParts {
  int32_t start;  // of 16-bit sums: two of them
  int32_t sum;    // of the activations; not used with vpdpbusd
};

// What one stretch of columns needs; everything lives on the stack.
struct BatchStretch {
  Quad quads[kStretchCols / kQuadCols];
  alignas(32) float w_scales[kVectors][kPiecesMax * kIntRows];
  alignas(32) int8_t codes[kBatchTokens][kStretchCols];
  PieceParts parts[kBatchTokens][kPiecesMax];
  float x_scales[kBatchTokens][kStretchCols / kActivationBlock];
};

// The same columns of the rows that come next: a prefetch cannot fault.
inline void PrefetchAhead(const uint8_t* at, size_t ahead) {
  const uintptr_t wanted_soon = reinterpret_cast<uintptr_t>(at) + ahead;
  _mm_prefetch(reinterpret_cast<const char*>(wanted_soon), _MM_HINT_T0);
}

// 16 bytes of each of eight rows: out[i] holds the i-th dword of every row.
inline void TransposeDwords(const IntTile& tile, size_t offset, __m256i* out) {
  __m256i rows[4];  // rows[i]: of rows i and i + 4
  for (size_t i = 0; i < 4; ++i) {
    rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(Load128(tile.codes[i] + offset)),
                                      Load128(tile.codes[i + 4] + offset), 1);
  }
  const __m256i low01 = _mm256_unpacklo_epi32(rows[0], rows[1]);
  const __m256i high01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const __m256i high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
  out[0] = _mm256_unpacklo_epi64(low01, low23);
  out[1] = _mm256_unpackhi_epi64(low01, low23);
  out[2] = _mm256_unpacklo_epi64(high01, high23);
  out[3] = _mm256_unpackhi_epi64(high01, high23);
}

// 64 columns, 16 quads. A dword of Q4 holds eight columns: a quad of the even ones, one of the odd
// ones. A dword of Q2 holds sixteen: quad k has the columns 4 j + k.
inline void UnpackQ4(const IntTile& tile, size_t offset, size_t vector, Quad* quads) {
  const __m256i mask = _mm256_set1_epi8(kHasDotBytes ? 0x1e : 0x0f);
  for (size_t half = 0; half < 2; ++half) {
    __m256i dwords[4];
    TransposeDwords(tile, offset + 16 * half, dwords);
    for (const __m256i& bytes : dwords) {
      const __m256i even = kHasDotBytes ? _mm256_add_epi8(bytes, bytes) : bytes;
      const __m256i odd = _mm256_srli_epi16(bytes, kHasDotBytes ? 3 : 4);
      quads[0].rows[vector] = _mm256_and_si256(even, mask);
      quads[1].rows[vector] = _mm256_and_si256(odd, mask);
      quads += 2;
    }
  }
}

inline void UnpackQ2(const IntTile& tile, size_t offset, size_t vector, Quad* quads) {
  const __m256i mask = _mm256_set1_epi8(kHasDotBytes ? 0x06 : 0x03);
  __m256i dwords[4];
  TransposeDwords(tile, offset, dwords);
  for (const __m256i& bytes : dwords) {
    const __m256i first = kHasDotBytes ? _mm256_add_epi8(bytes, bytes) : bytes;
    constexpr int kLess = kHasDotBytes ? 1 : 0;  // bits, so that codes come out doubled
    quads[0].rows[vector] = _mm256_and_si256(first, mask);
    quads[1].rows[vector] = _mm256_and_si256(_mm256_srli_epi16(bytes, 2 - kLess), mask);
    quads[2].rows[vector] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4 - kLess), mask);
    quads[3].rows[vector] = _mm256_and_si256(_mm256_srli_epi16(bytes, 6 - kLess), mask);
    quads += 4;
  }
}

// Activations in the order of the quads' columns. Requires a multiple of sixteen.
inline void ArrangeForQuads(const int8_t* codes, size_t count, bool is_q4, int8_t* out) {
  const __m128i order = Load128(is_q4 ? kQuadOrderQ4 : kQuadOrderQ2);
  for (size_t i = 0; i < count; i += 16) {
    _mm_store_si128(reinterpret_cast<__m128i*>(out + i),
                    _mm_shuffle_epi8(Load128(codes + i), order));
  }
}

// One piece of kQuads quads for kTokens tokens from `slot` on.
template <size_t kQuads, size_t kTokens>
[[gnu::always_inline]] inline void AddPiece(const BatchStretch& stretch, size_t piece, size_t slot,
                                            __m256 (*sums)[kVectors]) {
  const Quad* quads = stretch.quads + piece * kQuads;
  const int8_t* codes = stretch.codes[slot] + piece * kQuads * kQuadCols;
  __m256i dots[kTokens][kVectors];
  for (size_t t = 0; t < kTokens; ++t) {
    const __m256i start = _mm256_set1_epi32(stretch.parts[slot + t][piece].start);
    for (size_t v = 0; v < kVectors; ++v) dots[t][v] = start;
  }
  for (size_t i = 0; i < kQuads; ++i) {
    for (size_t t = 0; t < kTokens; ++t) {
      int four;
      __builtin_memcpy(&four, codes + t * kStretchCols + i * kQuadCols, sizeof(four));
      const __m256i x = _mm256_set1_epi32(four);
      for (size_t v = 0; v < kVectors; ++v) {
#if defined(__AVXVNNI__)
        dots[t][v] = _mm256_dpbusd_avx_epi32(dots[t][v], quads[i].rows[v], x);
#else
        dots[t][v] = _mm256_add_epi16(dots[t][v], _mm256_maddubs_epi16(quads[i].rows[v], x));
#endif
        // g++ 12 would collect all products first, to add them as a tree, and run out of registers.
        __asm__("" : "+x"(dots[t][v]));
      }
    }
  }
  constexpr size_t kPieceCols = kQuads * kQuadCols;
  for (size_t t = 0; t < kTokens; ++t) {
    const __m256 x_scale =
        _mm256_set1_ps(stretch.x_scales[slot + t][piece * kPieceCols / kActivationBlock]);
    for (size_t v = 0; v < kVectors; ++v) {
      __m256i dot = dots[t][v];
      if constexpr (!kHasDotBytes) {
        dot = _mm256_add_epi32(_mm256_madd_epi16(dot, _mm256_set1_epi16(2)),
                               _mm256_set1_epi32(stretch.parts[slot + t][piece].sum));
      }
      const __m256 w_scale = _mm256_load_ps(stretch.w_scales[v] + piece * kIntRows);
      sums[t][v] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(w_scale, x_scale), sums[t][v]);
    }
  }
}

struct BatchJob {
  const QuantisedRows& x;
  const MatMulRange& y;
  size_t token;      // the batch's first
  size_t col;        // of the stretch's first column
  size_t col_count;  // a multiple of kActivationBlock
  size_t piece_cols;
};

// One stretch of a tile for kTokens tokens from `slot` on. Between two stretches the sums wait in
// the output.
template <size_t kQuads, size_t kTokens>
void AddStretch(const BatchJob& job, const BatchStretch& stretch, size_t row, size_t slot) {
  float* out = job.y.out + (job.token + slot) * job.y.out_stride + row;
  __m256i is_there[kVectors];
  __m256 sums[kTokens][kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t row_count = job.y.row_end - Min(row + v * kIntRows, job.y.row_end);
    is_there[v] = FirstOfEight(row_count);
    for (size_t t = 0; t < kTokens; ++t) {
      const float* at = out + t * job.y.out_stride + v * kIntRows;
      sums[t][v] = job.col == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(at, is_there[v]);
    }
  }
  const size_t pieces = job.col_count / (kQuads * kQuadCols);
  for (size_t piece = 0; piece < pieces; ++piece) {
    AddPiece<kQuads, kTokens>(stretch, piece, slot, sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t v = 0; v < kVectors; ++v) {
      _mm256_maskstore_ps(out + t * job.y.out_stride + v * kIntRows, is_there[v], sums[t][v]);
    }
  }
}

// The activations' part of a piece's dot products.
inline PieceParts PartsOf(const int8_t* codes, size_t piece_cols, int zero2) {
  const __m128i one = _mm_set1_epi8(1);
  __m128i sums = _mm_setzero_si128();  // a dword holds the sums of both lanes of a row
  if (piece_cols < 16) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    sums = _mm_maddubs_epi16(one, eight);
  }
  for (size_t i = 0; i + 16 <= piece_cols; i += 16) {
    sums = _mm_add_epi16(sums, _mm_maddubs_epi16(one, Load128(codes + i)));
  }
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4e));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xb1));
  const int32_t sum = _mm_cvtsi128_si32(_mm_madd_epi16(sums, _mm_set1_epi16(1)));
  if (kHasDotBytes) return {.start = -zero2 * sum, .sum = sum};
  const auto middle = static_cast<int16_t>(-(zero2 + 1) / 2);
  const __m128i starts = _mm_mullo_epi16(sums, _mm_set1_epi16(middle));
  return {.start = _mm_cvtsi128_si32(starts), .sum = sum};
}

inline void ArrangeBatch(const BatchJob& job, size_t batch, bool is_q4, BatchStretch* stretch) {
  const int zero2 = is_q4 ? tensor::kSmoeQ4Zero2 : tensor::kSmoeQ2Zero2;
  const size_t blocks = job.x.col_stride / kActivationBlock;
  for (size_t slot = 0; slot < batch; ++slot) {
    const size_t token = job.token + slot;
    int8_t* codes = stretch->codes[slot];
    ArrangeForQuads(job.x.codes + token * job.x.col_stride + job.col, job.col_count, is_q4, codes);
    __builtin_memcpy(stretch->x_scales[slot],
                     job.x.scales + token * blocks + job.col / kActivationBlock,
                     job.col_count / kActivationBlock * sizeof(float));
    for (size_t piece = 0; piece < job.col_count / job.piece_cols; ++piece) {
      stretch->parts[slot][piece] = PartsOf(codes + piece * job.piece_cols, job.piece_cols, zero2);
    }
  }
}

inline void UnpackTile(const PlainWeights& weights, size_t row, const BatchJob& job,
                       BatchStretch* stretch) {
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  const size_t codes_per_byte = is_q4 ? 2 : 4;
  const size_t ahead = kBatchRows * weights.cols / codes_per_byte;
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t first_row = Min(row + v * kIntRows, job.y.row_end - 1);
    const IntTile tile = MakeTile(weights, first_row, job.y.row_end);
    for (size_t i = 0; i < job.col_count; i += kActivationBlock) {
      const size_t offset = (job.col + i) / codes_per_byte;
      Quad* quads = stretch->quads + i / kQuadCols;
      for (const uint8_t* codes : tile.codes) PrefetchAhead(codes + offset, ahead);
      if (is_q4) UnpackQ4(tile, offset, v, quads);
      if (!is_q4) UnpackQ2(tile, offset, v, quads);
    }
    DecodeScalesAvx2(weights, tile, job.piece_cols, job.col / job.piece_cols,
                     job.col_count / job.piece_cols, stretch->w_scales[v]);
  }
}

// All tokens, batch by batch; for each stretch of columns the rows of the range, tile by tile.
template <size_t kQuads>
void MatMulBatches(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  BatchStretch stretch;
  for (size_t token = 0; token < x.token_count; token += kBatchTokens) {
    const size_t batch = Min(kBatchTokens, x.token_count - token);
    for (size_t col = 0; col < weights.cols; col += kStretchCols) {
      const BatchJob job = {.x = x,
                            .y = y,
                            .token = token,
                            .col = col,
                            .col_count = Min(kStretchCols, weights.cols - col),
                            .piece_cols = kQuads * kQuadCols};
      ArrangeBatch(job, batch, is_q4, &stretch);
      for (size_t row = y.row_begin; row < y.row_end; row += kBatchRows) {
        UnpackTile(weights, row, job, &stretch);
        size_t slot = 0;
        for (; slot + kBatchTogether <= batch; slot += kBatchTogether) {
          AddStretch<kQuads, kBatchTogether>(job, stretch, row, slot);
        }
        for (; slot + 2 <= batch; slot += 2) AddStretch<kQuads, 2>(job, stretch, row, slot);
        if (slot < batch) AddStretch<kQuads, 1>(job, stretch, row, slot);
      }
    }
  }
}

// Requires cols a multiple of kActivationBlock, and groups of 8 (not Q2), 16, 32 or a multiple of
// it.
inline void MatMulBatch(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
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

}  // namespace

}  // namespace smoe::kernels
#endif
