// Attention for every 64-bit ARM; kernels_neon.cc says what holds for all its tables.
#include "kernels/attention_tiles.h"
#include "kernels/neon.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

constexpr size_t kLanes = 4;

// Sixteen floats in four registers.
struct Sixteen {
  float32x4_t v0;
  float32x4_t v1;
  float32x4_t v2;
  float32x4_t v3;
};

struct Neon {
  using Vector = Sixteen;
  using Register = float32x4_t;
  static constexpr size_t kLanes = 4;
  // Sixteen sums, half of the registers.
  static constexpr size_t kQueries = 4;
  static constexpr size_t Wide(size_t /*queries*/) { return 4; }

  // `Op` on each register of one, two or three vectors.
  template <class Op, class... Vectors>
  static Sixteen Each(Op op, const Vectors&... x) {
    return {op(x.v0...), op(x.v1...), op(x.v2...), op(x.v3...)};
  }

  static Sixteen Set(float x) {
    const float32x4_t all = vdupq_n_f32(x);
    return {all, all, all, all};
  }
  static float First(const Sixteen& x) { return vgetq_lane_f32(x.v0, 0); }
  static Sixteen LoadFloats(const float* at) {
    return {vld1q_f32(at), vld1q_f32(at + 4), vld1q_f32(at + 8), vld1q_f32(at + 12)};
  }
  static void Store(float* at, const Sixteen& x) {
    vst1q_f32(at, x.v0);
    vst1q_f32(at + 4, x.v1);
    vst1q_f32(at + 8, x.v2);
    vst1q_f32(at + 12, x.v3);
  }

  static float32x4_t SetRegister(float x) { return vdupq_n_f32(x); }
  static float32x4_t LoadRegister(const float* at) { return vld1q_f32(at); }
  static float32x4_t LoadF32(const uint8_t* at) { return vreinterpretq_f32_u8(vld1q_u8(at)); }
  static float32x4_t LoadF16(const uint8_t* at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
  }
  static float32x4_t LoadInt8(const uint8_t* at) {
    uint32_t four;
    __builtin_memcpy(&four, at, sizeof(four));
    const int8x8_t codes = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(codes))));
  }
  static float32x4_t LoadBf16(const uint8_t* at) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at)), 16));
  }
  static void Store(float* at, float32x4_t x) { vst1q_f32(at, x); }
  static float32x4_t Fma(float32x4_t a, float32x4_t b, float32x4_t c) { return FmaFour(a, b, c); }
  static float32x4_t Mul(float32x4_t a, float32x4_t b) { return MulFour(a, b); }

  static constexpr bool kFetchesBetween = false;
  [[gnu::always_inline]] static void Prefetch(const uint8_t* at) { __builtin_prefetch(at); }

  static float32x4_t FmaFour(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vfmaq_f32(c, a, b);
  }
  static float32x4_t AddFour(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
  static float32x4_t SubFour(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
  static float32x4_t MulFour(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
  static float32x4_t DivFour(float32x4_t a, float32x4_t b) { return vdivq_f32(a, b); }
  // Of a NaN and a number the second operand, whichever it is.
  static float32x4_t MinFour(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
  }
  static float32x4_t MaxFour(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
  }
  // x * 2^n in two factors, both normal; only the second multiplication can round.
  static float32x4_t ScaleFour(float32x4_t x, float32x4_t n) {
    const int32x4_t exponent = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(exponent, 1);
    const int32x4_t bias = vdupq_n_s32(127);
    const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(exponent, half), bias), 23);
    return vmulq_f32(vmulq_f32(x, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
  }

  static Sixteen Fma(const Sixteen& a, const Sixteen& b, const Sixteen& c) {
    return Each(FmaFour, a, b, c);
  }
  static Sixteen Add(const Sixteen& a, const Sixteen& b) { return Each(AddFour, a, b); }
  static Sixteen Sub(const Sixteen& a, const Sixteen& b) { return Each(SubFour, a, b); }
  static Sixteen Mul(const Sixteen& a, const Sixteen& b) { return Each(MulFour, a, b); }
  static Sixteen Div(const Sixteen& a, const Sixteen& b) { return Each(DivFour, a, b); }
  static Sixteen Min(const Sixteen& a, const Sixteen& b) { return Each(MinFour, a, b); }
  static Sixteen Max(const Sixteen& a, const Sixteen& b) { return Each(MaxFour, a, b); }
  static Sixteen TimesPowerOfTwo(const Sixteen& x, const Sixteen& n) {
    return Each(ScaleFour, x, n);
  }

  static float MaxLanes(const Sixteen& x) {
    return vmaxvq_f32(MaxFour(MaxFour(x.v0, x.v1), MaxFour(x.v2, x.v3)));
  }

  // The tree of kernels.h.
  static float SumLanes(const Sixteen& x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.v0, x.v2), vaddq_f32(x.v1, x.v3));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
};

}  // namespace

void AttendNeon(const AttentionJob& job) { AttendWith<Neon>(job); }

void MergeAttentionNeon(const AttentionParts& parts, size_t head_dim, float* out) {
  MergeAttentionWith<Neon>(parts, head_dim, out);
}

void ToF16Neon(const float* x, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t left = count - i < kLanes ? count - i : kLanes;
    float lanes[kLanes] = {};
    __builtin_memcpy(lanes, x + i, left * sizeof(float));
    uint16_t bits[kLanes];
    vst1_u16(bits, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(lanes))));
    __builtin_memcpy(out + i, bits, left * sizeof(uint16_t));
  }
}

}  // namespace smoe::kernels
#endif
