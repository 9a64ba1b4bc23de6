// kernels/avx512.h: what the files of the AVX-512 table call in each other. Declarations only, for
// the reason that internal.h gives.
#pragma once

#include "kernels/internal.h"

namespace smoe::kernels {

constexpr size_t kWideRows = 16;  // rows that the integer kernels take together, one in each lane

struct WideTile {
  uint64_t row[kWideRows];          // a tile at the end of the range repeats its last row
  const uint8_t* codes[kWideRows];  // each row's first byte; rows start at bytes here
  size_t row_count;
};
WideTile MakeWideTile(const PlainWeights& weights, size_t row, size_t row_end);

// w_scales of the pieces [first, first + count) of each row: out[piece - first][row]. A piece is
// piece_cols columns inside one group. out is aligned to 64 bytes.
void DecodeScalesAvx512(const PlainWeights& weights, const WideTile& tile, size_t piece_cols,
                        size_t first, size_t count, float* out);

void MatMulF32Avx512(const tensor::WeightView& view, const FloatRows& x, const MatMulRange& y);

void MatMulInt8Avx512(const tensor::WeightView& view, const QuantisedRows& x, const MatMulRange& y);

// The same for many tokens: weights are unpacked and transposed once for a batch of them, which
// pays from so many on. Requires cols a multiple of 64, and groups of 32 or a multiple of 64.
constexpr size_t kWideBatchTokensMinQ4 = 7;
constexpr size_t kWideBatchTokensMinQ2 = 9;
void MatMulInt8BatchAvx512(const PlainWeights& weights, const QuantisedRows& x,
                           const MatMulRange& y);

void AttendAvx512(const AttentionJob& job);

// NVFP4. Requires kNvfp4IntRowsMin rows of W, whatever the range, and cols a multiple of
// kNvfp4Group.
void MatMulInt8Nvfp4Avx512(const PlainWeights& weights, const QuantisedRows& x,
                           const MatMulRange& y);

// int8, any shape.
void MatMulInt8TilesAvx512(const PlainWeights& weights, const QuantisedRows& x,
                           const MatMulRange& y);

}  // namespace smoe::kernels
