// tensor/quantise.h: SMOE-Q2 and SMOE-Q4, from f32 to codes and scales and back.
//
// A tensor is flattened row-major; groups of group_size run over the flat index, the last one may
// be short. The two quantisers differ only in the scales and codes they choose; readers see no
// difference. Source: docs/formats/vault.md, "Quantisation".
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe::tensor {

enum class SmoeBits : uint8_t { kQ2 = 2, kQ4 = 4 };

enum class Quantiser : uint8_t {
  kReference,  // the bytes of the original converter
  kMse,        // scales by error measured with the f16 scale that is stored, codes with that scale
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
};

// Quantises `weights` into `packed` (PackedBytes) and `scales` (ScaleBytes).
// Requires finite weights, and exact output sizes.
// Errors: kUnsupported if a group's scale does not fit f16 (largest weight above 65504), naming the
//         index and the value.
// Cost: no allocation. Threads: any.
Status QuantiseSmoe(std::span<const float> weights, SmoeBits bits, uint32_t group_size,
                    Quantiser quantiser, MutableBytes packed, MutableBytes scales);

// The weights that codes and scales stand for.
void DequantiseSmoe(Bytes packed, Bytes scales, SmoeBits bits, uint32_t group_size,
                    std::span<float> weights);

QuantisationError MeasureError(std::span<const float> weights, Bytes packed, Bytes scales,
                               SmoeBits bits, uint32_t group_size);

}  // namespace smoe::tensor
