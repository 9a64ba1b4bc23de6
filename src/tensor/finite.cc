#include "tensor/finite.h"

#include "base/check.h"

namespace smoe::tensor {

namespace {

// Stretches are tested as a whole without a branch inside; only a bad one is searched.
template <class Bits>
std::optional<uint64_t> FindFullExponent(Bytes elements, Bits exponent) {
  constexpr uint64_t kStretch = 1024;
  const uint64_t count = elements.size() / sizeof(Bits);
  const auto bad_at = [&](uint64_t index) {
    Bits bits;
    std::memcpy(&bits, elements.data() + index * sizeof(Bits), sizeof(Bits));
    return (bits & exponent) == exponent;
  };
  for (uint64_t first = 0; first < count; first += kStretch) {
    const uint64_t end = count - first < kStretch ? count : first + kStretch;
    unsigned bad = 0;
    for (uint64_t index = first; index < end; ++index) bad |= bad_at(index) ? 1u : 0u;
    if (bad == 0) continue;
    for (uint64_t index = first; index < end; ++index) {
      if (bad_at(index)) return index;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> FindNonFinite(DType dtype, Bytes elements) {
  if (dtype == DType::kF32) return FindFullExponent<uint32_t>(elements, 0x7f800000u);
  if (dtype == DType::kF16) return FindFullExponent<uint16_t>(elements, 0x7c00u);
  SMOE_CHECK(dtype == DType::kBF16);
  return FindFullExponent<uint16_t>(elements, 0x7f80u);
}

bool AllFinite(std::span<const float> values) {
  return !FindNonFinite(DType::kF32, std::as_bytes(values));
}

}  // namespace smoe::tensor
