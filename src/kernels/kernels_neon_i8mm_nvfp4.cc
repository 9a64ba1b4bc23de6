// Integer products of NVFP4 for many tokens with products of 8-bit matrices; kernels_neon_i8mm.cc
// says in what order they add, kernels_neon_nvfp4.cc how codes are read.
#include "kernels/neon.h"

#if defined(__aarch64__)
#if !defined(__ARM_FEATURE_DOTPROD) || !defined(__ARM_FEATURE_MATMUL_INT8)
#error "CMakeLists.txt must give this file the flags of what its table claims"
#endif
#include <arm_neon.h>

#include "kernels/neon_nvfp4.h"

namespace smoe::kernels {

static_assert(kTileRows == kNeonNvfp4Rows);

namespace {

constexpr size_t kRowPairs = kTileRows / 2;
constexpr size_t kTokenPairsMax = 8;  // of a batch
constexpr size_t kTokenBatch = 2 * kTokenPairsMax;
constexpr size_t kTilesMax = 16;  // of a block of rows: its sums are 16 KiB

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Two tokens' activations of one group.
struct PairCodes {
  int8x16_t eights[2];   // of each half: token 0's four even and four odd columns, then token 1's
  float32x4_t x_scales;  // [0][1][0][1]
};

// [row 2 i, token 0][row 2 i, token 1][row 2 i + 1, token 0][row 2 i + 1, token 1].
struct PairSums {
  float32x4_t rows[kRowPairs];
};

PairCodes ArrangePair(const int8_t* const* codes, const float* x_scales) {
  int32x2_t even[2];
  int32x2_t odd[2];
  for (size_t t = 0; t < 2; ++t) {
    const int8x8x2_t two = vld2_s8(codes[t]);
    even[t] = vreinterpret_s32_s8(two.val[0]);
    odd[t] = vreinterpret_s32_s8(two.val[1]);
  }
  const int32x4_t first = vcombine_s32(vzip1_s32(even[0], odd[0]), vzip1_s32(even[1], odd[1]));
  const int32x4_t second = vcombine_s32(vzip2_s32(even[0], odd[0]), vzip2_s32(even[1], odd[1]));
  const float32x2_t scales = vld1_f32(x_scales);
  return {.eights = {vreinterpretq_s8_s32(first), vreinterpretq_s8_s32(second)},
          .x_scales = vcombine_f32(scales, scales)};
}

// One group of one tile, and what it keeps for all pairs of tokens.
struct GroupWeights {
  int8x16_t eights[2][kRowPairs];  // of each half of the columns: two rows of eight
  float32x4_t scales[kRowPairs];   // [0][0][1][1]
};

void DecodeGroup(const GroupTile& tile, GroupWeights* out) {
  for (size_t half = 0; half < 2; ++half) {
    const EightCols cols = LookUp(tile, 4 * half);
    for (size_t i = 0; i < kTileVectors; ++i) {
      const int32x4_t even = vreinterpretq_s32_s8(cols.even[i]);
      const int32x4_t odd = vreinterpretq_s32_s8(cols.odd[i]);
      out->eights[half][2 * i] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
      out->eights[half][2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
    }
  }
  float32x4_t w_scales[kTileVectors];
  DecodeScales(tile.scales, w_scales);
  for (size_t i = 0; i < kTileVectors; ++i) {
    out->scales[2 * i] = vzip1q_f32(w_scales[i], w_scales[i]);
    out->scales[2 * i + 1] = vzip2q_f32(w_scales[i], w_scales[i]);
  }
}

void AddPair(const GroupWeights& weights, const PairCodes& x, PairSums* sums) {
  for (size_t i = 0; i < kRowPairs; ++i) {
    int32x4_t dot = vmmlaq_s32(vdupq_n_s32(0), weights.eights[0][i], x.eights[0]);
    dot = vmmlaq_s32(dot, weights.eights[1][i], x.eights[1]);
    const float32x4_t scale = vmulq_f32(weights.scales[i], x.x_scales);
    sums->rows[i] = vfmaq_f32(sums->rows[i], vcvtq_f32_s32(dot), scale);
  }
}

// What one call of SumTiles is for: `batch` tokens from `token` on. An odd batch's last pair takes
// its last token twice.
struct Job {
  const PlainWeights& weights;
  const QuantisedRows& x;
  size_t token;
  size_t batch;

  size_t PairCount() const { return (batch + 1) / 2; }
};

void ArrangePairs(const Job& job, size_t col, PairCodes* pairs) {
  const size_t blocks = job.x.col_stride / kActivationBlock;
  for (size_t p = 0; p < job.PairCount(); ++p) {
    const int8_t* codes[2];
    float x_scales[2];
    for (size_t i = 0; i < 2; ++i) {
      const size_t t = job.token + Min(2 * p + i, job.batch - 1);
      codes[i] = job.x.codes + t * job.x.col_stride + col;
      x_scales[i] = job.x.scales[t * blocks + col / kActivationBlock];
    }
    pairs[p] = ArrangePair(codes, x_scales);
  }
}

// All columns of `tile_count` tiles of rows from `row` on; sums are set, without the last factor.
void SumTiles(const Job& job, size_t row, size_t tile_count, PairSums (*sums)[kTokenPairsMax]) {
  const PlainWeights& weights = job.weights;
  __builtin_memset(sums, 0, tile_count * sizeof(*sums));
  PairCodes pairs[kTokenPairsMax];
  for (size_t col = 0; col < weights.cols; col += kGroupCols) {
    ArrangePairs(job, col, pairs);
    GroupTile tile = {.codes = weights.data + col / 2 * weights.rows + row,
                      .scales = weights.scales + col / kGroupCols * weights.rows + row,
                      .stride = weights.rows};
    for (size_t i = 0; i < tile_count; ++i) {
      GroupWeights group;
      DecodeGroup(tile, &group);
      for (size_t p = 0; p < job.PairCount(); ++p) AddPair(group, pairs[p], &sums[i][p]);
      tile.codes += kTileRows;
      tile.scales += kTileRows;
    }
  }
}

// Rows [skipped, skipped + count) of a tile to `row` of the output, times the last factor.
void StoreTile(const Job& job, const PairSums* sums, size_t skipped, size_t count, size_t row,
               const MatMulRange& y) {
  const float factor = job.weights.scale2 * kNvfp4SumUnit;
  for (size_t p = 0; p < job.PairCount(); ++p) {
    float rows[2][kTileRows];
    for (size_t i = 0; i < kTileVectors; ++i) {
      const float32x4_t low = vmulq_n_f32(sums[p].rows[2 * i], factor);
      const float32x4_t high = vmulq_n_f32(sums[p].rows[2 * i + 1], factor);
      vst1q_f32(rows[0] + 4 * i, vuzp1q_f32(low, high));
      vst1q_f32(rows[1] + 4 * i, vuzp2q_f32(low, high));
    }
    for (size_t i = 0; i < 2 && 2 * p + i < job.batch; ++i) {
      __builtin_memcpy(y.out + (job.token + 2 * p + i) * y.out_stride + row, rows[i] + skipped,
                       count * sizeof(float));
    }
  }
}

}  // namespace

void MatMulInt8Nvfp4NeonI8mm(const PlainWeights& weights, const QuantisedRows& x,
                             const MatMulRange& y) {
  PairSums sums[kTilesMax][kTokenPairsMax];
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const Job job = {.weights = weights,
                     .x = x,
                     .token = token,
                     .batch = Min(kTokenBatch, x.token_count - token)};
    size_t row = y.row_begin;
    while (row + kTileRows <= y.row_end) {
      const size_t tile_count = Min(kTilesMax, (y.row_end - row) / kTileRows);
      SumTiles(job, row, tile_count, sums);
      for (size_t i = 0; i < tile_count; ++i, row += kTileRows) {
        StoreTile(job, sums[i], 0, kTileRows, row, y);
      }
    }
    if (row == y.row_end) continue;
    // The tile reaches over the border of the range, or back from the end of the matrix.
    const size_t tile_row = Min(row, weights.rows - kTileRows);
    SumTiles(job, tile_row, 1, sums);
    StoreTile(job, sums[0], row - tile_row, y.row_end - row, row, y);
  }
}

}  // namespace smoe::kernels
#endif
