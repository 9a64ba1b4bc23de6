// tensor/quantise_int8_kernels.h: one group of int8, on each instruction set.
//
// Private to tensor/quantise_int8*.cc and their test. The scalar function is the definition, the
// other gives the same bits: no fused multiply-add, and sums in the same lanes. This header is
// included by a file compiled with extra flags: declarations and constants only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smoe::tensor {

constexpr float kInt8CodeMax = 127.0F;
constexpr float kInt8ZeroBelow = 0x1p-100F;
constexpr float kInt8ScaleMax = 0x1.020406p+121F;  // the largest with a finite product with 127
constexpr float kInt8Round = 0x1.8p+23F;           // added and taken away, it rounds half to even

// Weight i of a group adds to lane i mod 8, so that a sum depends on the weights alone and no
// addition waits for its neighbour.
constexpr size_t kInt8ErrorLanes = 8;
struct Int8Errors {
  double squared_error[kInt8ErrorLanes] = {};
  double squared_value[kInt8ErrorLanes] = {};
  float error_max[kInt8ErrorLanes] = {};
};

// kInt8Group weights to codes and a scale; what it cost is added to `errors`. False, and nothing
// written, if a weight is not finite.
using QuantiseInt8Group = bool(const float* weights, int8_t* codes, float* scale,
                               Int8Errors* errors);
QuantiseInt8Group QuantiseInt8GroupScalar;
#if defined(__x86_64__)
QuantiseInt8Group QuantiseInt8GroupAvx2;
#endif

}  // namespace smoe::tensor
