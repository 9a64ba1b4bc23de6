// tensor/quantise_nvfp4.h: NVFP4, from f32 to E2M1 codes with E4M3 block scales and back.
//
//   weight = (E2M1(code) * E4M3(block scale)) * scale2, in f32 in this order
//
// A row-major matrix in blocks of 16 weights of one row; low nibble first: the order of published
// checkpoints. scale2 is one number for the matrix.
//
//   scale2       largest / (6 x 448), so that the largest block has the largest scale; 1 for a
//                matrix of zeros, and never below the smallest normal number
//   amax         block scale = E4M3(block's largest / 6 / scale2), rounded half to even
//   mse          of the block scales from two E4M3 steps below that one to six above it (an octave
//                has eight), the one with the least squared error. Never worse than amax's, in any
//                block. Wider ranges gain nothing, on normal weights and on tiny-moe's alike.
//   codes        nearest to weight / (E4M3(block scale) * scale2), half to the even code, clamped
//                to 6; all 0 where that scale is 0. The sign of a weight stays, of zeros too.
//
// amax gives the bits of a quantiser that divides in f32 in this order.
// Measured: RMSE of mse below amax's by 14.6 % on normal weights, 14.3 to 14.6 % on tiny-moe's.
// Source: docs/formats/records.md; OCP Microscaling Formats (MX) Specification 1.0, section 5.3.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "tensor/quantise.h"

namespace smoe::tensor {

enum class Nvfp4Quantiser : uint8_t { kAmax, kMse };

// The global scale of a matrix. Requires finite weights.
float Nvfp4GlobalScale(std::span<const float> weights);

// Fills `packed` (a byte for two weights) and `scales` (a byte for 16) and returns what it cost.
// Requires finite weights, a whole number of blocks, exact output sizes, scale2 > 0.
// Cost: no allocation. Threads: any.
QuantisationError QuantiseNvfp4(std::span<const float> weights, float scale2,
                                Nvfp4Quantiser quantiser, MutableBytes packed, MutableBytes scales);

// The weights that codes and scales stand for.
void DequantiseNvfp4(Bytes packed, Bytes scales, float scale2, std::span<float> weights);

// Rounds half to even; beyond 448 it stays at 448. Requires value >= 0.
uint8_t F8E4M3FromF32(float value);

}  // namespace smoe::tensor
