// tensor/dtype.h: the element types of checkpoints, and exact conversions to f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace smoe::tensor {

// Names as in safetensors. Source: github.com/huggingface/safetensors, README, "Format".
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kF8E4M3,  // FN kind: bias 7, largest 448, 0x7F and 0xFF are NaN
  kF8E5M2,
  kF8E8M0,  // 2^(byte - 127)
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
};

size_t DTypeBytes(DType dtype);                             // of one element
std::string_view DTypeName(DType dtype);                    // "BF16"
std::optional<DType> DTypeFromName(std::string_view name);  // nullopt: unknown
bool IsFloat(DType dtype);                                  // f32, f16, bf16, f64: ToF32 takes them

// Bits to value; exact, subnormals, infinities and NaN included.
float F32FromF16(uint16_t bits);
float F32FromBF16(uint16_t bits);
float F32FromF8E4M3(uint8_t bits);

// Rounds half to even, as IEEE 754 says; too large becomes infinity.
uint16_t F16FromF32(float value);
uint16_t BF16FromF32(float value);

}  // namespace smoe::tensor
