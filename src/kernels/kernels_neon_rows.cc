// Rows of floats and their quantisation, for every 64-bit ARM. The bits are those of scalar.cc;
// comments there are not repeated.
#include "kernels/neon.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

constexpr size_t kLanes = 4;
constexpr size_t kVectors = kSumLanes / kLanes;
constexpr float kInfinity = __builtin_inff();

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// The first `count` lanes, all if there are so many; the others are `rest`.
float32x4_t LoadFirst(const float* x, size_t count, float rest = 0) {
  if (count >= kLanes) return vld1q_f32(x);
  float lanes[kLanes] = {rest, rest, rest, rest};
  __builtin_memcpy(lanes, x, count * sizeof(float));
  return vld1q_f32(lanes);
}

void StoreFirst(float32x4_t value, size_t count, float* out) {
  if (count >= kLanes) return vst1q_f32(out, value);
  float lanes[kLanes];
  vst1q_f32(lanes, value);
  __builtin_memcpy(out, lanes, count * sizeof(float));
}

// The tree over the sixteen partial sums.
float SumLanes(const float32x4_t* sums) {
  const float32x4_t four = vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

float32x4_t Exp(float32x4_t x) {
  // Of a NaN and a number both return the NaN.
  x = vminq_f32(x, vdupq_n_f32(kExpMax));
  x = vmaxq_f32(x, vdupq_n_f32(kExpMin));
  const float32x4_t round = vdupq_n_f32(kExpRound);
  const float32x4_t n = vsubq_f32(vfmaq_f32(round, x, vdupq_n_f32(kExpLog2E)), round);
  float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-kExpLn2High));
  r = vfmaq_f32(r, n, vdupq_n_f32(-kExpLn2Low));
  float32x4_t power = vdupq_n_f32(kExpTerms[0]);
  for (int term = 1; term < 8; ++term) power = vfmaq_f32(vdupq_n_f32(kExpTerms[term]), power, r);
  const int32x4_t exponent = vcvtq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(exponent, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(exponent, half), bias), 23);
  power = vmulq_f32(power, vreinterpretq_f32_s32(first));
  return vmulq_f32(power, vreinterpretq_f32_s32(second));
}

// 1 + exp(-x)
float32x4_t SigmoidDivisor(float32x4_t x) { return vaddq_f32(vdupq_n_f32(1), Exp(vnegq_f32(x))); }

// Not the instruction for a maximum: a signalling NaN would not be passed over.
float32x4_t MaxPassingNan(float32x4_t x, float32x4_t max) {
  return vbslq_f32(vcgtq_f32(x, max), x, max);
}

float MaxOf(const float* x, size_t count, float max) {
  float32x4_t lanes = vdupq_n_f32(max);
  for (size_t i = 0; i < count; i += kLanes) {
    lanes = MaxPassingNan(LoadFirst(x + i, count - i, -kInfinity), lanes);
  }
  return vmaxvq_f32(lanes);
}

}  // namespace

void RmsNormNeon(const float* x, const float* weight, float eps, size_t count, float* out) {
  float32x4_t sums[kVectors] = {};
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t k = 0; k < kVectors; ++k) {
      const float32x4_t value = vld1q_f32(x + i + k * kLanes);
      sums[k] = vfmaq_f32(sums[k], value, value);
    }
  }
  if (i < count) {
    float lanes[kSumLanes];
    for (size_t k = 0; k < kVectors; ++k) vst1q_f32(lanes + k * kLanes, sums[k]);
    for (size_t lane = 0; i + lane < count; ++lane) {
      lanes[lane] = __builtin_fmaf(x[i + lane], x[i + lane], lanes[lane]);
    }
    for (size_t k = 0; k < kVectors; ++k) sums[k] = vld1q_f32(lanes + k * kLanes);
  }
  const float mean = SumLanes(sums) / static_cast<float>(count);
  const float root = vget_lane_f32(vsqrt_f32(vdup_n_f32(mean + eps)), 0);
  const float32x4_t factor = vdupq_n_f32(1 / root);
  for (i = 0; i < count; i += kLanes) {
    const float32x4_t scaled = vmulq_f32(LoadFirst(x + i, count - i), factor);
    StoreFirst(vmulq_f32(scaled, LoadFirst(weight + i, count - i)), count - i, out + i);
  }
}

void SiluMulNeon(float* gate, const float* up, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) {
    const float32x4_t value = LoadFirst(gate + i, count - i);
    const float32x4_t silu = vdivq_f32(value, SigmoidDivisor(value));
    StoreFirst(vmulq_f32(silu, LoadFirst(up + i, count - i)), count - i, gate + i);
  }
}

void SigmoidNeon(const float* x, size_t count, float* out) {
  for (size_t i = 0; i < count; i += kLanes) {
    const float32x4_t divisor = SigmoidDivisor(LoadFirst(x + i, count - i));
    StoreFirst(vdivq_f32(vdupq_n_f32(1), divisor), count - i, out + i);
  }
}

void AddScaledNeon(const float* x, float weight, size_t count, float* out) {
  const float32x4_t factor = vdupq_n_f32(weight);
  for (size_t i = 0; i < count; i += kLanes) {
    const float32x4_t sum =
        vfmaq_f32(LoadFirst(out + i, count - i), factor, LoadFirst(x + i, count - i));
    StoreFirst(sum, count - i, out + i);
  }
}

void SoftmaxNeon(float* x, size_t count) {
  const float32x4_t max = vdupq_n_f32(MaxOf(x, count, -kInfinity));
  float32x4_t sums[kVectors] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    // Lanes that are not there weigh 0.
    const float32x4_t power = Exp(vsubq_f32(LoadFirst(x + i, count - i, -kInfinity), max));
    StoreFirst(power, count - i, x + i);
    sums[i / kLanes % kVectors] = vaddq_f32(sums[i / kLanes % kVectors], power);
  }
  const float32x4_t sum = vdupq_n_f32(SumLanes(sums));
  for (size_t i = 0; i < count; i += kLanes) {
    StoreFirst(vdivq_f32(LoadFirst(x + i, count - i), sum), count - i, x + i);
  }
}

namespace {

bool QuantiseBlock(const float* x, int8_t* codes, float* scale) {
  constexpr size_t kBlockVectors = kActivationBlock / kLanes;
  float32x4_t values[kBlockVectors];
  uint32x4_t magnitude_max = vdupq_n_u32(0);
  for (size_t i = 0; i < kBlockVectors; ++i) {
    values[i] = vld1q_f32(x + i * kLanes);
    const uint32x4_t bits = vreinterpretq_u32_f32(values[i]);
    magnitude_max = vmaxq_u32(magnitude_max, vandq_u32(bits, vdupq_n_u32(0x7fffffffu)));
  }
  const uint32_t max = vmaxvq_u32(magnitude_max);
  if (max >= 0x7f800000u) return false;
  const float absmax = vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(max)), 0);
  const bool is_zero = absmax < kQuantiseMin;
  *scale = is_zero ? 0 : absmax / 127;
  const float32x4_t inverse = vdupq_n_f32(is_zero ? 0 : 127 / absmax);
  for (size_t i = 0; i < kBlockVectors; i += 4) {
    int16x4_t words[4];  // rounded half to even
    for (size_t k = 0; k < 4; ++k) {
      words[k] = vmovn_s32(vcvtnq_s32_f32(vmulq_f32(values[i + k], inverse)));
    }
    const int8x8_t low = vmovn_s16(vcombine_s16(words[0], words[1]));
    const int8x8_t high = vmovn_s16(vcombine_s16(words[2], words[3]));
    vst1q_s8(codes + i * kLanes, vcombine_s8(low, high));
  }
  return true;
}

}  // namespace

bool QuantiseRowNeon(const float* x, size_t cols, int8_t* codes, float* scales) {
  for (size_t col = 0; col < cols; col += kActivationBlock) {
    const size_t count = Min(kActivationBlock, cols - col);
    float padded[kActivationBlock] = {};
    if (count < kActivationBlock) __builtin_memcpy(padded, x + col, count * sizeof(float));
    const float* block = count < kActivationBlock ? padded : x + col;
    if (!QuantiseBlock(block, codes + col, scales + col / kActivationBlock)) return false;
  }
  return true;
}

}  // namespace smoe::kernels
#endif
