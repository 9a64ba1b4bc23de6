// tensor/finite.h: finds NaN and infinity, in weights and in results.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace smoe::tensor {

// Index of the first element that is NaN or infinite. Requires F32, F16 or BF16 and whole elements.
// Cost: one vectorised pass; the exponent bits alone decide.
std::optional<uint64_t> FindNonFinite(DType dtype, Bytes elements);

bool AllFinite(std::span<const float> values);

}  // namespace smoe::tensor
