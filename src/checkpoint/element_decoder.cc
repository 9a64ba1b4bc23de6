#include "checkpoint/element_decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace smoe::checkpoint {

namespace {

using tensor::DType;

// The largest magnitude seen, as bits: NaN and infinity are the largest of all, so that one running
// maximum finds them. Loops over memcpy'd integers: input may be unaligned, compilers see a load.
bool DecodeBF16(const std::byte* in, float* out, size_t count) {
  uint16_t peak = 0;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    peak = std::max(peak, static_cast<uint16_t>(bits & 0x7fff));
    const uint32_t wide = uint32_t{bits} << 16;
    std::memcpy(out + i, &wide, sizeof(wide));
  }
  return peak < 0x7f80;
}

// A half's exponent and fraction, read as a float's, are 2^-112 of its value, subnormals included:
// one multiplication makes both right. Infinity and NaN come out wrong and are mended by the
// caller.
bool DecodeFiniteF16(const std::byte* in, float* out, size_t count) {
  constexpr float kTwoTo112 = 5192296858534827628530496329220096.0F;
  uint16_t peak = 0;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    peak = std::max(peak, static_cast<uint16_t>(bits & 0x7fff));
    const uint32_t wide = uint32_t{bits & 0x7fffU} << 13 | (uint32_t{bits} & 0x8000U) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    out[i] = value * kTwoTo112;
  }
  return peak < 0x7c00;
}

bool DecodeF16(const std::byte* in, float* out, size_t count) {
  if (DecodeFiniteF16(in, out, count)) return true;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    out[i] = tensor::F32FromF16(bits);
  }
  return false;
}

bool DecodeF32(const std::byte* in, float* out, size_t count) {
  uint32_t peak = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in + 4 * i, sizeof(bits));
    peak = std::max(peak, bits & 0x7fffffffU);
    std::memcpy(out + i, &bits, sizeof(bits));
  }
  return peak < 0x7f800000U;
}

bool DecodeF64(const std::byte* in, float* out, size_t count) {
  bool is_finite = true;
  for (size_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, in + 8 * i, sizeof(value));
    // Converting a double beyond the largest float is undefined: say infinity ourselves.
    constexpr double kFloatMax = 3.4028235677973366e38;  // halfway between it and 2^128
    out[i] = std::fabs(value) >= kFloatMax
                 ? std::copysign(HUGE_VALF, static_cast<float>(value < 0 ? -1 : 1))
                 : static_cast<float>(value);
    is_finite = is_finite && std::isfinite(out[i]);
  }
  return is_finite;
}

std::array<float, 256> MakeF8E4M3Table() {
  std::array<float, 256> table = {};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = tensor::F32FromF8E4M3(static_cast<uint8_t>(i));
  }
  return table;
}

bool DecodeF8E4M3(const std::byte* in, float* out, size_t count) {
  static const std::array<float, 256> table = MakeF8E4M3Table();
  uint8_t peak = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto bits = std::to_integer<uint8_t>(in[i]);
    peak = std::max(peak, static_cast<uint8_t>(bits & 0x7f));
    out[i] = table[bits];
  }
  return peak < 0x7f;
}

}  // namespace

bool DecodeElements(DType dtype, Bytes in, std::span<float> out) {
  SMOE_CHECK(in.size() == out.size() * tensor::DTypeBytes(dtype));
  switch (dtype) {
    case DType::kBF16:
      return DecodeBF16(in.data(), out.data(), out.size());
    case DType::kF16:
      return DecodeF16(in.data(), out.data(), out.size());
    case DType::kF32:
      return DecodeF32(in.data(), out.data(), out.size());
    case DType::kF64:
      return DecodeF64(in.data(), out.data(), out.size());
    case DType::kF8E4M3:
      return DecodeF8E4M3(in.data(), out.data(), out.size());
    default:
      SMOE_CHECK(false);
      return false;
  }
}

bool DecodeMxfp4(Bytes in, Bytes scales, std::span<float> out) {
  constexpr size_t kGroup = 32;
  constexpr float kE2M1[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                               -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  SMOE_CHECK(out.size() % kGroup == 0);
  SMOE_CHECK(in.size() == out.size() / 2 && scales.size() == out.size() / kGroup);
  bool is_finite = true;
  for (size_t group = 0; group < scales.size(); ++group) {
    const auto exponent = std::to_integer<uint32_t>(scales[group]);
    is_finite = is_finite && exponent != 0xff;
    // 2^(exponent - 127); 2^-127 is a subnormal, 0xff is NaN.
    const uint32_t bits = exponent == 0      ? 0x00400000U
                          : exponent == 0xff ? 0x7fc00000U
                                             : exponent << 23;
    const auto scale = std::bit_cast<float>(bits);
    const std::byte* codes = in.data() + group * (kGroup / 2);
    float* values = out.data() + group * kGroup;
    for (size_t i = 0; i < kGroup / 2; ++i) {
      const auto code = std::to_integer<uint8_t>(codes[i]);
      values[2 * i] = kE2M1[code & 0xf] * scale;
      values[2 * i + 1] = kE2M1[code >> 4] * scale;
    }
    // 6 x 2^127 is beyond f32.
    is_finite = is_finite && (exponent < 0xfd || std::all_of(values, values + kGroup, [](float v) {
                                return std::isfinite(v);
                              }));
  }
  return is_finite;
}

}  // namespace smoe::checkpoint
