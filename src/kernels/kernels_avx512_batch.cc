// Integer products for many tokens; kernels_avx512.cc says what holds for all of the table.
//
// Sixteen rows are transposed, 32 bits at a time, and then split into codes: a quad, 64 bytes,
// holds four codes of each row, doubled so that a dpbusd adds 2 code * x. The columns of a quad are
// those that share a place in the bytes (the even or the odd ones of eight for Q4, every fourth of
// sixteen for Q2); activations are put into the same order once.
#include "kernels/avx2.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VNNI__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

#include "kernels/batch_512.h"

namespace smoe::kernels {

namespace {

using NearLines = LinesAhead<1>;  // a stretch fits the first cache

using tensor::WeightFormat;

constexpr size_t kStretchCols = 512;  // columns transposed at once: 8 KiB of each tile
constexpr size_t kPieceColsMin = 32;
constexpr size_t kPiecesMax = kStretchCols / kPieceColsMin;
constexpr size_t kTiles = 2;           // of kWideRows rows, transposed together
constexpr size_t kBatch = 64;          // tokens that use transposed weights
constexpr size_t kTokensTogether = 8;  // with two tiles sixteen dot products in registers

// What one stretch of columns needs, on MatMulBatches' stack. Quads stay in the nearest cache, 16
// KiB, while the activations of the batch go by.
struct Stretch {
  alignas(64) uint8_t quads[kTiles][kStretchCols / kQuadCols][64];
  alignas(64) float w_scales[kTiles][kPiecesMax][kWideRows];
  __mmask16 is_there[kTiles];  // rows of each tile that the range has
  alignas(64) int8_t codes[kBatch][kStretchCols];
  int32_t starts[kBatch][kPiecesMax];  // -Z2 * the sum of the piece's activations
};

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

// An empty instruction that changes the dot product as far as g++ 12 knows: without it the compiler
// copies each of them twice in every step of the loop, for a third of the speed.
void KeepInRegister(__m512i* dot) { asm("" : "+v"(*dot)); }

// One piece of kQuads quads for kTokens tokens, from the slot-th of the batch on. Sums wait in
// memory: registers are for dot products, as many as hide dpbusd's latency. Loops over tokens are
// unrolled by request, so that the compiler sees single products before it decides where they lie.
template <size_t kQuads, size_t kTokens>
void AddPiece(const Stretch& stretch, size_t piece, size_t slot, const float* x_scales,
              size_t blocks, float (*sums)[kTiles][kWideRows]) {
  __m512i dots[kTokens][kTiles];
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kTiles; ++r) {
      dots[t][r] = _mm512_set1_epi32(stretch.starts[slot + t][piece]);
      KeepInRegister(&dots[t][r]);
    }
  }
  const uint8_t* quads = stretch.quads[0][piece * kQuads];
  const int8_t* codes = stretch.codes[slot] + piece * kQuads * kQuadCols;
  for (size_t i = 0; i < kQuads; ++i) {
    __m512i weights[kTiles];
    for (size_t r = 0; r < kTiles; ++r) {
      weights[r] = _mm512_load_si512(quads + r * sizeof(stretch.quads[0]) + i * 64);
    }
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; ++t) {
      int bytes;
      __builtin_memcpy(&bytes, codes + t * kStretchCols + i * kQuadCols, sizeof(bytes));
      const __m512i four = _mm512_set1_epi32(bytes);
      for (size_t r = 0; r < kTiles; ++r) {
        dots[t][r] = _mm512_dpbusd_epi32(dots[t][r], weights[r], four);
        KeepInRegister(&dots[t][r]);
      }
    }
  }
  __m512 w_scales[kTiles];
  for (size_t r = 0; r < kTiles; ++r) {
    w_scales[r] = _mm512_load_ps(stretch.w_scales[r][piece]);
  }
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) {
    const __m512 x_scale = _mm512_set1_ps(x_scales[t * blocks]);
    for (size_t r = 0; r < kTiles; ++r) {
      const __m512 scale = _mm512_mul_ps(w_scales[r], x_scale);
      const __m512 sum = _mm512_load_ps(sums[t][r]);
      _mm512_store_ps(sums[t][r], _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][r]), scale, sum));
    }
  }
}

// One stretch for kTokens tokens from `token` on, which is the slot-th of the batch; the first
// tile's rows begin at `row`. Between two stretches the sums wait in the output.
template <size_t kQuads, size_t kTokens>
void AddStretch(const Job& job, const Stretch& stretch, size_t row, size_t token, size_t slot,
                NearLines* ahead) {
  constexpr size_t kPieceCols = kQuads * kQuadCols;
  const size_t blocks = job.x.col_stride / kActivationBlock;
  float* out = job.y.out + token * job.y.out_stride + row;
  alignas(64) float sums[kTokens][kTiles][kWideRows];
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kTiles; ++r) {
      _mm512_store_ps(sums[t][r], job.col == 0 ? _mm512_setzero_ps()
                                               : _mm512_maskz_loadu_ps(
                                                     stretch.is_there[r],
                                                     out + t * job.y.out_stride + r * kWideRows));
    }
  }
  for (size_t piece = 0; piece < job.col_count / kPieceCols; ++piece) {
    const size_t block = (job.col + piece * kPieceCols) / kActivationBlock;
    ahead->Step();
    AddPiece<kQuads, kTokens>(stretch, piece, slot, job.x.scales + token * blocks + block, blocks,
                              sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kTiles; ++r) {
      _mm512_mask_storeu_ps(out + t * job.y.out_stride + r * kWideRows, stretch.is_there[r],
                            _mm512_load_ps(sums[t][r]));
    }
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
      __m256i sums = _mm256_setzero_si256();
      for (size_t i = 0; i < piece_cols; i += 32) {
        const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
        sums = _mm256_dpbusd_epi32(sums, _mm256_set1_epi8(Format::kZero2), loaded);
      }
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
      stretch->starts[slot][piece] = -_mm_cvtsi128_si32(sum);
    }
  }
}

template <class Format>
void TransposeTile(const WideTile& tile, const Job& job, uint8_t (*out)[64]) {
  const size_t begin = job.col / Format::kCodesPerByte;
  const size_t end = begin + job.col_count / Format::kCodesPerByte;
  for (size_t offset = begin; offset < end; offset += 16) {
    __m512i dwords[4];
    TransposeDwords(tile.codes, offset, dwords);
    for (const __m512i& bytes : dwords) {
      Format::Split(bytes, out);
      out += Format::kCodesPerByte;
    }
  }
}

// kTiles tiles from `row` on. Those behind the range are a copy of its last row, and not there.
template <class Format, size_t kPieceCols>
void PrepareTiles(const PlainWeights& weights, const Job& job, size_t row, Stretch* stretch) {
  for (size_t i = 0; i < kTiles; ++i) {
    const size_t begin = row + i * kWideRows;
    const bool is_behind = begin >= job.y.row_end;
    const WideTile tile =
        MakeWideTile(weights, is_behind ? job.y.row_end - 1 : begin, job.y.row_end);
    stretch->is_there[i] =
        is_behind ? __mmask16{0} : static_cast<__mmask16>((1u << tile.row_count) - 1);
    TransposeTile<Format>(tile, job, stretch->quads[i]);
    DecodeScalesAvx512(weights, tile, kPieceCols, job.col / kPieceCols, job.col_count / kPieceCols,
                       stretch->w_scales[i][0]);
  }
}

// kTokens tokens, or the `count` that there are if they are fewer.
template <size_t kQuads, size_t kTokens>
void AddSome(const Job& job, const Stretch& stretch, size_t row, size_t token, size_t slot,
             size_t count, NearLines* ahead) {
  if constexpr (kTokens > 1) {
    if (count < kTokens) {
      return AddSome<kQuads, kTokens - 1>(job, stretch, row, token, slot, count, ahead);
    }
  }
  AddStretch<kQuads, kTokens>(job, stretch, row, token, slot, ahead);
}

// The tokens [token, token + batch), all of a stretch's tiles.
template <size_t kQuads>
void AddTokens(const Job& job, const Stretch& stretch, size_t row, size_t token, size_t batch,
               NearLines* ahead) {
  for (size_t slot = 0; slot < batch; slot += kTokensTogether) {
    AddSome<kQuads, kTokensTogether>(job, stretch, row, token + slot, slot, batch - slot, ahead);
  }
}

// What comes behind the tiles of `row`: the next tiles of this stretch of columns, or the first of
// the next. Asked for while `batch` tokens are multiplied with these.
template <class Format, size_t kPieceCols>
NearLines NextLines(const PlainWeights& weights, const Job& job, size_t row, size_t batch) {
  constexpr size_t kCodes = Format::kCodesPerByte;
  const bool is_last = row + kTiles * kWideRows >= job.y.row_end;
  const size_t next_row = is_last ? job.y.row_begin : row + kTiles * kWideRows;
  const size_t next_col = is_last ? job.col + kStretchCols : job.col;
  const size_t row_bytes = weights.cols / kCodes;
  const uintptr_t first = reinterpret_cast<uintptr_t>(weights.data) + next_row * row_bytes;
  return NearLines(first + next_col / kCodes, row_bytes, kTiles * kWideRows,
                   Parts(job.col_count / kCodes, 64),
                   Parts(batch, kTokensTogether) * (job.col_count / kPieceCols));
}

// All tokens, batch by batch; for each stretch of columns the rows of the range, tiles by tiles.
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
      for (size_t row = y.row_begin; row < y.row_end; row += kTiles * kWideRows) {
        PrepareTiles<Format, kPieceCols>(weights, job, row, &stretch);
        NearLines ahead = NextLines<Format, kPieceCols>(weights, job, row, batch);
        AddTokens<kQuads>(job, stretch, row, token, batch, &ahead);
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
