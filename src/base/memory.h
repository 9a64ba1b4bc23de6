// base/memory.h: large aligned memory that the program owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe {

inline constexpr uint64_t kCacheLineBytes = 64;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Anonymous, zeroed, page-aligned memory. Move-only; freed by the destructor.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  // Huge pages are asked for (never demanded) when bytes >= 2 MiB.
  // Errors: kExhausted with the size and the name of what it is for, as in "expert cache".
  static Result<AlignedBuffer> Create(uint64_t bytes, std::string_view purpose);
  // Room for a table of rows times row_items items. kExhausted also if that overflows 64 bits.
  static Result<AlignedBuffer> CreateTable(uint64_t rows, uint64_t row_items, uint64_t item_bytes,
                                           std::string_view purpose);

  // Gives the whole pages of a range back to the system: they read as zeros from now on, and take
  // memory again when they are written. Never in memory that the kernel holds for a device
  // (registered buffers): it would go on writing into the old pages. Requires a range inside.
  void Discard(uint64_t offset, uint64_t bytes);

  // Keeps the memory from being paged out; the lock goes with the memory.
  // Errors: kExhausted naming the bytes, and the limit of the process where that is the reason.
  Status Lock() const;

  // Gives the memory up without freeing it, when someone may still write into it.
  void Leak() {
    data_ = nullptr;
    size_ = 0;
  }

  MutableBytes bytes() { return {data_, size_}; }
  Bytes bytes() const { return {data_, size_}; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

  // The memory as numbers; a rest shorter than one is left out. The one place for this cast.
  template <class T>
  requires std::is_arithmetic_v<T> std::span<T> As() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  template <class T>
  requires std::is_arithmetic_v<T> std::span<const T> As()
  const { return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)}; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace smoe
