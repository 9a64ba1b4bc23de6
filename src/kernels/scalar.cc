// The definition: every other table gives these bits (any NaN equals any other NaN).
//
// exp: let n = round(x log2 e), r = x - n ln2, |r| <= ln2/2 + 2^-16 = a. Errors relative to e^r:
// the series cut after r^7 leaves a^8 / 8! / e^-a < 7.4e-9 = 0.12 of 2^-24; rounding r (and the low
// part of ln2) costs at most 2^-26 + |n| 2^-45 < 0.27 of 2^-24; each Horner step's rounding is
// multiplied by at most a, so all but the last two add up to 0.12 of 2^-24, the last but one to
// 0.25, the last to 1 (an half ulp of the result is 2^-24 relative at most). Sum: below 1 ulp
// of a normal result. kernels_test.cc walks all of it. Below 2^-126 the last multiplication rounds
// a second time, to within 1 ulp of the subnormal.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/internal.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// a * b + c, rounded once. The library's fmaf is a call, and without hardware support a slow one.
// In f64 the product is exact; the sum is made odd where it is not exact, so that the rounding to
// f32 sees on which side of a tie it lies. Source: Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums: proved algorithms using rounding to odd", IEEE TC 57 (2008), 4.
inline float Fma(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  // The error of the sum, exactly (Knuth's two-sum); NaN if anything is infinite.
  const double addend_part = sum - product;
  const double error = (product - (sum - addend_part)) + (addend - addend_part);
  auto bits = std::bit_cast<int64_t>(sum);
  if ((error > 0 || error < 0) && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(std::bit_cast<double>(bits));
#endif
}

float PowerOfTwo(int exponent) {  // -126 <= exponent <= 127
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

float Exp(float x) {
  x = x > kExpMax ? kExpMax : x;  // a NaN passes both
  x = x < kExpMin ? kExpMin : x;
  if (x != x) return x;
  const float n = Fma(x, kExpLog2E, kExpRound) - kExpRound;
  float r = Fma(n, -kExpLn2High, x);
  r = Fma(n, -kExpLn2Low, r);
  float power = kExpTerms[0];
  for (int term = 1; term < 8; ++term) power = Fma(power, r, kExpTerms[term]);
  // 2^n in two factors, both normal; only the second multiplication can round.
  const int exponent = static_cast<int>(n);
  const int half = exponent >> 1;
  return power * PowerOfTwo(half) * PowerOfTwo(exponent - half);
}

// The tree over the 16 partial sums.
float SumLanes(float* lanes) {
  for (uint32_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

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

uint16_t Load16(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
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

float MaxOf(const float* x, size_t count, float max) {
  for (size_t i = 0; i < count; ++i) max = x[i] > max ? x[i] : max;  // a NaN is passed over
  return max;
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

const float* KeyRow(const float* const* pages, const AttentionJob& job, size_t key) {
  return pages[key / job.page_tokens] + key % job.page_tokens * job.kv_stride;
}

void Attend(const AttentionJob& job) {
  float* out = job.out;
  for (size_t i = 0; i < job.head_dim; ++i) out[i] = 0;
  float max = -kInfinity;
  float sum = 0;
  for (size_t begin = job.first_key; begin < job.key_count;) {
    const size_t block_end = (begin / kAttentionBlock + 1) * kAttentionBlock;
    const size_t end = block_end < job.key_count ? block_end : job.key_count;
    const size_t block_begin = block_end - kAttentionBlock;
    // Keys that are not seen keep a weight of 0.
    float weights[kAttentionBlock] = {};
    float block_max = max;
    for (size_t key = begin; key < end; ++key) {
      const float* row = KeyRow(job.key_pages, job, key);
      const float score = Dot(job.query, row, job.head_dim) * job.scale;
      weights[key - block_begin] = score;
      block_max = score > block_max ? score : block_max;
    }
    const float correction = Exp(max - block_max);
    max = block_max;
    for (size_t key = begin; key < end; ++key) {
      weights[key - block_begin] = Exp(weights[key - block_begin] - max);
    }
    float lanes[kSumLanes] = {};
    for (size_t i = 0; i < kAttentionBlock; ++i) lanes[i % kSumLanes] += weights[i];
    sum = Fma(sum, correction, SumLanes(lanes));
    for (size_t i = 0; i < job.head_dim; ++i) out[i] *= correction;
    for (size_t key = begin; key < end; ++key) {
      AddScaled(KeyRow(job.value_pages, job, key), weights[key - block_begin], job.head_dim, out);
    }
    begin = end;
  }
  for (size_t i = 0; i < job.head_dim; ++i) out[i] /= sum;
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
                                    .attend = Attend};

}  // namespace smoe::kernels
