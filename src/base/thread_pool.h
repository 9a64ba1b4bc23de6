// base/thread_pool.h: a fixed set of threads that run one loop at a time.
//
// ParallelFor is a fork and a join: it cuts [0, count) into pieces, gives every thread a run of
// neighbouring ones, always the same run for the same loop, and returns when all are done. A run
// begins with eighths and ends with 32nds, so that threads stop together. A thread that has done
// its own takes from the ends of the others', so one that the system keeps off its core holds up
// the piece it is in and no more; the caller waits for no thread that has not begun.
// Which thread runs which piece never changes a result: pieces must not depend on each other, nor
// wait for each other.
//
// After a loop the threads look out for the next one for kPoolSpin and then sleep: a pool at rest
// takes no processor time. A pool of more threads than UsableCoreCount() sleeps at once, as each
// look-out would take the core from somebody who works. Threads inherit the affinity of the caller
// and are not bound to cores.
//
// Threads: ParallelFor from one thread at a time (the owner); never from inside a body.
// Cost: a loop takes a microsecond more than its pieces while the threads look out (measured by
// bench/thread_pool.cc), and one wake-up of all sleepers, some 5 to 50, when they do not.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"

namespace smoe {

// Threads of one pool at most: twice the largest machine of today, and still a quick start.
inline constexpr size_t kThreadsMax = 1024;

// Pieces of a long loop for each thread.
inline constexpr size_t kPiecesPerThread = 12;

// How long a thread looks out before it sleeps: about what a sleep and a wake-up cost.
inline constexpr std::chrono::microseconds kPoolSpin{50};

// What a piece of a loop should touch at least, several times what the loop itself costs: the
// grain of a loop over items of so many bytes each. A loop of no more runs on the caller alone.
inline constexpr size_t kPieceBytesMin = size_t{32} << 10;
constexpr size_t GrainOf(size_t item_bytes) {
  return item_bytes >= kPieceBytesMin ? 1 : kPieceBytesMin / (item_bytes == 0 ? 1 : item_bytes);
}

class ThreadPool {
 public:
  // For numbers that come from outside.
  // Errors: kInvalid if thread_count is 0 or above kThreadsMax; kExhausted if the system refuses a
  //         thread.
  static Result<std::unique_ptr<ThreadPool>> Create(size_t thread_count);

  // thread_count counts the caller: 1 starts no thread. Requires 1 <= thread_count <= kThreadsMax.
  // Where the system refuses a thread the pool has fewer, as thread_count() says.
  explicit ThreadPool(size_t thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t thread_count() const;

  // Calls body(begin, end) for disjoint ranges that cover [0, count), several on each thread. Each
  // range but the last is a multiple of `grain` long; the cuts depend on count, grain and
  // thread_count() alone. Allocates nothing. What body throws (memory ran out) is thrown here, once
  // all are done; of several exceptions the first.
  void ParallelFor(size_t count, size_t grain,
                   const std::function<void(size_t begin, size_t end)>& body);

  // How well the threads were used since the pool began. The share of their time inside loops that
  // they had no work is 1 - busy_ns / (thread_count() * loop_ns).
  // Cost of counting: two looks at the clock for each thread and loop, below 0.1 us.
  struct Use {
    uint64_t loop_ns = 0;  // by the owner's clock, inside ParallelFor
    uint64_t busy_ns = 0;  // of all threads, at pieces
    uint64_t loop_count = 0;
  };
  // Threads: the owner.
  Use use() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smoe
