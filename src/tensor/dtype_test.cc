#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace smoe::tensor {
namespace {

// The value of a small float by the rule of IEEE 754, section 3.4: no bit tricks shared with the
// code under test. `has_infinity`: an exponent of all ones is infinity or NaN.
double ByHand(uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const int sign = (bits >> (exponent_bits + fraction_bits)) & 1u ? -1 : 1;
  const int exponent_max = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & exponent_max;
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (has_infinity && exponent == exponent_max) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

void ExpectSame(double expected, float actual, uint32_t bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << std::hex << bits;
    return;
  }
  EXPECT_EQ(expected, static_cast<double>(actual)) << std::hex << bits;
  EXPECT_EQ(std::signbit(expected), std::signbit(actual)) << std::hex << bits;
}

TEST(DType, NamesAndSizesAreThoseOfSafetensors) {
  struct Row {
    DType dtype;
    const char* name;
    size_t bytes;
    bool is_float;
  };
  const Row rows[] = {
      {DType::kF32, "F32", 4, true},         {DType::kF16, "F16", 2, true},
      {DType::kBF16, "BF16", 2, true},       {DType::kF64, "F64", 8, true},
      {DType::kF8E4M3, "F8_E4M3", 1, false}, {DType::kF8E5M2, "F8_E5M2", 1, false},
      {DType::kF8E8M0, "F8_E8M0", 1, false}, {DType::kBool, "BOOL", 1, false},
      {DType::kU8, "U8", 1, false},          {DType::kI8, "I8", 1, false},
      {DType::kU16, "U16", 2, false},        {DType::kI16, "I16", 2, false},
      {DType::kU32, "U32", 4, false},        {DType::kI32, "I32", 4, false},
      {DType::kU64, "U64", 8, false},        {DType::kI64, "I64", 8, false},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(DTypeName(row.dtype), row.name);
    EXPECT_EQ(DTypeFromName(row.name), row.dtype);
    EXPECT_EQ(DTypeBytes(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(IsFloat(row.dtype), row.is_float) << row.name;
  }
  for (const char* name : {"", "f32", "F3", "F322", "BF17", "F8", "F4"}) {
    EXPECT_EQ(DTypeFromName(name), std::nullopt) << name;
  }
}

TEST(F32FromF16, IsRightForAllValues) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    ExpectSame(ByHand(bits, 5, 10, true), F32FromF16(static_cast<uint16_t>(bits)), bits);
  }
}

TEST(F32FromBF16, IsRightForAllValues) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    ExpectSame(ByHand(bits, 8, 7, true), F32FromBF16(static_cast<uint16_t>(bits)), bits);
  }
}

TEST(F32FromF8E4M3, IsRightForAllValues) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const bool is_nan = (bits & 0x7f) == 0x7f;
    ExpectSame(is_nan ? std::nan("") : ByHand(bits, 4, 3, false),
               F32FromF8E4M3(static_cast<uint8_t>(bits)), bits);
  }
  EXPECT_EQ(F32FromF8E4M3(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(F32FromF8E4M3(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(F32FromF8E4M3(0x7e), 448.0f);
}

// Between each value and the next: the midpoint goes to the even one, its neighbours to the nearer.
template <class ToF32, class FromF32>
void ExpectHalfToEven(uint32_t finite_max, ToF32 to_f32, FromF32 from_f32) {
  for (uint32_t bits = 0; bits <= finite_max; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    ASSERT_EQ(from_f32(to_f32(low)), low);
    ASSERT_EQ(from_f32(-to_f32(low)), low | 0x8000);
    // Beyond the largest value the next one would be a power of two, if there were one.
    const double step = bits == 0 ? static_cast<double>(to_f32(1))
                                  : static_cast<double>(to_f32(low)) -
                                        static_cast<double>(to_f32(static_cast<uint16_t>(low - 1)));
    const double next = bits == finite_max ? static_cast<double>(to_f32(low)) + step
                                           : static_cast<double>(to_f32(high));
    const auto middle = static_cast<float>((static_cast<double>(to_f32(low)) + next) / 2);
    const uint16_t even = (bits & 1) == 0 ? low : high;
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_EQ(from_f32(middle), even) << std::hex << bits;
    ASSERT_EQ(from_f32(-middle), even | 0x8000) << std::hex << bits;
    ASSERT_EQ(from_f32(std::nextafter(middle, 0.0f)), low) << std::hex << bits;
    ASSERT_EQ(from_f32(std::nextafter(middle, infinity)), high) << std::hex << bits;
  }
}

TEST(F16FromF32, RoundsHalfToEvenBetweenAllNeighbours) {
  ExpectHalfToEven(0x7bff, F32FromF16, F16FromF32);
  EXPECT_EQ(F16FromF32(65519.996f), 0x7bff);
  EXPECT_EQ(F16FromF32(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromF32(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(F16FromF32(-std::numeric_limits<float>::max()), 0xfc00);
}

TEST(BF16FromF32, RoundsHalfToEvenBetweenAllNeighbours) {
  ExpectHalfToEven(0x7f7f, F32FromBF16, BF16FromF32);
  EXPECT_EQ(BF16FromF32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(BF16FromF32(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(F16AndBF16FromF32, KeepNaNs) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(F32FromF16(F16FromF32(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(F32FromBF16(BF16FromF32(nan)))) << std::hex << bits;
  }
}

}  // namespace
}  // namespace smoe::tensor
