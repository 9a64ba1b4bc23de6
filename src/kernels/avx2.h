// kernels/avx2.h: what the files of the AVX2 and AVX-VNNI tables call in each other, and what the
// other tables take over from them. Declarations only, for the reason that internal.h gives.
#pragma once

#include "kernels/internal.h"

namespace smoe::kernels {

constexpr size_t kIntRows = 8;  // rows that the integer kernels take together, one in each lane

struct IntTile {
  uint64_t row[kIntRows];          // a tile at the end of the range repeats its last row
  const uint8_t* codes[kIntRows];  // each row's first byte; rows start at bytes here
  size_t row_count;
};
IntTile MakeTile(const PlainWeights& weights, size_t row, size_t row_end);

// The scales of the pieces [first, first + count) of each row: out[piece - first][row]. A piece is
// piece_cols columns inside one group. f16.
void DecodeScaleBitsAvx2(const PlainWeights& weights, const IntTile& tile, size_t piece_cols,
                         size_t first, size_t count, uint16_t (*out)[kIntRows]);
// The same as w_scales. out is aligned to 32 bytes.
void DecodeScalesAvx2(const PlainWeights& weights, const IntTile& tile, size_t piece_cols,
                      size_t first, size_t count, float* out);

void MatMulF32Avx2(const tensor::WeightView& view, const FloatRows& x, const MatMulRange& y);
void RmsNormAvx2(const float* x, const float* weight, float eps, size_t count, float* out);
void SiluMulAvx2(float* gate, const float* up, size_t count);
void SoftmaxAvx2(float* x, size_t count);
void SigmoidAvx2(const float* x, size_t count, float* out);
void AddScaledAvx2(const float* x, float weight, size_t count, float* out);
void AttendAvx2(const AttentionJob& job);
void MergeAttentionAvx2(const AttentionParts& parts, size_t head_dim, float* out);
void ToF16Avx2(const float* x, size_t count, uint16_t* out);

bool QuantiseRowAvx2(const float* x, size_t cols, int8_t* codes, float* scales);

void MatMulInt8Avx2(const tensor::WeightView& view, const QuantisedRows& x, const MatMulRange& y);

// The same for many tokens: weights are unpacked and transposed once for a batch of them, which
// pays for more than kRowTokensMax. Requires cols a multiple of 64, and groups of 8 (not Q2), 16,
// 32 or a multiple of 64.
constexpr size_t kRowTokensMax = 8;
void MatMulInt8BatchAvx2(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y);
void MatMulInt8BatchAvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y);

// NVFP4. Requires at least so many rows of W, whatever the range, and cols a multiple of
// kNvfp4Group.
constexpr size_t kNvfp4IntRowsMin = 32;
constexpr size_t kNvfp4FloatRowsMin = 8;
void MatMulInt8Nvfp4Avx2(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y);
void MatMulInt8Nvfp4AvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y);
void MatMulF32Nvfp4Avx2(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y);

// int8, any shape. From so many tokens on activations and weights are prepared for all of them.
constexpr size_t kTilesManyTokensMin = 4;
void MatMulInt8TilesAvx2(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y);
void MatMulInt8TilesAvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y);
// Decodes the first columns of [col, col + count) of a row, and says how many. Requires col to be a
// multiple of 8.
size_t DecodeTilesAvx2(const PlainWeights& weights, uint64_t row, size_t col, size_t count,
                       float* out);

}  // namespace smoe::kernels
