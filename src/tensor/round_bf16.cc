#include "tensor/round_bf16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace smoe::tensor {

namespace {

constexpr size_t kBlock = 64;

// As BF16FromF32 for finite weights, in a form that the compiler turns into vectors.
uint16_t Round(float weight) {
  const auto bits = std::bit_cast<uint32_t>(weight);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace

QuantisationError RoundToBf16(std::span<const float> weights, MutableBytes out) {
  SMOE_CHECK(out.size() == weights.size() * sizeof(uint16_t));
  QuantisationError error;
  error.weight_count = weights.size();
  std::array<uint16_t, kBlock> rounded = {};
  for (size_t first = 0; first < weights.size(); first += kBlock) {
    const auto block = weights.subspan(first, std::min(kBlock, weights.size() - first));
    for (size_t i = 0; i < block.size(); ++i) rounded[i] = Round(block[i]);
    std::memcpy(out.data() + first * sizeof(uint16_t), rounded.data(),
                block.size() * sizeof(uint16_t));
    for (size_t i = 0; i < block.size(); ++i) {
      const double value = double{block[i]};
      const double difference = value - double{std::bit_cast<float>(uint32_t{rounded[i]} << 16)};
      error.squared_error += difference * difference;
      error.squared_value += value * value;
      error.error_max = std::max(error.error_max, std::fabs(difference));
    }
  }
  return error;
}

}  // namespace smoe::tensor
