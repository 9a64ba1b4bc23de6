#include "base/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace smoe {

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<AlignedBuffer> AlignedBuffer::Create(uint64_t bytes, std::string_view purpose) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Exhausted("{}: {} bytes of memory asked, the system refused: {}", purpose, bytes,
                     std::strerror(errno));
  }
  // A refusal costs speed and nothing else.
  if (bytes >= kHugePageBytes) madvise(data, bytes, MADV_HUGEPAGE);
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}

Result<AlignedBuffer> AlignedBuffer::CreateTable(uint64_t rows, uint64_t row_items,
                                                 uint64_t item_bytes, std::string_view purpose) {
  const std::optional<uint64_t> items = CheckedMul(rows, row_items);
  const std::optional<uint64_t> bytes = items ? CheckedMul(*items, item_bytes) : std::nullopt;
  if (!bytes) {
    return Exhausted("{}: {} x {} items of {} bytes asked, more than a machine can address",
                     purpose, rows, row_items, item_bytes);
  }
  return Create(*bytes, purpose);
}

}  // namespace smoe
