// Integer products of the format int8 for many tokens with products of 8-bit matrices;
// kernels_neon_i8mm.cc says in what order they add, kernels_neon_s8.cc how codes lie.
#include "kernels/neon.h"

#if defined(__aarch64__)
#if !defined(__ARM_FEATURE_DOTPROD) || !defined(__ARM_FEATURE_MATMUL_INT8)
#error "CMakeLists.txt must give this file the flags of what its table claims"
#endif
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

constexpr size_t kRows = tensor::kInt8TileRows;
constexpr size_t kRowPairs = kRows / 2;
constexpr size_t kEight = 8;  // columns of one instruction
constexpr size_t kGroupBytes = kRows * tensor::kInt8Group;
constexpr size_t kTokenPairs = 2;  // that use a block's registers together
constexpr size_t kTokens = 2 * kTokenPairs;
static_assert(tensor::kInt8TileCols == 4 && tensor::kInt8Group == kActivationBlock);

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// kTokens tokens; those behind the last repeat it.
struct Tokens {
  const int8_t* codes[kTokens];
  const float* scales[kTokens];
};

using Dots = int32x4_t[kTokenPairs][kRowPairs];
using Sums = float32x4_t[kTokenPairs][kRowPairs];

// Eight columns, two tiles. Of each register of the first tile and its partner in the second, the
// words of a row come together.
void AddEight(const uint8_t* tiles, const Tokens& x, size_t col, Dots& dots) {
  int8x16_t in[kTokenPairs];
  for (size_t t = 0; t < kTokenPairs; ++t) {
    in[t] = vcombine_s8(vld1_s8(x.codes[2 * t] + col), vld1_s8(x.codes[2 * t + 1] + col));
  }
  for (size_t v = 0; v < kRowPairs / 2; ++v) {
    const int32x4_t first = vreinterpretq_s32_u8(vld1q_u8(tiles + v * 16));
    const int32x4_t second = vreinterpretq_s32_u8(vld1q_u8(tiles + kRows * 4 + v * 16));
    const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(first, second));
    const int8x16_t high = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    for (size_t t = 0; t < kTokenPairs; ++t) {
      dots[t][2 * v] = vmmlaq_s32(dots[t][2 * v], low, in[t]);
      dots[t][2 * v + 1] = vmmlaq_s32(dots[t][2 * v + 1], high, in[t]);
    }
  }
}

void AddGroup(const uint8_t* codes, const uint8_t* scales, const Tokens& x, size_t group,
              Sums& sums) {
  Dots dots;
  for (size_t t = 0; t < kTokenPairs; ++t) {
    for (int32x4_t& dot : dots[t]) dot = vdupq_n_s32(0);
  }
  for (size_t col = 0; col < tensor::kInt8Group; col += kEight) {
    AddEight(codes + col * kRows, x, group * tensor::kInt8Group + col, dots);
  }
  for (size_t t = 0; t < kTokenPairs; ++t) {
    const float pair[2] = {x.scales[2 * t][group], x.scales[2 * t + 1][group]};
    const float32x4_t x_scales = vcombine_f32(vld1_f32(pair), vld1_f32(pair));
    for (size_t v = 0; v < kRowPairs / 2; ++v) {
      const float32x4_t four = vreinterpretq_f32_u8(vld1q_u8(scales + v * 16));
      const float32x4_t low = vmulq_f32(vzip1q_f32(four, four), x_scales);
      const float32x4_t high = vmulq_f32(vzip2q_f32(four, four), x_scales);
      float32x4_t* sum = sums[t] + 2 * v;
      sum[0] = vfmaq_f32(sum[0], vcvtq_f32_s32(dots[t][2 * v]), low);
      sum[1] = vfmaq_f32(sum[1], vcvtq_f32_s32(dots[t][2 * v + 1]), high);
    }
  }
}

// Rows [skipped, skipped + count) of the block for `token_count` tokens; `out` is the first's.
void StoreBlock(const Sums& sums, size_t skipped, size_t count, size_t token_count, float* out,
                size_t out_stride) {
  for (size_t t = 0; t < kTokenPairs; ++t) {
    float rows[2][kRows];
    for (size_t v = 0; v < kRowPairs / 2; ++v) {
      vst1q_f32(rows[0] + 4 * v, vuzp1q_f32(sums[t][2 * v], sums[t][2 * v + 1]));
      vst1q_f32(rows[1] + 4 * v, vuzp2q_f32(sums[t][2 * v], sums[t][2 * v + 1]));
    }
    for (size_t i = 0; i < 2 && 2 * t + i < token_count; ++i) {
      __builtin_memcpy(out + (2 * t + i) * out_stride, rows[i] + skipped, count * sizeof(float));
    }
  }
}

}  // namespace

void MatMulInt8TilesNeonI8mm(const PlainWeights& weights, const QuantisedRows& x,
                             const MatMulRange& y) {
  const size_t group_count = (weights.cols + tensor::kInt8Group - 1) / tensor::kInt8Group;
  const size_t blocks = x.col_stride / kActivationBlock;
  for (size_t row = y.row_begin; row < y.row_end;) {
    const size_t skipped = row % kRows;
    const size_t count = Min(kRows - skipped, y.row_end - row);
    const size_t block_group = row / kRows * group_count;
    for (size_t token = 0; token < x.token_count; token += kTokens) {
      const size_t token_count = Min(kTokens, x.token_count - token);
      Tokens tokens;
      for (size_t t = 0; t < kTokens; ++t) {
        const size_t source = token + Min(t, token_count - 1);
        tokens.codes[t] = x.codes + source * x.col_stride;
        tokens.scales[t] = x.scales + source * blocks;
      }
      Sums sums = {};
      for (size_t group = 0; group < group_count; ++group) {
        AddGroup(weights.data + (block_group + group) * kGroupBytes,
                 weights.scales + (block_group + group) * kRows * sizeof(float), tokens, group,
                 sums);
      }
      StoreBlock(sums, skipped, count, token_count, y.out + token * y.out_stride + row,
                 y.out_stride);
    }
    row += count;
  }
}

}  // namespace smoe::kernels
#endif
