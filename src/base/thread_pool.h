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

namespace smoe {

class ThreadPool {
 public:
  // thread_count counts the caller: 1 starts no thread. Requires thread_count >= 1.
  explicit ThreadPool(size_t thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t thread_count() const;

  // Calls body(begin, end) for disjoint ranges that cover [0, count). Each range but the last is a
  // multiple of `grain` long. body must not throw.
  void ParallelFor(size_t count, size_t grain,
                   const std::function<void(size_t begin, size_t end)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Processors this process may use: affinity and cgroup quota count, hyper-threads do not.
size_t UsableCoreCount();

}  // namespace smoe
