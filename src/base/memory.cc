#include "base/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/memory_limits.h"

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

void AlignedBuffer::Discard(uint64_t offset, uint64_t bytes) {
  SMOE_CHECK(RangeFits(offset, bytes, size_));
  const uint64_t begin = RoundUp(offset, kPageBytes);
  // The last page of the buffer is all ours, even if the buffer ends inside it.
  const uint64_t end = offset + bytes == size_ ? RoundUp(size_, kPageBytes)
                                               : (offset + bytes) / kPageBytes * kPageBytes;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

Status AlignedBuffer::Lock() const {
  if (size_ == 0 || mlock(data_, size_) == 0) return Ok();
  const int error = errno;
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < size_) {
    return Exhausted("{} to lock, the process may lock {} (raise it: ulimit -l)", SizeText(size_),
                     SizeText(limit.rlim_cur));
  }
  return Exhausted("{} to lock, the system refused: {}", SizeText(size_), std::strerror(error));
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
