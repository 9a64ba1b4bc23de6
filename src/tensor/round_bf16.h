// tensor/round_bf16.h: f32 weights rounded to bf16, and what it costs.
#pragma once

#include <span>

#include "base/bytes.h"
#include "tensor/quantise.h"

namespace smoe::tensor {

// Rounds half to even. Requires finite weights. Those beyond bf16's range become
// infinite: whoever stores them looks for that with FindNonFinite.
// Shapes: out [weights.size()] u16
// Cost:   no allocation
QuantisationError RoundToBf16(std::span<const float> weights, MutableBytes out);

}  // namespace smoe::tensor
