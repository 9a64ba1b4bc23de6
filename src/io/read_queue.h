// io/read_queue.h: many positioned reads in flight into memory the caller owns.
//
// A queue belongs to one thread. It allocates when opened and never again; when it is full the
// caller waits, it does not grow. Three implementations keep this contract and share one test
// suite: io_uring, pread threads, and FakeReadQueue, which has seeded order and faults; and so does
// each of them when it cuts reads into pieces (io/split_read_queue.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe::io {

struct ReadRequest {
  int fd;             // borrowed; stays open until the read is reaped
  uint64_t offset;    // in bytes; a multiple of kDirectAlignment if fd is O_DIRECT
  MutableBytes into;  // borrowed; untouched by anyone else until the read is reaped
  uint64_t tag;       // the caller's to interpret, returned as is
};

struct ReadDone {
  uint64_t tag;
  int error;  // 0: `into` is full. ENODATA: the file ended first. Else an errno.
};

inline constexpr uint32_t kReadDepthMax = 4096;
inline constexpr uint32_t kReadThreadsMax = 256;

enum class ReadBackend { kAuto, kUring, kThreads };
const char* ReadBackendName(ReadBackend backend);  // "auto", "uring", "threads": --io takes these

class ReadQueue {
 public:
  struct Options {
    uint32_t depth = 64;        // reads in flight at most, 1..kReadDepthMax
    uint32_t thread_count = 8;  // reader threads of the threaded queue, 1..kReadThreadsMax
    // A read goes to the drive in pieces of so many bytes, all at once; a multiple of
    // kDirectAlignment, 0: whole. Pieces count for thread_count, and not for depth.
    uint64_t piece_bytes = 0;
  };

  // Errors: kInvalid if an option is outside its limits;
  //         kUnsupported where the kernel or a sandbox forbids io_uring: the message says why;
  //         kExhausted if the system gives fewer threads than asked.
  static Result<std::unique_ptr<ReadQueue>> OpenUring(const Options& options);
  static Result<std::unique_ptr<ReadQueue>> OpenThreaded(const Options& options);
  // kAuto: io_uring, or threads with one line in the log that says why. kUring: that or an error.
  static Result<std::unique_ptr<ReadQueue>> Open(ReadBackend backend, const Options& options);

  // Blocks until no read is in flight: the kernel may still be writing into the buffers. Reads
  // that were pushed and not submitted are dropped.
  virtual ~ReadQueue() = default;
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  virtual const char* name() const = 0;  // "uring", "threads", "fake"

  // Files that stay open, and memory that stays mapped, as long as the queue lives: the kernel may
  // keep hold of both, so that a read costs less. Reads elsewhere work as ever. Called with no read
  // in flight, at most once each. The memory is pinned: giving its pages back to the system by
  // madvise would split what the kernel writes from what the program sees, so call ForgetMemory
  // first (no read in flight then either).
  // Errors: kUnsupported with the reason, and the queue reads as before: the limit on locked
  // memory,
  //         a sandbox, or a queue that has no use for it.
  virtual Status RegisterFiles(std::span<const int> fds);
  virtual Status RegisterMemory(MutableBytes memory);
  virtual Status ForgetMemory();

  // How many more reads fit.
  virtual uint32_t free_count() const = 0;

  // Queues one read; nothing reaches the kernel before Submit(). Requires free_count() > 0.
  virtual void Push(const ReadRequest& request) = 0;

  // Hands everything pushed to the kernel, in one system call. Never waits for a read.
  // Errors: kIo if the kernel takes no reads at all; the queue is then broken for good.
  virtual Status Submit() = 0;

  // Submits, then fills `done` with finished reads, waiting until there are at least `done_min`.
  // Returns how many. Short and interrupted reads are resumed here and never seen by the caller.
  // Requires done_min <= done.size(), and at least done_min reads pushed and not yet reaped.
  virtual Result<size_t> Reap(std::span<ReadDone> done, size_t done_min) = 0;

 protected:
  ReadQueue() = default;
};

// kInvalid, with the limits, if an option is outside them.
Status CheckReadOptions(const ReadQueue::Options& options);

}  // namespace smoe::io
