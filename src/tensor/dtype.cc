#include "tensor/dtype.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace smoe::tensor {

namespace {

struct DTypeInfo {
  DType dtype;
  uint8_t bytes;
  bool is_float;
  std::string_view name;
};

constexpr DTypeInfo kInfos[] = {
    {DType::kF32, 4, true, "F32"},         {DType::kF16, 2, true, "F16"},
    {DType::kBF16, 2, true, "BF16"},       {DType::kF64, 8, true, "F64"},
    {DType::kF8E4M3, 1, false, "F8_E4M3"}, {DType::kF8E5M2, 1, false, "F8_E5M2"},
    {DType::kF8E8M0, 1, false, "F8_E8M0"}, {DType::kBool, 1, false, "BOOL"},
    {DType::kU8, 1, false, "U8"},          {DType::kI8, 1, false, "I8"},
    {DType::kU16, 2, false, "U16"},        {DType::kI16, 2, false, "I16"},
    {DType::kU32, 4, false, "U32"},        {DType::kI32, 4, false, "I32"},
    {DType::kU64, 8, false, "U64"},        {DType::kI64, 8, false, "I64"},
};

const DTypeInfo& InfoOf(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  SMOE_CHECK(index < std::size(kInfos) && kInfos[index].dtype == dtype);
  return kInfos[index];
}

}  // namespace

size_t DTypeBytes(DType dtype) { return InfoOf(dtype).bytes; }
std::string_view DTypeName(DType dtype) { return InfoOf(dtype).name; }
bool IsFloat(DType dtype) { return InfoOf(dtype).is_float; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeInfo& info : kInfos) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

float F32FromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude << 13));
  if (magnitude >= 0x0400u) {
    // The biases differ by 127 - 15.
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  }
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

float F32FromBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float F32FromF8E4M3(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude >= 0x08u) {
    // The biases differ by 127 - 7.
    return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  }
  const float value = static_cast<float>(magnitude) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

uint16_t F16FromF32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // stays a NaN, made quiet
  } else if (magnitude >= 0x47800000u) {
    half = 0x7c00u;  // 65536 and more
  } else if (magnitude >= 0x38800000u) {
    // Adding just under half of the last kept bit, plus that bit, rounds half to even. A carry runs
    // into the exponent, and from 65520 on into infinity, as it should.
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // Below 2^-14 the step is 2^-24. 0.5 has the step 2^-24 too, so the addition rounds for us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

uint16_t BF16FromF32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace smoe::tensor
