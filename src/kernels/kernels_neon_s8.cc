// Integer products of the format int8 with dot products of four bytes; kernels_neon.cc says what
// holds for all tables of 64-bit ARM.
//
// A tile of 16 rows and 4 columns is four registers with a row in each lane: four activations are
// multiplied with every lane. A block of rows is one stretch of memory.
#include "kernels/neon.h"

#if defined(__aarch64__)
#if !defined(__ARM_FEATURE_DOTPROD)
#error "CMakeLists.txt must give this file the flags of what its table claims"
#endif
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

constexpr size_t kRows = tensor::kInt8TileRows;
constexpr size_t kVectors = kRows / 4;
constexpr size_t kGroupBytes = kRows * tensor::kInt8Group;
constexpr size_t kTokensTogether = 4;
static_assert(tensor::kInt8TileCols == 4 && tensor::kInt8Group == kActivationBlock);

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Sixteen columns, four tiles, for kTokens tokens.
template <size_t kTokens>
void AddSixteen(const uint8_t* tiles, const int8x16_t* x, int32x4_t (*dots)[kVectors]) {
  int8x16_t w[4][kVectors];
  for (size_t i = 0; i < 4; ++i) {
    for (size_t v = 0; v < kVectors; ++v) {
      w[i][v] = vreinterpretq_s8_u8(vld1q_u8(tiles + (i * kVectors + v) * 16));
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t v = 0; v < kVectors; ++v) {
      dots[t][v] = vdotq_laneq_s32(dots[t][v], w[0][v], x[t], 0);
      dots[t][v] = vdotq_laneq_s32(dots[t][v], w[1][v], x[t], 1);
      dots[t][v] = vdotq_laneq_s32(dots[t][v], w[2][v], x[t], 2);
      dots[t][v] = vdotq_laneq_s32(dots[t][v], w[3][v], x[t], 3);
    }
  }
}

// One block of rows, of `group_count` groups, for kTokens tokens from `token` on: rows
// [skipped, skipped + count) of it go to the output from `row` on.
template <size_t kTokens>
void MultiplyBlock(const uint8_t* codes, const uint8_t* scales, size_t group_count,
                   const QuantisedRows& x, size_t token, size_t skipped, size_t count, float* out,
                   size_t out_stride) {
  const size_t blocks = x.col_stride / kActivationBlock;
  float32x4_t sums[kTokens][kVectors] = {};
  for (size_t group = 0; group < group_count; ++group) {
    int32x4_t dots[kTokens][kVectors];
    for (size_t t = 0; t < kTokens; ++t) {
      for (int32x4_t& dot : dots[t]) dot = vdupq_n_s32(0);
    }
    for (size_t col = 0; col < tensor::kInt8Group; col += 16) {
      int8x16_t in[kTokens];
      for (size_t t = 0; t < kTokens; ++t) {
        in[t] = vld1q_s8(x.codes + (token + t) * x.col_stride + group * kActivationBlock + col);
      }
      AddSixteen<kTokens>(codes + group * kGroupBytes + col * kRows, in, dots);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const float x_scale = x.scales[(token + t) * blocks + group];
      for (size_t v = 0; v < kVectors; ++v) {
        const uint8_t* at = scales + (group * kRows + 4 * v) * sizeof(float);
        const float32x4_t scale = vmulq_n_f32(vreinterpretq_f32_u8(vld1q_u8(at)), x_scale);
        sums[t][v] = vfmaq_f32(sums[t][v], vcvtq_f32_s32(dots[t][v]), scale);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    float rows[kRows];
    for (size_t v = 0; v < kVectors; ++v) vst1q_f32(rows + 4 * v, sums[t][v]);
    __builtin_memcpy(out + (token + t) * out_stride, rows + skipped, count * sizeof(float));
  }
}

}  // namespace

void MatMulInt8TilesNeonDot(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  const size_t group_count = (weights.cols + tensor::kInt8Group - 1) / tensor::kInt8Group;
  for (size_t row = y.row_begin; row < y.row_end;) {
    const size_t skipped = row % kRows;
    const size_t count = Min(kRows - skipped, y.row_end - row);
    const size_t block = row / kRows;
    const uint8_t* codes = weights.data + block * group_count * kGroupBytes;
    const uint8_t* scales = weights.scales + block * group_count * kRows * sizeof(float);
    float* out = y.out + row;
    size_t t = 0;
    for (; t + kTokensTogether <= x.token_count; t += kTokensTogether) {
      MultiplyBlock<kTokensTogether>(codes, scales, group_count, x, t, skipped, count, out,
                                     y.out_stride);
    }
    const size_t left = x.token_count - t;
    if (left == 3)
      MultiplyBlock<3>(codes, scales, group_count, x, t, skipped, count, out, y.out_stride);
    if (left == 2)
      MultiplyBlock<2>(codes, scales, group_count, x, t, skipped, count, out, y.out_stride);
    if (left == 1)
      MultiplyBlock<1>(codes, scales, group_count, x, t, skipped, count, out, y.out_stride);
    row += count;
  }
}

}  // namespace smoe::kernels
#endif
