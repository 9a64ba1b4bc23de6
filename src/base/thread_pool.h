// base/thread_pool.h: a fixed set of threads that run one loop at a time.
//
// ParallelFor is a fork and a join: it cuts [0, count) into at most thread_count equal pieces, runs
// one on the calling thread, and returns when all are done. Which thread runs which piece never
// changes a result: pieces must not depend on each other. Between loops the threads sleep.
//
// Threads: ParallelFor from one thread at a time (the owner); never from inside a body.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/result.h"

namespace smoe {

// Threads of one pool at most: twice the largest machine of today, and still a quick start.
inline constexpr size_t kThreadsMax = 1024;

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

  // Calls body(begin, end) for disjoint ranges that cover [0, count). Each range but the last is a
  // multiple of `grain` long. What body throws (memory ran out) is thrown here, once all are done.
  void ParallelFor(size_t count, size_t grain,
                   const std::function<void(size_t begin, size_t end)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smoe
