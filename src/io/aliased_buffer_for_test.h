// io/aliased_buffer_for_test.h: the same 2 MiB of memory, mapped again and again: gigabytes of
// address space that cost little, for the limits of 32-bit sizes.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/bytes.h"

namespace smoe::io {

class AliasedBuffer {
 public:
  explicit AliasedBuffer(size_t size) : size_(size) {
    const int fd = ::memfd_create("aliased", 0);
    EXPECT_EQ(::ftruncate(fd, kPieceBytes), 0);
    data_ = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(data_, MAP_FAILED);
    for (size_t at = 0; at < size; at += kPieceBytes) {
      ::mmap(static_cast<char*>(data_) + at, std::min(kPieceBytes, size - at),
             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    }
    ::close(fd);
  }
  ~AliasedBuffer() { ::munmap(data_, size_); }
  AliasedBuffer(const AliasedBuffer&) = delete;
  AliasedBuffer& operator=(const AliasedBuffer&) = delete;
  MutableBytes bytes() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  static constexpr size_t kPieceBytes = size_t{2} << 20;
  size_t size_;
  void* data_;
};

}  // namespace smoe::io
