// kernels/neon.h: what the files of the tables for 64-bit ARM call in each other. Declarations
// only, for the reason that internal.h gives.
#pragma once

#include "kernels/internal.h"

namespace smoe::kernels {

// ---- Baseline, every 64-bit ARM ----

void MatMulF32Neon(const tensor::WeightView& view, const FloatRows& x, const MatMulRange& y);
void RmsNormNeon(const float* x, const float* weight, float eps, size_t count, float* out);
void SiluMulNeon(float* gate, const float* up, size_t count);
void SoftmaxNeon(float* x, size_t count);
void SigmoidNeon(const float* x, size_t count, float* out);
void AddScaledNeon(const float* x, float weight, size_t count, float* out);
void AttendNeon(const AttentionJob& job);
void MergeAttentionNeon(const AttentionParts& parts, size_t head_dim, float* out);
void ToF16Neon(const float* x, size_t count, uint16_t* out);
bool QuantiseRowNeon(const float* x, size_t cols, int8_t* codes, float* scales);

// ---- With dot products ----

constexpr size_t kNeonRows = 8;            // rows that the integer kernels take together
constexpr size_t kNeonStretchCols = 512;   // columns decoded at once
constexpr size_t kNeonPieceColsMin = 8;    // of the group sizes that are not left to scalar code
constexpr size_t kNeonBatchTokensMin = 3;  // from here on weights are decoded before they are used

struct NeonTile {
  uint64_t row[kNeonRows];          // a tile at the end of the range repeats its last row
  const uint8_t* codes[kNeonRows];  // each row's first byte; rows start at bytes here
  size_t row_count;
};
NeonTile MakeNeonTile(const PlainWeights& weights, size_t row, size_t row_end);

// w_scales of the pieces [first, first + count) of each row: out[piece - first][row]. A piece is
// piece_cols columns inside one group.
void DecodeScalesNeon(const PlainWeights& weights, const NeonTile& tile, size_t piece_cols,
                      size_t first, size_t count, float (*out)[kNeonRows]);

// Columns [col, col + count) of the tile's rows as twice (code - Z). Requires multiples of 64.
void DecodeCodesNeon(const PlainWeights& weights, const NeonTile& tile, size_t col, size_t count,
                     int8_t (*out)[kNeonStretchCols]);

// Columns to a piece, 8, 16, 32 or 64; 0 where the vector code leaves a matrix to the scalar one:
// rows of parts of blocks, and groups that are neither of these nor a multiple of 64.
size_t NeonPieceCols(const PlainWeights& weights);

void MatMulInt8NeonDot(const tensor::WeightView& view, const QuantisedRows& x,
                       const MatMulRange& y);

// NVFP4. Requires at least so many rows of W, whatever the range, and cols a multiple of
// kNvfp4Group.
constexpr size_t kNeonNvfp4Rows = 16;
void MatMulInt8Nvfp4NeonDot(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y);

// The format int8. Any size.
void MatMulInt8TilesNeonDot(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y);

// ---- With products of 8-bit matrices ----

void MatMulInt8NeonI8mm(const tensor::WeightView& view, const QuantisedRows& x,
                        const MatMulRange& y);

// The same requirements as of those above.
void MatMulInt8Nvfp4NeonI8mm(const PlainWeights& weights, const QuantisedRows& x,
                             const MatMulRange& y);
void MatMulInt8TilesNeonI8mm(const PlainWeights& weights, const QuantisedRows& x,
                             const MatMulRange& y);

}  // namespace smoe::kernels
