// tensor/dequantise.h: a whole matrix of any format as f32, row-major.
//
// For what compares and converts stores; the engine computes on the formats themselves.
#pragma once

#include <span>

#include "tensor/weights.h"

namespace smoe::tensor {

// out[row * cols + col] = WeightAt(weights, row, col), to the bit, at a fraction of its cost.
// Shapes:   out [rows][cols]
// Requires: out.size() == rows * cols
// Threads:  any
// Cost:     no allocation; about 1 ns a weight
void Dequantise(const WeightView& weights, std::span<float> out);

}  // namespace smoe::tensor
