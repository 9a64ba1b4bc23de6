// Integer products of Q4 and Q2 for many tokens with products of 8-bit matrices;
// kernels_neon.cc says what holds for all tables of 64-bit ARM.
//
// One instruction multiplies eight columns of two rows with eight columns of two tokens and adds to
// [row 0 token 0][row 0 token 1][row 1 token 0][row 1 token 1]. Scales, and the sums of a stretch
// of columns, stay in this order. One or two tokens leave half of such a register unused or gain
// nothing: they go to the dot products.
#include "kernels/neon.h"

#if defined(__aarch64__)
#if !defined(__ARM_FEATURE_DOTPROD) || !defined(__ARM_FEATURE_MATMUL_INT8)
#error "CMakeLists.txt must give this file the flags of what its table claims"
#endif
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

constexpr size_t kEight = 8;                 // columns of one instruction
constexpr size_t kRowPairs = kNeonRows / 2;  // of a tile
constexpr size_t kTokens = 4;                // that use a tile's registers together
constexpr size_t kTokenPairs = kTokens / 2;
constexpr size_t kTokenBatch = 32;  // tokens whose activations are arranged at once
constexpr size_t kEightsMax = kNeonStretchCols / kEight;
constexpr size_t kPiecesMax = kNeonStretchCols / kNeonPieceColsMin;
constexpr size_t kBlocksMax = kNeonStretchCols / kActivationBlock;

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Activations of one stretch for kTokens tokens; those behind the last repeat it.
struct TokenStretch {
  int8_t codes[kEightsMax][kTokens][kEight];
  float scales[kBlocksMax][kTokenPairs][4];  // [0][1][0][1] of each pair
};

// Weights of one stretch for one tile.
struct TileStretch {
  int8_t codes[kEightsMax][kNeonRows][kEight];
  float scales[kPiecesMax][kRowPairs][4];  // [0][0][1][1] of each pair
};

struct Job {
  const QuantisedRows& x;
  const MatMulRange& y;
  size_t col;        // the stretch's first
  size_t col_count;  // a multiple of kActivationBlock
};

void ArrangeTokens(const Job& job, size_t token, size_t token_count, TokenStretch* out) {
  const size_t blocks = job.x.col_stride / kActivationBlock;
  for (size_t t = 0; t < kTokens; ++t) {
    const size_t source = token + Min(t, token_count - 1);
    const int8_t* codes = job.x.codes + source * job.x.col_stride + job.col;
    const float* scales = job.x.scales + source * blocks + job.col / kActivationBlock;
    for (size_t i = 0; i < job.col_count / kEight; ++i) {
      vst1_s8(out->codes[i][t], vld1_s8(codes + i * kEight));
    }
    for (size_t i = 0; i < job.col_count / kActivationBlock; ++i) {
      out->scales[i][t / 2][t % 2] = scales[i];
      out->scales[i][t / 2][t % 2 + 2] = scales[i];
    }
  }
}

void ArrangeTile(const PlainWeights& weights, const NeonTile& tile, const Job& job,
                 size_t piece_cols, TileStretch* out) {
  int8_t decoded[kNeonRows][kNeonStretchCols];
  DecodeCodesNeon(weights, tile, job.col, job.col_count, decoded);
  for (size_t i = 0; i < job.col_count / kEight; ++i) {
    for (size_t r = 0; r < kNeonRows; ++r) {
      vst1_s8(out->codes[i][r], vld1_s8(decoded[r] + i * kEight));
    }
  }
  float scales[kPiecesMax][kNeonRows];
  const size_t piece_count = job.col_count / piece_cols;
  DecodeScalesNeon(weights, tile, piece_cols, job.col / piece_cols, piece_count, scales);
  for (size_t i = 0; i < piece_count; ++i) {
    for (size_t half = 0; half < 2; ++half) {
      const float32x4_t four = vld1q_f32(scales[i] + 4 * half);
      vst1q_f32(out->scales[i][2 * half], vzip1q_f32(four, four));
      vst1q_f32(out->scales[i][2 * half + 1], vzip2q_f32(four, four));
    }
  }
}

using Sums = float32x4_t[kRowPairs][kTokenPairs];

template <size_t kPieceCols>
void AddStretch(const TileStretch& tile, const TokenStretch& x, size_t col_count, Sums& sums) {
  for (size_t col = 0; col < col_count; col += kPieceCols) {
    int32x4_t dots[kRowPairs][kTokenPairs];
    for (size_t p = 0; p < kRowPairs; ++p) {
      for (int32x4_t& dot : dots[p]) dot = vdupq_n_s32(0);
    }
    for (size_t i = col / kEight; i < (col + kPieceCols) / kEight; ++i) {
      int8x16_t in[kTokenPairs];
      for (size_t t = 0; t < kTokenPairs; ++t) in[t] = vld1q_s8(x.codes[i][2 * t]);
      for (size_t p = 0; p < kRowPairs; ++p) {
        const int8x16_t w = vld1q_s8(tile.codes[i][2 * p]);
        for (size_t t = 0; t < kTokenPairs; ++t) dots[p][t] = vmmlaq_s32(dots[p][t], w, in[t]);
      }
    }
    for (size_t t = 0; t < kTokenPairs; ++t) {
      const float32x4_t x_scale = vld1q_f32(x.scales[col / kActivationBlock][t]);
      for (size_t p = 0; p < kRowPairs; ++p) {
        const float32x4_t scale = vmulq_f32(vld1q_f32(tile.scales[col / kPieceCols][p]), x_scale);
        sums[p][t] = vfmaq_f32(sums[p][t], vcvtq_f32_s32(dots[p][t]), scale);
      }
    }
  }
}

// Between two stretches the sums wait in the output: rows [row, row + row_count) of each token.
void LoadSums(const MatMulRange& y, size_t token, size_t token_count, size_t row, size_t row_count,
              Sums& sums) {
  for (size_t t = 0; t < kTokenPairs; ++t) {
    float rows[2][kNeonRows] = {};
    for (size_t i = 0; i < 2 && 2 * t + i < token_count; ++i) {
      const float* from = y.out + (token + 2 * t + i) * y.out_stride + row;
      __builtin_memcpy(rows[i], from, row_count * sizeof(float));
    }
    for (size_t half = 0; half < 2; ++half) {
      const float32x4_t first = vld1q_f32(rows[0] + 4 * half);
      const float32x4_t second = vld1q_f32(rows[1] + 4 * half);
      sums[2 * half][t] = vzip1q_f32(first, second);
      sums[2 * half + 1][t] = vzip2q_f32(first, second);
    }
  }
}

void StoreSums(const MatMulRange& y, size_t token, size_t token_count, size_t row, size_t row_count,
               const Sums& sums) {
  for (size_t t = 0; t < kTokenPairs; ++t) {
    float rows[2][kNeonRows];
    for (size_t half = 0; half < 2; ++half) {
      const float32x4_t low = sums[2 * half][t];
      const float32x4_t high = sums[2 * half + 1][t];
      vst1q_f32(rows[0] + 4 * half, vuzp1q_f32(low, high));
      vst1q_f32(rows[1] + 4 * half, vuzp2q_f32(low, high));
    }
    for (size_t i = 0; i < 2 && 2 * t + i < token_count; ++i) {
      float* to = y.out + (token + 2 * t + i) * y.out_stride + row;
      __builtin_memcpy(to, rows[i], row_count * sizeof(float));
    }
  }
}

template <size_t kPieceCols>
void MultiplyBatch(const PlainWeights& weights, const Job& job, size_t token, size_t batch) {
  TokenStretch x[kTokenBatch / kTokens];
  TileStretch stretch;
  for (size_t t = 0; t < batch; t += kTokens) {
    ArrangeTokens(job, token + t, Min(kTokens, batch - t), &x[t / kTokens]);
  }
  for (size_t row = job.y.row_begin; row < job.y.row_end; row += kNeonRows) {
    const NeonTile tile = MakeNeonTile(weights, row, job.y.row_end);
    ArrangeTile(weights, tile, job, kPieceCols, &stretch);
    for (size_t t = 0; t < batch; t += kTokens) {
      const size_t token_count = Min(kTokens, batch - t);
      Sums sums = {};
      if (job.col > 0) LoadSums(job.y, token + t, token_count, row, tile.row_count, sums);
      AddStretch<kPieceCols>(stretch, x[t / kTokens], job.col_count, sums);
      StoreSums(job.y, token + t, token_count, row, tile.row_count, sums);
    }
  }
}

}  // namespace

void MatMulInt8NeonI8mm(const tensor::WeightView& view, const QuantisedRows& x,
                        const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (weights.format == tensor::WeightFormat::kNvfp4) {
    if (weights.rows < kNeonNvfp4Rows || x.token_count < kNeonBatchTokensMin) {
      return MatMulInt8NeonDot(view, x, y);
    }
    return MatMulInt8Nvfp4NeonI8mm(weights, x, y);
  }
  if (weights.format == tensor::WeightFormat::kInt8 && x.token_count >= kNeonBatchTokensMin) {
    return MatMulInt8TilesNeonI8mm(weights, x, y);
  }
  const size_t piece_cols = NeonPieceCols(weights);
  if (piece_cols == 0 || x.token_count < kNeonBatchTokensMin) return MatMulInt8NeonDot(view, x, y);
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const size_t batch = Min(kTokenBatch, x.token_count - token);
    for (size_t col = 0; col < weights.cols; col += kNeonStretchCols) {
      const Job job = {
          .x = x, .y = y, .col = col, .col_count = Min(kNeonStretchCols, weights.cols - col)};
      if (piece_cols == 8) MultiplyBatch<8>(weights, job, token, batch);
      if (piece_cols == 16) MultiplyBatch<16>(weights, job, token, batch);
      if (piece_cols == 32) MultiplyBatch<32>(weights, job, token, batch);
      if (piece_cols == 64) MultiplyBatch<64>(weights, job, token, batch);
    }
  }
}

}  // namespace smoe::kernels
#endif
