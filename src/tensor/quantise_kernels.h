// tensor/quantise_kernels.h: the loops of the quantiser, one table per instruction set.
//
// Private to tensor/quantise*.cc and their test. The scalar table is the definition; every other
// table gives the same bits: integer sums are exact in any order, and a float sum runs in 8 lanes
// (element j into lane j mod 8), added as ((l0+l1)+(l2+l3))+((l4+l5)+(l6+l7)), without fused
// multiply-add. This header is included by files compiled with extra flags: declarations and
// constants of internal linkage only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smoe::tensor {

// SMOE-Q2 or SMOE-Q4 in floats: code c stands for (c - zero) / zero x scale.
struct CodeKind {
  uint32_t bits;
  float zero;          // Z: 1.5 or 7.5
  float zero_inverse;  // f32(1 / Z)
  float code_max;      // 3 or 15
};

// The scales that the Q4 search looks at, as shares of the group's largest weight: six from
// kSearchFirst to kSearchFinal, then the two half a step beside the best of them. Entry 2 i + 1 is
// the i-th of the six; even entries lie between. Eight would
// lower the RMSE by another 0.02 % and cost a quarter more.
constexpr int kSearchCoarseCount = 6;
constexpr int kSearchLanes = 8;  // of a register of errors
constexpr int kSearchCount = 2 * kSearchCoarseCount + 1;
// Groups of one call.
constexpr uint32_t kSearchGroups = 8;
constexpr double kSearchFirst = 0.83;
constexpr double kSearchFinal = 1.03;
struct SearchTable {
  int16_t multiplier[kSearchCount];  // round(7.5 x 2^11 / ratio)
  float ratio_squared[kSearchCount];
  float coarse_squared[kSearchLanes];  // the odd entries again, then the last of them
};

// The original's candidates: numpy.linspace(0.1, 1.0, 64), rounded to f32.
constexpr int kReferenceRatioCount = 64;
struct ReferenceTable {
  float ratio[kReferenceRatioCount];
  // For tables that first rule out most ratios in integers, without changing the result.
  float ratio_squared[kReferenceRatioCount];
  int16_t multiplier[kReferenceRatioCount];  // round(1.5 x 2^11 / ratio)
};

struct NearestErrors {
  float error;
  float other_error;
};

struct QuantiseKernels {
  const char* name;         // as in SMOE_ISA
  uint32_t count_multiple;  // groups must be a multiple of this long, 1: any length

  // The largest magnitude; infinity or NaN if any weight is not finite.
  float (*largest)(const float* weights, uint32_t count);

  // The original's search: the ratio with the least squared error, first of equals wins. Returns
  // largest x ratio. Requires count to be a multiple of 8 (zero-padded by the caller).
  float (*reference_search)(const float* weights, uint32_t count, const CodeKind& kind,
                            float largest, const ReferenceTable& table);
  // The original's codes, one per byte: x / scale, x Z, + Z, rounded half to even, clamped.
  void (*reference_codes)(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                          uint8_t* codes);

  // Q4 only, for `group_count` groups of `count` weights each, back to back, at most
  // kSearchGroups: one group's steps wait for each other, several groups' do not. Magnitudes become
  // 16-bit integers, largest = 32767; each ratio's error is summed in integers with 11 fractional
  // bits of a step; the best one's codes give the least-squares scale sum(w m) / sum(m m) x 15,
  // m = 2 code - 15, which goes to scales[i] (unrounded).
  // Requires largest[i] x 32767 and its inverse to be normal numbers.
  void (*search_q4)(const float* weights, uint32_t count, uint32_t group_count,
                    const float* largest, const SearchTable& table, float* scales);

  // The least-squares scale for the codes that `scale` chooses.
  float (*fit)(const float* weights, uint32_t count, const CodeKind& kind, float scale);

  // The nearest codes under `scale`, one per byte, and the squared errors under it and under
  // `other_scale`, in one pass. Requires both scales > 0.
  NearestErrors (*nearest)(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                           float other_scale, uint8_t* codes);

  // Codes of one byte each to `bits` each, low bits first. Requires count to be a multiple of 8.
  void (*pack)(const uint8_t* codes, uint32_t count, uint32_t bits, std::byte* packed);
};

extern const QuantiseKernels kQuantiseScalar;
#if defined(__x86_64__)
extern const QuantiseKernels kQuantiseAvx2;
#endif

}  // namespace smoe::tensor
