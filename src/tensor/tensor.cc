#include "tensor/tensor.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/check.h"

namespace smoe::tensor {

std::string ShapeText(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::optional<uint64_t> ElementCount(const Shape& shape) {
  // A zero makes the product zero only if the rest does not overflow: a shape of which any part
  // overflows is refused, whatever the order.
  uint64_t count = 1;
  bool has_zero = false;
  for (const uint64_t size : shape) {
    if (size == 0) {
      has_zero = true;
      continue;
    }
    const auto product = CheckedMul(count, size);
    if (!product) return std::nullopt;
    count = *product;
  }
  return has_zero ? 0 : count;
}

namespace {

template <class Bits, class Convert>
void ConvertAll(const std::byte* source, std::span<float> out, Convert convert) {
  for (float& value : out) {
    Bits bits;
    std::memcpy(&bits, source, sizeof(bits));
    source += sizeof(bits);
    value = convert(bits);
  }
}

}  // namespace

void ToF32(const TensorView& view, uint64_t first, std::span<float> out) {
  SMOE_CHECK(IsFloat(view.dtype));
  const uint64_t element_bytes = DTypeBytes(view.dtype);
  SMOE_CHECK(RangeFits(first, out.size(), view.data.size() / element_bytes));
  if (out.empty()) return;
  const std::byte* source = view.data.data() + first * element_bytes;
  switch (view.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), source, out.size_bytes());
      break;
    case DType::kF16:
      ConvertAll<uint16_t>(source, out, F32FromF16);
      break;
    case DType::kBF16:
      // As F32FromBF16, in a form that the compiler turns into vectors.
      ConvertAll<uint16_t>(
          source, out, [](uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); });
      break;
    default:
      ConvertAll<double>(source, out, [](double value) { return static_cast<float>(value); });
      break;
  }
}

}  // namespace smoe::tensor
