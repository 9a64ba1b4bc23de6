// model/finite.h: finds NaN and infinity, in weights and in results.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace smoe::model {

// Index of the first element that is NaN or infinite. Requires F32, F16 or BF16 and whole elements.
// Cost: one vectorised pass; the exponent bits alone decide.
std::optional<uint64_t> FindNonFinite(tensor::DType dtype, Bytes elements);

bool AllFinite(const float* values, size_t count);

}  // namespace smoe::model
