// checkpoint/element_decoder.h: the elements of a checkpoint tensor to f32, at memory speed.
//
// Exact, subnormals included: bf16 and f16 go to f32 and never through each other. Each function
// says whether it met NaN or infinity, at the price of one compare per vector.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace smoe::checkpoint {

// Shapes:   in: out.size() elements of `dtype`, at any alignment
// Requires: IsFloat(dtype) or kF8E4M3, in.size() == out.size() * DTypeBytes(dtype) (checked)
// Returns:  true if all values are finite. f64 rounds; what becomes infinite then is not finite.
[[nodiscard]] bool DecodeElements(tensor::DType dtype, Bytes in, std::span<float> out);

// MXFP4: `in` holds two E2M1 codes a byte, low nibble first; every 32 share one E8M0 scale.
// Shapes:   in [out.size() / 2], scales [out.size() / 32]
// Requires: out.size() % 32 == 0 (checked)
// Returns:  false if a scale is NaN (0xff)
// Source:   OCP Microscaling Formats (MX) 1.0, sections 5.3.3, 5.4; transformers 5.24
//           integrations/mxfp4.py, convert_moe_packed_tensors.
[[nodiscard]] bool DecodeMxfp4(Bytes in, Bytes scales, std::span<float> out);

}  // namespace smoe::checkpoint
