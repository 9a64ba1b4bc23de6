// kernels/scalar.h: what the files of the scalar table share. For these alone: they are compiled
// with the flags of the whole program.
//
// exp: let n = round(x log2 e), r = x - n ln2, |r| <= ln2/2 + 2^-16 = a. Errors relative to e^r:
// the series cut after r^7 leaves a^8 / 8! / e^-a < 7.4e-9 = 0.12 of 2^-24; rounding r (and the low
// part of ln2) costs at most 2^-26 + |n| 2^-45 < 0.27 of 2^-24; each Horner step's rounding is
// multiplied by at most a, so all but the last two add up to 0.12 of 2^-24, the last but one to
// 0.25, the last to 1 (an half ulp of the result is 2^-24 relative at most). Sum: below 1 ulp
// of a normal result. kernels_test.cc walks all of it. Below 2^-126 the last multiplication rounds
// a second time, to within 1 ulp of the subnormal.
#pragma once

#include <bit>
#include <cstring>
#include <limits>

#include "kernels/internal.h"
#include "kernels/kernels.h"

namespace smoe::kernels {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

inline float PowerOfTwo(int exponent) {  // -126 <= exponent <= 127
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

inline float Exp(float x) {
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
inline float SumLanes(float* lanes) {
  for (uint32_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

inline float MaxOf(const float* x, size_t count, float max) {
  for (size_t i = 0; i < count; ++i) max = x[i] > max ? x[i] : max;  // a NaN is passed over
  return max;
}

inline uint16_t Load16(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

void ToF16Scalar(const float* x, size_t count, uint16_t* out);
void AttendScalar(const AttentionJob& job);
void MergeAttentionScalar(const AttentionParts& parts, size_t head_dim, float* out);

}  // namespace smoe::kernels
