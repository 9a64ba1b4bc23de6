// Integer products of NVFP4 with dot products of four bytes; kernels_neon.cc says what holds for
// all tables of 64-bit ARM.
//
// Transposed, neighbouring bytes are neighbouring rows. Four byte rows are interleaved, so that
// each 32-bit lane has four columns of one row, even ones in the low nibbles and odd ones in the
// high ones; four activations are multiplied with every lane.
#include "kernels/neon.h"

#if defined(__aarch64__)
#if !defined(__ARM_FEATURE_DOTPROD)
#error "CMakeLists.txt must give this file the flags of what its table claims"
#endif
#include <arm_neon.h>

#include "kernels/neon_nvfp4.h"

namespace smoe::kernels {

static_assert(kTileRows == kNeonNvfp4Rows);

namespace {

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// One token's activations of one group.
struct GroupCodes {
  int8x16_t codes;  // the even columns, then the odd ones
  float x_scale;
};

GroupCodes ArrangeCodes(const int8_t* codes, float x_scale) {
  const int8x8x2_t two = vld2_s8(codes);
  return {.codes = vcombine_s8(two.val[0], two.val[1]), .x_scale = x_scale};
}

// One half of a group for kTokens tokens.
template <int kHalf, size_t kTokens>
void AddEight(const GroupTile& tile, const GroupCodes* x, int32x4_t (*dots)[kTileVectors]) {
  const EightCols cols = LookUp(tile, 4 * kHalf);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kTileVectors; ++i) {
      dots[t][i] = vdotq_laneq_s32(dots[t][i], cols.even[i], x[t].codes, kHalf);
      dots[t][i] = vdotq_laneq_s32(dots[t][i], cols.odd[i], x[t].codes, 2 + kHalf);
    }
  }
}

// One group of one tile for kTokens tokens; sums of token t at sums + t * stride.
template <size_t kTokens>
void AddGroup(const GroupTile& tile, const GroupCodes* x, const float32x4_t* w_scales, float* sums,
              size_t stride) {
  int32x4_t dots[kTokens][kTileVectors];
  for (size_t t = 0; t < kTokens; ++t) {
    for (int32x4_t& dot : dots[t]) dot = vdupq_n_s32(0);
  }
  AddEight<0, kTokens>(tile, x, dots);
  AddEight<1, kTokens>(tile, x, dots);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kTileVectors; ++i) {
      float* at = sums + t * stride + 4 * i;
      const float32x4_t scale = vmulq_n_f32(w_scales[i], x[t].x_scale);
      vst1q_f32(at, vfmaq_f32(vld1q_f32(at), vcvtq_f32_s32(dots[t][i]), scale));
    }
  }
}

constexpr size_t kTokensTogether = 4;
constexpr size_t kTokenBatch = 16;
constexpr size_t kSumsMax = 4096;  // of a block of rows: 16 KiB, half of a small L1

// One group of one tile for `batch` tokens.
void AddTile(const GroupTile& tile, const GroupCodes* x, size_t batch, float* sums, size_t stride) {
  float32x4_t w_scales[kTileVectors];
  DecodeScales(tile.scales, w_scales);
  for (; batch >= kTokensTogether; batch -= kTokensTogether) {
    AddGroup<kTokensTogether>(tile, x, w_scales, sums, stride);
    x += kTokensTogether;
    sums += kTokensTogether * stride;
  }
  if (batch == 3) AddGroup<3>(tile, x, w_scales, sums, stride);
  if (batch == 2) AddGroup<2>(tile, x, w_scales, sums, stride);
  if (batch == 1) AddGroup<1>(tile, x, w_scales, sums, stride);
}

// All columns of `tile_count` tiles of rows from `row` on, for `batch` tokens from `token` on;
// sums, those of token t at sums + t * stride, are set.
void SumTiles(const PlainWeights& weights, const QuantisedRows& x, size_t token, size_t batch,
              size_t row, size_t tile_count, float* sums, size_t stride) {
  const size_t blocks = x.col_stride / kActivationBlock;
  for (size_t t = 0; t < batch; ++t) {
    __builtin_memset(sums + t * stride, 0, tile_count * kTileRows * sizeof(float));
  }
  GroupCodes codes[kTokenBatch];
  for (size_t col = 0; col < weights.cols; col += kGroupCols) {
    for (size_t t = 0; t < batch; ++t) {
      const float x_scale = x.scales[(token + t) * blocks + col / kActivationBlock];
      codes[t] = ArrangeCodes(x.codes + (token + t) * x.col_stride + col, x_scale);
    }
    GroupTile tile = {.codes = weights.data + col / 2 * weights.rows + row,
                      .scales = weights.scales + col / kGroupCols * weights.rows + row,
                      .stride = weights.rows};
    for (size_t i = 0; i < tile_count; ++i) {
      AddTile(tile, codes, batch, sums + i * kTileRows, stride);
      tile.codes += kTileRows;
      tile.scales += kTileRows;
    }
  }
  const float factor = weights.scale2 * kNvfp4SumUnit;
  for (size_t t = 0; t < batch; ++t) {
    for (size_t i = 0; i < tile_count * kTileRows; i += 4) {
      float* at = sums + t * stride + i;
      vst1q_f32(at, vmulq_n_f32(vld1q_f32(at), factor));
    }
  }
}

// Fewer than kTileRows rows are left of the range: the tile reaches over its border, or back from
// the end of the matrix, and its sums are kept apart.
void SumPartOfTile(const PlainWeights& weights, const QuantisedRows& x, size_t token, size_t batch,
                   size_t row, const MatMulRange& y) {
  float sums[kTokenBatch * kTileRows];
  const size_t tile_row = Min(row, weights.rows - kTileRows);
  SumTiles(weights, x, token, batch, tile_row, 1, sums, kTileRows);
  for (size_t t = 0; t < batch; ++t) {
    __builtin_memcpy(y.out + (token + t) * y.out_stride + row,
                     sums + t * kTileRows + (row - tile_row), (y.row_end - row) * sizeof(float));
  }
}

}  // namespace

void MatMulInt8Nvfp4NeonDot(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const size_t batch = Min(kTokenBatch, x.token_count - token);
    const size_t tiles_max = kSumsMax / batch / kTileRows;
    size_t row = y.row_begin;
    while (row + kTileRows <= y.row_end) {
      const size_t tile_count = Min(tiles_max, (y.row_end - row) / kTileRows);
      float* sums = y.out + token * y.out_stride + row;
      SumTiles(weights, x, token, batch, row, tile_count, sums, y.out_stride);
      row += tile_count * kTileRows;
    }
    if (row < y.row_end) SumPartOfTile(weights, x, token, batch, row, y);
  }
}

}  // namespace smoe::kernels
#endif
