// tensor/tensor.h: a named array in someone else's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace smoe::tensor {

using Shape = std::vector<uint64_t>;  // outermost first; empty: a scalar

std::string ShapeText(const Shape& shape);  // "[64, 128]"

// Elements of a shape; nullopt if the product overflows 64 bits.
std::optional<uint64_t> ElementCount(const Shape& shape);

// A view: owns nothing, lives as long as the memory behind it. Data may be unaligned.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  Bytes data;  // exactly ElementCount(shape) * DTypeBytes(dtype), row-major
};

// Converts elements [first, first + out.size()) to f32, exactly (f64 rounds).
// Requires IsFloat(view.dtype), and the range to lie inside.
void ToF32(const TensorView& view, uint64_t first, std::span<float> out);

}  // namespace smoe::tensor
