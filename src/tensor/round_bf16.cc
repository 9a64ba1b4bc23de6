#include "tensor/round_bf16.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/dtype.h"

namespace smoe::tensor {

QuantisationError RoundToBf16(std::span<const float> weights, MutableBytes out) {
  SMOE_CHECK(out.size() == weights.size() * sizeof(uint16_t));
  QuantisationError error;
  error.weight_count = weights.size();
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint16_t bits = BF16FromF32(weights[i]);
    StoreStruct(out, i * sizeof(bits), bits);
    const double value = double{weights[i]};
    const double difference = value - double{F32FromBF16(bits)};
    error.squared_error += difference * difference;
    error.squared_value += value * value;
    error.error_max = std::max(error.error_max, std::fabs(difference));
  }
  return error;
}

}  // namespace smoe::tensor
