// The tables for 64-bit ARM, and their matmul_f32. This file, kernels_neon_rows.cc and
// kernels_neon_attention.cc want nothing that some 64-bit ARM lacks. The others do integer
// products: kernels_neon_i8mm*.cc with products of 8-bit matrices, the rest with dot products of
// bytes; for them holds what kernels_avx2.cc says of inline functions. The bits are those of
// scalar.cc.
//
// A CPU without dot products runs "neon": its integers are scalar code.
#include "kernels/neon.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

constexpr size_t kLanes = 4;
constexpr size_t kVectors = kSumLanes / kLanes;

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Four weights from the element at `at`.
struct F32 {
  static constexpr size_t kBytes = 4;
  static float32x4_t Load(const uint8_t* at) { return vreinterpretq_f32_u8(vld1q_u8(at)); }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static float32x4_t Load(const uint8_t* at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
  }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  static float32x4_t Load(const uint8_t* at) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at)), 16));
  }
};

// The tree over the sixteen partial sums.
float SumLanes(const float* lanes) {
  float32x4_t sums[kVectors];
  for (size_t k = 0; k < kVectors; ++k) sums[k] = vld1q_f32(lanes + k * kLanes);
  const float32x4_t four = vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

// Four columns of kRows rows for kTokens tokens.
template <class Format, size_t kRows, size_t kTokens>
inline void AddFour(const uint8_t* const* rows, const float* const* x, size_t col,
                    float32x4_t (&sums)[kTokens][kRows]) {
  float32x4_t values[kTokens];
  for (size_t t = 0; t < kTokens; ++t) values[t] = vld1q_f32(x[t] + col);
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    const float32x4_t w = Format::Load(rows[r] + col * Format::kBytes);
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) sums[t][r] = vfmaq_f32(sums[t][r], w, values[t]);
  }
}

template <size_t kRows, size_t kTokens>
inline void LoadLanes(float* const* lanes, size_t first, float32x4_t (&sums)[kTokens][kRows]) {
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kRows; ++r) sums[t][r] = vld1q_f32(lanes[t] + r * kSumLanes + first);
  }
}

template <size_t kRows, size_t kTokens>
inline void StoreLanes(const float32x4_t (&sums)[kTokens][kRows], size_t first,
                       float* const* lanes) {
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kRows; ++r) vst1q_f32(lanes[t] + r * kSumLanes + first, sums[t][r]);
  }
}

// lanes[token][row][kSumLanes] += rows * x over whole sixteens of columns. Four arrays, since g++
// 12 would keep one with another dimension in memory.
template <class Format, size_t kRows, size_t kTokens>
void AddProducts(const uint8_t* const* rows, const float* const* x, size_t count,
                 float* const* lanes) {
  float32x4_t sums0[kTokens][kRows];
  float32x4_t sums4[kTokens][kRows];
  float32x4_t sums8[kTokens][kRows];
  float32x4_t sums12[kTokens][kRows];
  LoadLanes(lanes, 0, sums0);
  LoadLanes(lanes, 4, sums4);
  LoadLanes(lanes, 8, sums8);
  LoadLanes(lanes, 12, sums12);
  for (size_t col = 0; col + kSumLanes <= count; col += kSumLanes) {
    AddFour<Format>(rows, x, col, sums0);
    AddFour<Format>(rows, x, col + 4, sums4);
    AddFour<Format>(rows, x, col + 8, sums8);
    AddFour<Format>(rows, x, col + 12, sums12);
  }
  StoreLanes(sums0, 0, lanes);
  StoreLanes(sums4, 4, lanes);
  StoreLanes(sums8, 8, lanes);
  StoreLanes(sums12, 12, lanes);
}

// What is left behind the last whole sixteen.
void AddTail(const float* row, const float* x, size_t count, float* lanes) {
  for (size_t i = 0; i < count; ++i) lanes[i] = __builtin_fmaf(row[i], x[i], lanes[i]);
}

// kRows rows from `row` on (at the end of the range the last repeats) for kTokens tokens.
template <class Format, size_t kRows, size_t kTokens>
void MultiplyTile(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y,
                  size_t token, size_t row) {
  const size_t cols = weights.cols;
  const size_t row_count = Min(kRows, y.row_end - row);
  const uint8_t* rows[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    rows[r] = weights.data + (row + Min(r, row_count - 1)) * cols * Format::kBytes;
  }
  const float* in[kTokens];
  float lanes[kTokens][kRows * kSumLanes] = {};
  float* sums[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    in[t] = x.data + (token + t) * x.stride;
    sums[t] = lanes[t];
  }
  AddProducts<Format, kRows, kTokens>(rows, in, cols, sums);
  const size_t whole = cols - cols % kSumLanes;
  for (size_t r = 0; r < row_count; ++r) {
    float tail[kSumLanes];
    DecodeWeightsScalar(weights, (row + r) * cols + whole, cols - whole, tail);
    for (size_t t = 0; t < kTokens; ++t) {
      AddTail(tail, in[t] + whole, cols - whole, sums[t] + r * kSumLanes);
      y.out[(token + t) * y.out_stride + row + r] = SumLanes(sums[t] + r * kSumLanes);
    }
  }
}

// Registers hold 16 sums of one token and 4 rows, or 24 of 3 tokens and 2 rows.
constexpr size_t kTileRows = 4;
constexpr size_t kPairRows = 2;
constexpr size_t kTileTokens = 3;

template <class Format>
void MultiplyDense(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y) {
  for (size_t row = y.row_begin; row < y.row_end; row += kTileRows) {
    size_t token = 0;
    for (; token + kTileTokens <= x.token_count; token += kTileTokens) {
      for (size_t r = row; r < Min(row + kTileRows, y.row_end); r += kPairRows) {
        MultiplyTile<Format, kPairRows, kTileTokens>(weights, x, y, token, r);
      }
    }
    for (; token < x.token_count; ++token) {
      MultiplyTile<Format, kTileRows, 1>(weights, x, y, token, row);
    }
  }
}

// ---- Q4, Q2 and int8, decoded a stretch at a time ----

float ScaleAt(const uint8_t* scales, uint64_t group) {
  uint16_t bits;
  __builtin_memcpy(&bits, scales + group * 2, sizeof(bits));
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}

uint8x8_t EightCodes(const PlainWeights& weights, uint64_t first) {
  if (weights.format == WeightFormat::kSmoeQ4) {
    uint32_t word;
    __builtin_memcpy(&word, weights.data + first / 2, sizeof(word));
    const uint8x8_t bytes = vcreate_u8(word);
    return vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
  }
  const uint8x8_t bytes =
      vext_u8(vdup_n_u8(weights.data[first / 4]), vdup_n_u8(weights.data[first / 4 + 1]), 4);
  constexpr int8_t kToBottom[8] = {0, -2, -4, -6, 0, -2, -4, -6};
  return vand_u8(vshl_u8(bytes, vld1_s8(kToBottom)), vdup_n_u8(3));
}

// Four columns of a row lie together. `first` is a multiple of four, and groups end the stretch or
// lie inside it whole.
void DecodeInt8(const PlainWeights& weights, uint64_t row, uint64_t first, size_t count,
                float* out) {
  constexpr size_t kTileBytes = tensor::kInt8TileRows * tensor::kInt8TileCols;
  const uint64_t groups = (weights.cols + tensor::kInt8Group - 1) / tensor::kInt8Group;
  const uint64_t block = row / tensor::kInt8TileRows;
  const uint64_t row_in_block = row % tensor::kInt8TileRows;
  const uint8_t* codes = weights.data +
                         block * groups * tensor::kInt8Group * tensor::kInt8TileRows +
                         row_in_block * tensor::kInt8TileCols;
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t col = first + i;
    const uint64_t scale_index =
        (block * groups + col / tensor::kInt8Group) * tensor::kInt8TileRows + row_in_block;
    float scale;
    __builtin_memcpy(&scale, weights.scales + scale_index * sizeof(scale), sizeof(scale));
    uint32_t word;
    __builtin_memcpy(&word, codes + col / 4 * kTileBytes, sizeof(word));
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)));
    const float32x4_t values = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    // Behind the last column there is padding, and room in `out`.
    vst1q_f32(out + i, vmulq_n_f32(values, scale));
  }
}

// Eight codes at a time where the stretch starts at a byte and groups are multiples of eight.
void DecodeSmoe(const PlainWeights& weights, uint64_t first, size_t count, float* out) {
  const bool is_fast = first % 8 == 0 && weights.group_size % 8 == 0;
  const size_t fast = is_fast ? count & ~size_t{7} : 0;
  // A level's four bytes are looked up one by one.
  constexpr uint8_t kSpread[2][16] = {{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
                                      {4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7}};
  constexpr uint8_t kByte[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  uint8_t bytes[64] = {};
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  if (is_q4) __builtin_memcpy(bytes, kQ4Levels, sizeof(kQ4Levels));
  if (!is_q4) __builtin_memcpy(bytes, kQ2Levels, sizeof(kQ2Levels));
  const uint8x16x4_t levels = vld1q_u8_x4(bytes);
  for (size_t i = 0; i < fast;) {
    const uint64_t group = (first + i) / weights.group_size;
    const size_t end = Min(fast, (group + 1) * weights.group_size - first);
    const float32x4_t scale = vdupq_n_f32(ScaleAt(weights.scales, group));
    for (; i < end; i += 8) {
      const uint8x8_t quads = vshl_n_u8(EightCodes(weights, first + i), 2);
      for (size_t k = 0; k < 2; ++k) {
        const uint8x16_t spread = vqtbl1q_u8(vcombine_u8(quads, quads), vld1q_u8(kSpread[k]));
        const uint8x16_t level = vqtbl4q_u8(levels, vorrq_u8(spread, vld1q_u8(kByte)));
        vst1q_f32(out + i + 4 * k, vmulq_f32(vreinterpretq_f32_u8(level), scale));
      }
    }
  }
  if (fast < count) DecodeWeightsScalar(weights, first + fast, count - fast, out + fast);
}

constexpr size_t kTokenBatch = 16;  // tokens that use decoded weights before they are overwritten

// One stretch of columns of decoded rows for `batch` tokens from `token` on.
void AddBatch(const float* const* rows, const FloatRows& x, size_t token, size_t batch, size_t col,
              size_t count, float (*lanes)[kTileRows * kSumLanes]) {
  const uint8_t* bytes[kTileRows];
  for (size_t r = 0; r < kTileRows; ++r) bytes[r] = reinterpret_cast<const uint8_t*>(rows[r]);
  const float* in[kTokenBatch];
  for (size_t t = 0; t < batch; ++t) in[t] = x.data + (token + t) * x.stride + col;
  size_t t = 0;
  for (; t + kTileTokens <= batch; t += kTileTokens) {
    for (size_t r = 0; r < kTileRows; r += kPairRows) {
      float* const sums[kTileTokens] = {lanes[t] + r * kSumLanes, lanes[t + 1] + r * kSumLanes,
                                        lanes[t + 2] + r * kSumLanes};
      AddProducts<F32, kPairRows, kTileTokens>(bytes + r, in + t, count, sums);
    }
  }
  for (; t < batch; ++t) {
    float* const sums = lanes[t];
    AddProducts<F32, kTileRows, 1>(bytes, in + t, count, &sums);
  }
  const size_t whole = count - count % kSumLanes;
  for (t = 0; t < batch; ++t) {
    for (size_t r = 0; r < kTileRows; ++r) {
      AddTail(rows[r] + whole, in[t] + whole, count - whole, lanes[t] + r * kSumLanes);
    }
  }
}

void MultiplyDecoded(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y) {
  constexpr size_t kStretch = 512;  // weights decoded at once: 8 KiB for four rows
  const bool is_int8 = weights.format == WeightFormat::kInt8;
  float decoded[kTileRows][kStretch];
  const float* const rows[kTileRows] = {decoded[0], decoded[1], decoded[2], decoded[3]};
  float lanes[kTokenBatch][kTileRows * kSumLanes];
  for (size_t row = y.row_begin; row < y.row_end; row += kTileRows) {
    const size_t row_count = Min(kTileRows, y.row_end - row);
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      const size_t batch = Min(kTokenBatch, x.token_count - token);
      __builtin_memset(lanes, 0, sizeof(lanes));
      for (size_t col = 0; col < weights.cols; col += kStretch) {
        const size_t count = Min(kStretch, weights.cols - col);
        for (size_t r = 0; r < kTileRows; ++r) {
          // A short tile repeats its last row, to be read inside the matrix.
          const size_t source = row + Min(r, row_count - 1);
          if (is_int8) DecodeInt8(weights, source, col, count, decoded[r]);
          if (!is_int8) DecodeSmoe(weights, source * weights.cols + col, count, decoded[r]);
        }
        AddBatch(rows, x, token, batch, col, count, lanes);
      }
      for (size_t t = 0; t < batch; ++t) {
        float* out = y.out + (token + t) * y.out_stride + row;
        for (size_t r = 0; r < row_count; ++r) out[r] = SumLanes(lanes[t] + r * kSumLanes);
      }
    }
  }
}

// ---- NVFP4 ----

constexpr size_t kFloatRows = 8;  // neighbouring bytes are neighbouring rows: a row in each lane
constexpr size_t kStretchCols = 256;  // columns decoded at once: 8 KiB

struct EightFloats {
  float32x4_t low;
  float32x4_t high;
};

EightFloats FromHalves(uint16x8_t bits) {
  const float16x8_t halves = vreinterpretq_f16_u16(bits);
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_f32_f16(vget_high_f16(halves))};
}

// E4M3: as f16 bits they mean 2^-8 of their value, subnormals included: both have four bits of
// exponent here. NaN stays NaN.
EightFloats ScalesFromE4M3(const uint8_t* at) {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(at)));
  const uint16x8_t half =
      vandq_u16(vshlq_n_u16(vreinterpretq_u16_s16(wide), 7), vdupq_n_u16(0xbf80));
  const uint16x8_t nan = vdupq_n_u16(0x3f80);
  const uint16x8_t bits = vorrq_u16(half, vceqq_u16(vandq_u16(half, nan), nan));
  const EightFloats small = FromHalves(bits);
  const float32x4_t unit = vdupq_n_f32(1 / kNvfp4ScaleUnit);
  return {vmulq_f32(small.low, unit), vmulq_f32(small.high, unit)};
}

// Columns [col, col + count) of kFloatRows rows: out[column][row].
void DecodeColumns(const PlainWeights& weights, size_t row, size_t col, size_t count,
                   float (*out)[kFloatRows]) {
  // High bytes of the f16 of each E2M1 code; the low ones are 0.
  constexpr uint8_t kHalfHigh[16] = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                                     0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
  const uint8x16_t table = vld1q_u8(kHalfHigh);
  const float32x4_t scale2 = vdupq_n_f32(weights.scale2);
  EightFloats scale = {vdupq_n_f32(0), vdupq_n_f32(0)};
  for (size_t i = 0; i < count; i += 2) {
    if (i % tensor::kNvfp4Group == 0) {
      const size_t group = (col + i) / tensor::kNvfp4Group;
      scale = ScalesFromE4M3(weights.scales + group * weights.rows + row);
    }
    const uint8x8_t bytes = vld1_u8(weights.data + (col + i) / 2 * weights.rows + row);
    const uint8x8_t codes[2] = {vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4)};
    for (size_t k = 0; k < 2; ++k) {
      const EightFloats value = FromHalves(vshll_n_u8(vqtbl1_u8(table, codes[k]), 8));
      vst1q_f32(out[i + k], vmulq_f32(vmulq_f32(value.low, scale.low), scale2));
      vst1q_f32(out[i + k] + 4, vmulq_f32(vmulq_f32(value.high, scale.high), scale2));
    }
  }
}

// lanes[kSumLanes][row] += decoded columns * x, partial sum by partial sum.
void AddColumns(const float (*columns)[kFloatRows], const float* x, size_t count,
                float (*lanes)[kFloatRows]) {
  constexpr size_t kTogether = 4;  // eight accumulators hide the latency of the multiply-add
  for (size_t first = 0; first < kSumLanes; first += kTogether) {
    float32x4_t low[kTogether];
    float32x4_t high[kTogether];
    for (size_t i = 0; i < kTogether; ++i) {
      low[i] = vld1q_f32(lanes[first + i]);
      high[i] = vld1q_f32(lanes[first + i] + 4);
    }
    for (size_t col = first; col < count; col += kSumLanes) {
      for (size_t i = 0; i < kTogether; ++i) {
        low[i] = vfmaq_n_f32(low[i], vld1q_f32(columns[col + i]), x[col + i]);
        high[i] = vfmaq_n_f32(high[i], vld1q_f32(columns[col + i] + 4), x[col + i]);
      }
    }
    for (size_t i = 0; i < kTogether; ++i) {
      vst1q_f32(lanes[first + i], low[i]);
      vst1q_f32(lanes[first + i] + 4, high[i]);
    }
  }
}

// The tree of kernels.h, a row in each lane; the sums are lanes[0].
void SumRows(float (*lanes)[kFloatRows]) {
  for (size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) {
      for (size_t row = 0; row < kFloatRows; row += 4) {
        const float32x4_t other = vld1q_f32(lanes[i + width] + row);
        vst1q_f32(lanes[i] + row, vaddq_f32(vld1q_f32(lanes[i] + row), other));
      }
    }
  }
}

// Requires at least kFloatRows rows of W, whatever the range.
void MultiplyNvfp4(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y) {
  float columns[kStretchCols][kFloatRows];
  float lanes[kTokenBatch][kSumLanes][kFloatRows];
  for (size_t row = y.row_begin; row < y.row_end; row += kFloatRows) {
    const size_t row_count = Min(kFloatRows, y.row_end - row);
    const size_t tile_row = Min(row, weights.rows - kFloatRows);
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      const size_t batch = Min(kTokenBatch, x.token_count - token);
      __builtin_memset(lanes, 0, sizeof(lanes[0]) * batch);
      for (size_t col = 0; col < weights.cols; col += kStretchCols) {
        const size_t count = Min(kStretchCols, weights.cols - col);
        DecodeColumns(weights, tile_row, col, count, columns);
        for (size_t t = 0; t < batch; ++t) {
          AddColumns(columns, x.data + (token + t) * x.stride + col, count, lanes[t]);
        }
      }
      for (size_t t = 0; t < batch; ++t) {
        SumRows(lanes[t]);
        __builtin_memcpy(y.out + (token + t) * y.out_stride + row, lanes[t][0] + (row - tile_row),
                         row_count * sizeof(float));
      }
    }
  }
}

}  // namespace

void MatMulF32Neon(const tensor::WeightView& view, const FloatRows& x, const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  switch (weights.format) {
    case WeightFormat::kF32:
      return MultiplyDense<F32>(weights, x, y);
    case WeightFormat::kF16:
      return MultiplyDense<F16>(weights, x, y);
    case WeightFormat::kBF16:
      return MultiplyDense<BF16>(weights, x, y);
    case WeightFormat::kSmoeQ4:
    case WeightFormat::kSmoeQ2:
    case WeightFormat::kInt8:
      return MultiplyDecoded(weights, x, y);
    case WeightFormat::kNvfp4:
      break;
  }
  if (weights.rows < kFloatRows) return kScalarKernels.matmul_f32(view, x, y);
  MultiplyNvfp4(weights, x, y);
}

namespace {

// The tables differ in their integers alone.
constexpr KernelTable TableOf(const char* name, decltype(KernelTable::runs_here) runs_here,
                              decltype(KernelTable::matmul_int8) matmul_int8) {
  return {.name = name,
          .runs_here = runs_here,
          .matmul_f32 = MatMulF32Neon,
          .matmul_int8 = matmul_int8,
          .quantise_row = QuantiseRowNeon,
          .rms_norm = RmsNormNeon,
          .silu_mul = SiluMulNeon,
          .softmax = SoftmaxNeon,
          .sigmoid = SigmoidNeon,
          .add_scaled = AddScaledNeon,
          .to_f16 = ToF16Neon,
          .attend = AttendNeon,
          .merge_attention = MergeAttentionNeon};
}

}  // namespace

const KernelTable kNeonKernels = TableOf("neon", CpuRunsNeon, MatMulInt8Scalar);
const KernelTable kNeonDotKernels = TableOf("neondot", CpuRunsNeonDot, MatMulInt8NeonDot);
const KernelTable kNeonI8mmKernels = TableOf("neoni8mm", CpuRunsNeonI8mm, MatMulInt8NeonI8mm);

}  // namespace smoe::kernels
#endif
