// The one door to liburing.
#include <liburing.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/memory_limits.h"
#include "io/read_progress.h"
#include "io/read_queue.h"
#include "io/split_read_queue.h"

namespace smoe::io {

namespace {

const char* RefusalHint(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return " (a container's seccomp filter, or kernel.io_uring_disabled is set)";
    case ENOSYS:
      return " (the kernel is older than 5.1, or a sandbox hides it)";
    case ENOMEM:
      return " (the limit on locked memory, ulimit -l, is too low for the ring)";
    case EINVAL:
      return " (the kernel is older than 5.6)";
    default:
      return "";
  }
}

Unexpected Refused(const char* step, int error) {
  return Unsupported("io_uring: {}: {}{}", step, std::strerror(error), RefusalHint(error));
}

// The kernel takes 1 GiB in one piece at most. Source: man 2 io_uring_register.
constexpr size_t kMemoryPieceBytes = size_t{1} << 30;
constexpr size_t kMemoryPiecesMax = 1024;
constexpr size_t kFilesMax = 1024;
constexpr int kFdMax = 1 << 16;

Unexpected MemoryRefused(uint64_t bytes) {
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (!is_limited || limit.rlim_cur >= bytes) return Refused("registering memory", ENOMEM);
  return Unsupported(
      "io_uring: {} of memory is not registered: the limit on locked memory is {} "
      "(ulimit -l)",
      SizeText(bytes), SizeText(limit.rlim_cur));
}

class UringReadQueue final : public ReadQueue {
 public:
  explicit UringReadQueue(uint32_t depth) : reads_(depth) {
    free_.reserve(depth);
    for (uint32_t index = depth; index > 0; --index) free_.push_back(index - 1);
  }

  ~UringReadQueue() override {
    if (!ring_is_open_) return;
    while (in_kernel_count_ > 0) {
      io_uring_cqe* cqe = nullptr;
      const int result = io_uring_wait_cqe(&ring_, &cqe);
      if (result == -EINTR || result == -EAGAIN) continue;
      // Giving up would let the kernel write into memory that its owner is about to free.
      SMOE_CHECK(result == 0);
      io_uring_cqe_seen(&ring_, cqe);
      --in_kernel_count_;
    }
    io_uring_queue_exit(&ring_);
  }

  Status OpenRing() {
    const int result = io_uring_queue_init(static_cast<unsigned>(reads_.size()), &ring_, 0);
    if (result < 0) return Refused("set-up", -result);
    ring_is_open_ = true;
    return Probe();
  }

  const char* name() const override { return "uring"; }

  Status RegisterFiles(std::span<const int> fds) override {
    SMOE_CHECK(in_kernel_count_ == 0 && file_indices_.empty());
    const int fd_max = fds.empty() ? -1 : *std::max_element(fds.begin(), fds.end());
    if (fd_max < 0 || fds.size() > kFilesMax || fd_max >= kFdMax) {
      return Unsupported("io_uring: {} files up to descriptor {}, 1 to {} below {} are registered",
                         fds.size(), fd_max, kFilesMax, kFdMax);
    }
    const int result =
        io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size()));
    if (result < 0) return Refused("registering files", -result);
    file_indices_.assign(static_cast<size_t>(fd_max) + 1, -1);
    for (size_t i = 0; i < fds.size(); ++i) {
      file_indices_[static_cast<size_t>(fds[i])] = static_cast<int>(i);
    }
    return Ok();
  }

  Status RegisterMemory(MutableBytes memory) override {
    SMOE_CHECK(in_kernel_count_ == 0 && memory_.empty());
    std::vector<iovec> pieces;
    for (size_t at = 0; at < memory.size(); at += kMemoryPieceBytes) {
      pieces.push_back({memory.data() + at, std::min(kMemoryPieceBytes, memory.size() - at)});
    }
    if (pieces.empty() || pieces.size() > kMemoryPiecesMax) {
      return Unsupported("io_uring: {} of memory, 1 byte to {} is registered",
                         SizeText(memory.size()), SizeText(kMemoryPieceBytes * kMemoryPiecesMax));
    }
    const int result =
        io_uring_register_buffers(&ring_, pieces.data(), static_cast<unsigned>(pieces.size()));
    if (result == -ENOMEM) return MemoryRefused(memory.size());
    if (result < 0) return Refused("registering memory", -result);
    memory_ = memory;
    return Ok();
  }

  Status ForgetMemory() override {
    if (memory_.empty()) return Ok();
    SMOE_CHECK(in_kernel_count_ == 0);
    const int result = io_uring_unregister_buffers(&ring_);
    if (result < 0) return Io("io_uring: unregistering memory: {}", std::strerror(-result));
    memory_ = {};
    return Ok();
  }

  uint32_t free_count() const override { return static_cast<uint32_t>(free_.size()); }

  void Push(const ReadRequest& request) override {
    SMOE_CHECK(!free_.empty());
    const uint32_t index = free_.back();
    free_.pop_back();
    reads_[index] = ReadProgress(request);
    Queue(index);
  }

  Status Submit() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      if (result == -EINTR) continue;
      if (result > 0) {
        in_kernel_count_ += static_cast<uint32_t>(result);
        continue;
      }
      // The kernel is short of memory for now: what is left goes with a later call, once some of
      // the reads in flight are done.
      const bool can_wait = result == 0 || result == -EAGAIN || result == -EBUSY;
      if (can_wait && in_kernel_count_ > 0) return Ok();
      return Io("io_uring: submitting {} reads: {}", io_uring_sq_ready(&ring_),
                std::strerror(result == 0 ? EAGAIN : -result));
    }
    return Ok();
  }

  Result<size_t> Reap(std::span<ReadDone> done, size_t done_min) override {
    SMOE_CHECK(done_min <= done.size() && done_min <= reads_.size() - free_.size());
    size_t count = 0;
    for (;;) {
      SMOE_TRY(Submit());
      count += TakeFinished(done.subspan(count));
      if (count >= done_min) break;
      SMOE_TRY(Wait());
    }
    SMOE_TRY(Submit());  // the resumed ones
    return count;
  }

 private:
  // The ring has room for as many entries as there are reads, and a read has one at most.
  void Queue(uint32_t index) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    SMOE_CHECK(sqe != nullptr);
    const ReadProgress& read = reads_[index];
    const int file_index = FileIndex(read.fd());
    const int fd = file_index < 0 ? read.fd() : file_index;
    const int piece = MemoryPiece(read.data(), read.length());
    if (piece < 0) {
      io_uring_prep_read(sqe, fd, read.data(), read.length(), read.offset());
    } else {
      io_uring_prep_read_fixed(sqe, fd, read.data(), read.length(), read.offset(), piece);
    }
    if (file_index >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, index);
  }

  // Which registered file a descriptor is, or -1.
  int FileIndex(int fd) const {
    const size_t at = static_cast<size_t>(fd);
    return fd >= 0 && at < file_indices_.size() ? file_indices_[at] : -1;
  }

  // Which registered piece of memory holds the whole of a read, or -1.
  int MemoryPiece(const std::byte* data, size_t size) const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_.data());
    const uintptr_t at = reinterpret_cast<uintptr_t>(data);
    if (size == 0 || at < begin || !RangeFits(at - begin, size, memory_.size())) return -1;
    const size_t first = (at - begin) / kMemoryPieceBytes;
    const size_t last = (at - begin + size - 1) / kMemoryPieceBytes;
    return first == last ? static_cast<int>(first) : -1;
  }

  size_t TakeFinished(std::span<ReadDone> done) {
    size_t count = 0;
    io_uring_cqe* cqe = nullptr;
    while (count < done.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const uint32_t index = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      --in_kernel_count_;
      ReadProgress& read = reads_[index];
      if (!read.Advance(result)) {
        Queue(index);
        continue;
      }
      done[count++] = {.tag = read.request().tag, .error = read.error()};
      free_.push_back(index);
    }
    return count;
  }

  Status Wait() {
    // Everything may have been resumed, and a resumed read waits in the ring for its submission.
    if (in_kernel_count_ == 0) return Ok();
    io_uring_cqe* cqe = nullptr;
    const int result = io_uring_wait_cqe(&ring_, &cqe);
    if (result == 0 || result == -EINTR || result == -EAGAIN) return Ok();
    return Io("io_uring: waiting for {} reads: {}", in_kernel_count_, std::strerror(-result));
  }

  // Reads one byte: a sandbox may allow the set-up and refuse the rest, an old kernel may not know
  // the operation. Memory as the file, since a sandbox may show no file system at all.
  Status Probe() {
    const int fd = memfd_create("smoe-probe", MFD_CLOEXEC);
    if (fd < 0) return Refused("probe file", errno);
    std::byte byte{};
    ReadDone done{};
    Status status = Ok();
    if (write(fd, &byte, 1) == 1) {
      Push({.fd = fd, .offset = 0, .into = {&byte, 1}, .tag = 0});
      Result<size_t> reaped = Reap({&done, 1}, 1);
      if (!reaped) {
        status = Unsupported("{} (a sandbox allows the set-up only)", reaped.error().message());
      } else if (done.error != 0) {
        status = Refused("first read", done.error);
      }
    } else {
      status = Refused("probe file", errno);
    }
    close(fd);
    return status;
  }

  io_uring ring_{};
  bool ring_is_open_ = false;
  uint32_t in_kernel_count_ = 0;     // submitted, completion not seen yet
  std::vector<ReadProgress> reads_;  // by the user data of their entries
  std::vector<uint32_t> free_;       // indices of reads_ that are not in use
  std::vector<int> file_indices_;    // by descriptor; -1: not registered
  MutableBytes memory_;              // registered, in pieces of kMemoryPieceBytes
};

}  // namespace

Result<std::unique_ptr<ReadQueue>> ReadQueue::OpenUring(const Options& options) {
  SMOE_TRY(CheckReadOptions(options));
  const bool is_split = options.piece_bytes != 0;
  auto queue =
      std::make_unique<UringReadQueue>(is_split ? PieceDepth(options.depth) : options.depth);
  SMOE_TRY(queue->OpenRing());
  if (!is_split) return std::unique_ptr<ReadQueue>(std::move(queue));
  return MakeSplitReadQueue(std::move(queue), options.depth, options.piece_bytes);
}

}  // namespace smoe::io
