// base/bytes.h: bounds without overflow, and structs by copy.
//
// Untrusted memory is span<const std::byte>; it becomes a struct only through LoadStruct, never
// through a cast, since many fields of our formats are unaligned. All our formats are
// little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace smoe {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// True if [offset, offset + size) lies inside [0, total). Never overflows.
constexpr bool RangeFits(uint64_t offset, uint64_t size, uint64_t total) {
  return offset <= total && size <= total - offset;
}

// nullopt on overflow of 64 bits.
constexpr std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}
constexpr std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// Requires multiple > 0, and value + multiple not to overflow.
constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr uint64_t CeilDiv(uint64_t value, uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

// Copies a struct or number out of bytes. Requires the range to fit.
template <class T>
T LoadStruct(Bytes bytes, uint64_t offset = 0) {
  static_assert(std::is_trivially_copyable_v<T>);
  SMOE_CHECK(RangeFits(offset, sizeof(T), bytes.size()));
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}
template <class T>
void StoreStruct(MutableBytes bytes, uint64_t offset, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  SMOE_CHECK(RangeFits(offset, sizeof(T), bytes.size()));
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <class T>
Bytes AsBytes(std::span<const T> values) {
  return std::as_bytes(values);
}
inline Bytes AsBytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// True if every byte is zero.
bool AllZero(Bytes bytes);

// XXH3, 64 bits, seed 0. Source: github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
uint64_t Checksum(Bytes bytes);

// The same over pieces that arrive one after another.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;
  void Add(Bytes bytes);
  uint64_t Digest() const;

 private:
  void* state_;
};

}  // namespace smoe
