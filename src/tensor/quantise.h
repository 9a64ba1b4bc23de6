// tensor/quantise.h: SMOE-Q2 and SMOE-Q4, from f32 to codes and scales and back.
//
// A tensor is flattened row-major; groups of group_size run over the flat index, the last one may
// be short. The two quantisers differ only in the scales and codes they choose; readers see no
// difference. Source: docs/formats/vault.md, "Quantisation".
//
// The mse quantiser's search, per group:
//   Q4  six scales from 0.83 to 1.03 of the largest weight, then the two half a step beside the
//       best of them, are compared by squared error (in 16-bit integers); the best one's codes give
//       a least-squares scale, which is rounded to f16.
//   Q2  the original's 64 scales; the best one's codes give a least-squares scale.
//   The codes are the nearest ones under the f16 scale that is stored. If that result is not
//   clearly better than the original's scale with codes chosen again, both and the original's own
//   result are measured in f64 and the least error wins: no group is ever worse.
// Measured: RMSE below the reference's by 7.09 % (Q4) and 0.019 % (Q2) on tiny-moe's experts; an
// exhaustive search over 551 scales gives 7.14 % for Q4.
//
// Special groups: all zero (or -0): scale 1.0 with codes 8, or 0.1 with codes 2. Largest weight
// below 2^-17: every f16 scale that could win is tried, zero included, so that a constant group is
// met within half an f16 step; below 2^-25 the group may decode to zeros. Largest weight above
// 65504: refused, since no f16 scale reaches it.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe::tensor {

enum class SmoeBits : uint8_t { kQ2 = 2, kQ4 = 4 };

enum class Quantiser : uint8_t {
  kReference,  // the bytes of the original converter
  kMse,        // least squared error, as above
};

inline constexpr uint32_t kGroupSizeMax = 1024;

// Group sizes that we write: 8, 16, 32, 64, 128 (the original's sum order is exact for these).
Status CheckGroupSize(uint32_t group_size);

uint64_t PackedBytes(uint64_t weight_count, SmoeBits bits);       // ceil(n bits / 8)
uint64_t ScaleBytes(uint64_t weight_count, uint32_t group_size);  // 2 ceil(n / group_size)

// Sum over weights of squared error and squared value, and the largest error: the figures of
// --measure-error. SNR in dB is 10 log10(signal / noise).
struct QuantisationError {
  uint64_t weight_count = 0;
  double squared_error = 0;
  double squared_value = 0;
  double error_max = 0;
  void Add(const QuantisationError& other);
  double Rmse() const;
  double SnrDb() const;
  // The error's share of the weights: sqrt(squared_error / squared_value); 0 without an error.
  double RelativeRmse() const;
};

// Quantises `weights` into `packed` (PackedBytes) and `scales` (ScaleBytes).
// Requires exact output sizes.
// Errors: kUnsupported if a group's scale does not fit f16 (a weight above 65504, infinite or NaN),
//         naming the index and the value.
// Cost: no allocation. Threads: any.
Status QuantiseSmoe(std::span<const float> weights, SmoeBits bits, uint32_t group_size,
                    Quantiser quantiser, MutableBytes packed, MutableBytes scales);

// The weights that codes and scales stand for.
void DequantiseSmoe(Bytes packed, Bytes scales, SmoeBits bits, uint32_t group_size,
                    std::span<float> weights);

QuantisationError MeasureError(std::span<const float> weights, Bytes packed, Bytes scales,
                               SmoeBits bits, uint32_t group_size);

}  // namespace smoe::tensor
