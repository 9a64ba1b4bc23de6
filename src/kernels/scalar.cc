// The definition: every other table gives these bits (any NaN equals any other NaN). Attention is
// in scalar_attention.cc.
#include "kernels/scalar.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/internal.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

// Element i of this stretch goes to lane i mod 16: stretches start at multiples of 16.
void AddProducts(const float* a, const float* b, size_t count, float* lanes) {
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      lanes[lane] = Fma(a[i + lane], b[i + lane], lanes[lane]);
    }
  }
  for (size_t lane = 0; i + lane < count; ++lane) {
    lanes[lane] = Fma(a[i + lane], b[i + lane], lanes[lane]);
  }
}

float Dot(const float* a, const float* b, size_t count) {
  float lanes[kSumLanes] = {};
  AddProducts(a, b, count, lanes);
  return SumLanes(lanes);
}

uint32_t CodeAt(const PlainWeights& weights, uint64_t flat) {
  if (weights.format == WeightFormat::kSmoeQ4) {
    return (uint32_t{weights.data[flat / 2]} >> (flat % 2 * 4)) & 15u;
  }
  return (uint32_t{weights.data[flat / 4]} >> (flat % 4 * 2)) & 3u;
}

float ScaleAt(const PlainWeights& weights, uint64_t group) {
  return tensor::F32FromF16(Load16(weights.scales + group * 2));
}

// Columns [col, col + count) of one row of NVFP4.
void DecodeNvfp4(const PlainWeights& weights, uint64_t row, uint64_t col, size_t count,
                 float* out) {
  for (size_t i = 0; i < count; ++i, ++col) {
    const uint64_t group = col / tensor::kNvfp4Group;
    const uint32_t byte = weights.data[col / 2 * weights.rows + row];
    const float value = tensor::F32FromE2M1((byte >> (col % 2 * 4)) & 15u);
    const float scale = tensor::F32FromF8E4M3(weights.scales[group * weights.rows + row]);
    out[i] = value * scale * weights.scale2;
  }
}

// sum over one row of NVFP4, a piece for each group: blocks of activations hold whole groups.
float RowDotNvfp4(const PlainWeights& weights, uint64_t row, const int8_t* codes,
                  const float* x_scales) {
  float sum = 0;
  for (uint64_t col = 0; col < weights.cols; col += tensor::kNvfp4Group) {
    int dot = 0;
    for (uint64_t i = col; i < col + tensor::kNvfp4Group; i += 2) {
      const uint8_t byte = weights.data[i / 2 * weights.rows + row];
      dot += kE2M1Twice[byte & 15] * codes[i] + kE2M1Twice[byte >> 4] * codes[i + 1];
    }
    const uint8_t scale = weights.scales[col / tensor::kNvfp4Group * weights.rows + row];
    const float w_scale = tensor::F32FromF8E4M3(scale) * kNvfp4ScaleUnit;
    sum = Fma(static_cast<float>(dot), w_scale * x_scales[col / kActivationBlock], sum);
  }
  return sum * (weights.scale2 * kNvfp4SumUnit);
}

float Int8ScaleAt(const PlainWeights& weights, uint64_t row, uint64_t col) {
  float scale;
  std::memcpy(&scale,
              weights.scales + tensor::Int8ScaleIndex(weights.cols, row, col) * sizeof(scale),
              sizeof(scale));
  return scale;
}
int Int8CodeAt(const PlainWeights& weights, uint64_t row, uint64_t col) {
  return static_cast<int8_t>(weights.data[tensor::Int8CodeIndex(weights.cols, row, col)]);
}

// Columns [col, col + count) of one row of int8.
void DecodeInt8(const PlainWeights& weights, uint64_t row, uint64_t col, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i, ++col) {
    out[i] = static_cast<float>(Int8CodeAt(weights, row, col)) * Int8ScaleAt(weights, row, col);
  }
}

// sum over one row of int8, a piece for each group.
float RowDotTiles(const PlainWeights& weights, uint64_t row, const int8_t* codes,
                  const float* x_scales) {
  static_assert(tensor::kInt8Group == kActivationBlock);
  float sum = 0;
  for (uint64_t col = 0; col < weights.cols;) {
    const float scale = Int8ScaleAt(weights, row, col) * x_scales[col / kActivationBlock];
    const uint64_t group_end = col + tensor::kInt8Group;
    const uint64_t end = group_end < weights.cols ? group_end : weights.cols;
    int dot = 0;
    for (; col < end; ++col) dot += Int8CodeAt(weights, row, col) * codes[col];
    sum = Fma(static_cast<float>(dot), scale, sum);
  }
  return sum;
}

bool RunsHere() { return true; }

void MatMulF32(const tensor::WeightView& weights, const FloatRows& x, const MatMulRange& y) {
  constexpr size_t kStretch = 256;  // weights decoded at once
  const PlainWeights plain = Plain(weights);
  float decoded[kStretch];
  for (uint32_t row = y.row_begin; row < y.row_end; ++row) {
    for (size_t token = 0; token < x.token_count; ++token) {
      const float* in = x.data + token * x.stride;
      float lanes[kSumLanes] = {};
      for (size_t col = 0; col < plain.cols; col += kStretch) {
        const size_t count = plain.cols - col < kStretch ? plain.cols - col : kStretch;
        DecodeWeightsScalar(plain, row * plain.cols + col, count, decoded);
        AddProducts(decoded, in + col, count, lanes);
      }
      y.out[token * y.out_stride + row] = SumLanes(lanes);
    }
  }
}

// sum over one row: pieces end at the next block of activations or the next group of weights.
float RowDotInt8(const PlainWeights& weights, uint64_t row, const int8_t* codes,
                 const float* x_scales) {
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  const int zero2 = is_q4 ? tensor::kSmoeQ4Zero2 : tensor::kSmoeQ2Zero2;
  const float unit = is_q4 ? kQ4Unit : kQ2Unit;
  float sum = 0;
  for (uint64_t col = 0; col < weights.cols;) {
    const uint64_t flat = row * weights.cols + col;
    const uint64_t group = flat / weights.group_size;
    const uint64_t block = col / kActivationBlock;
    uint64_t end = (block + 1) * kActivationBlock;
    const uint64_t group_end = col + ((group + 1) * weights.group_size - flat);
    if (group_end < end) end = group_end;
    if (weights.cols < end) end = weights.cols;
    int dot = 0;
    for (; col < end; ++col) {
      const auto code = static_cast<int>(CodeAt(weights, row * weights.cols + col));
      dot += (2 * code - zero2) * codes[col];
    }
    const float w_scale = ScaleAt(weights, group) * unit;
    sum = Fma(static_cast<float>(dot), w_scale * x_scales[block], sum);
  }
  return sum;
}

bool QuantiseRow(const float* x, size_t cols, int8_t* codes, float* scales) {
  for (size_t begin = 0; begin < cols; begin += kActivationBlock) {
    const size_t count = cols - begin < kActivationBlock ? cols - begin : kActivationBlock;
    uint32_t magnitude_max = 0;  // bits of a magnitude order as the magnitudes do, NaN last
    for (size_t i = 0; i < count; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x[begin + i]) & 0x7fffffffu;
      if (magnitude > magnitude_max) magnitude_max = magnitude;
    }
    if (magnitude_max >= 0x7f800000u) return false;
    const auto absmax = std::bit_cast<float>(magnitude_max);
    const bool is_zero = absmax < kQuantiseMin;
    const float inverse = is_zero ? 0 : 127 / absmax;
    scales[begin / kActivationBlock] = is_zero ? 0 : absmax / 127;
    for (size_t i = 0; i < count; ++i) {
      const float rounded = (x[begin + i] * inverse + kExpRound) - kExpRound;
      codes[begin + i] = static_cast<int8_t>(rounded);
    }
    for (size_t i = count; i < kActivationBlock; ++i) codes[begin + i] = 0;
  }
  return true;
}

void RmsNorm(const float* x, const float* weight, float eps, size_t count, float* out) {
  const float mean = Dot(x, x, count) / static_cast<float>(count);
  const float factor = 1 / std::sqrt(mean + eps);
  for (size_t i = 0; i < count; ++i) out[i] = x[i] * factor * weight[i];
}

void SiluMul(float* gate, const float* up, size_t count) {
  for (size_t i = 0; i < count; ++i) gate[i] = gate[i] / (1 + Exp(-gate[i])) * up[i];
}

void Softmax(float* x, size_t count) {
  const float max = MaxOf(x, count, -kInfinity);
  float lanes[kSumLanes] = {};
  for (size_t i = 0; i < count; ++i) {
    x[i] = Exp(x[i] - max);
    lanes[i % kSumLanes] += x[i];
  }
  const float sum = SumLanes(lanes);
  for (size_t i = 0; i < count; ++i) x[i] /= sum;
}

void Sigmoid(const float* x, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = 1 / (1 + Exp(-x[i]));
}

void AddScaled(const float* x, float weight, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = Fma(weight, x[i], out[i]);
}

}  // namespace

PlainWeights Plain(const tensor::WeightView& weights) {
  return {.data = reinterpret_cast<const uint8_t*>(weights.data.data()),
          .scales = reinterpret_cast<const uint8_t*>(weights.scales.data()),
          .rows = weights.rows,
          .cols = weights.cols,
          .group_size = weights.group_size,
          .scale2 = weights.scale2,
          .format = weights.format};
}

void DecodeWeightsScalar(const PlainWeights& weights, uint64_t first, size_t count, float* out) {
  switch (weights.format) {
    case WeightFormat::kF32:
      std::memcpy(out, weights.data + first * 4, count * 4);
      return;
    case WeightFormat::kF16:
      for (size_t i = 0; i < count; ++i) {
        out[i] = tensor::F32FromF16(Load16(weights.data + (first + i) * 2));
      }
      return;
    case WeightFormat::kBF16:
      for (size_t i = 0; i < count; ++i) {
        out[i] = tensor::F32FromBF16(Load16(weights.data + (first + i) * 2));
      }
      return;
    case WeightFormat::kNvfp4:
      return DecodeNvfp4(weights, first / weights.cols, first % weights.cols, count, out);
    case WeightFormat::kInt8:
      return DecodeInt8(weights, first / weights.cols, first % weights.cols, count, out);
    case WeightFormat::kSmoeQ4:
    case WeightFormat::kSmoeQ2:
      break;
  }
  const float* levels = weights.format == WeightFormat::kSmoeQ4 ? kQ4Levels : kQ2Levels;
  for (size_t i = 0; i < count;) {
    const uint64_t group = (first + i) / weights.group_size;
    const uint64_t group_end = (group + 1) * weights.group_size - first;
    const float scale = ScaleAt(weights, group);
    for (; i < count && i < group_end; ++i) out[i] = levels[CodeAt(weights, first + i)] * scale;
  }
}

void MatMulInt8Scalar(const tensor::WeightView& weights, const QuantisedRows& x,
                      const MatMulRange& y) {
  const PlainWeights plain = Plain(weights);
  const size_t blocks = x.col_stride / kActivationBlock;
  const auto row_dot = plain.format == WeightFormat::kNvfp4  ? RowDotNvfp4
                       : plain.format == WeightFormat::kInt8 ? RowDotTiles
                                                             : RowDotInt8;
  for (uint32_t row = y.row_begin; row < y.row_end; ++row) {
    for (size_t token = 0; token < x.token_count; ++token) {
      y.out[token * y.out_stride + row] =
          row_dot(plain, row, x.codes + token * x.col_stride, x.scales + token * blocks);
    }
  }
}

const KernelTable kScalarKernels = {.name = "scalar",
                                    .runs_here = RunsHere,
                                    .matmul_f32 = MatMulF32,
                                    .matmul_int8 = MatMulInt8Scalar,
                                    .quantise_row = QuantiseRow,
                                    .rms_norm = RmsNorm,
                                    .silu_mul = SiluMul,
                                    .softmax = Softmax,
                                    .sigmoid = Sigmoid,
                                    .add_scaled = AddScaled,
                                    .to_f16 = ToF16Scalar,
                                    .attend = AttendScalar,
                                    .merge_attention = MergeAttentionScalar};

}  // namespace smoe::kernels
