// convert/workers.h: one loop over many independent pieces of work, by several threads, each with
// memory of its own. The first failure stops the others at their next piece.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "base/core_count.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace smoe::convert {

// The first failure of several workers.
class FirstError {
 public:
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void Note(Status status) {
    if (status) return;
    const std::lock_guard lock(mutex_);
    if (failed_.exchange(true)) return;
    status_ = std::move(status);
  }
  // After the workers have been joined.
  Status Take() { return std::move(status_); }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status status_;
};

// What RunWorkers would refuse: asked before anything is written.
inline Status CheckThreadCount(size_t thread_count) {
  if (thread_count <= kThreadsMax) return Ok();
  return Invalid("--threads: {}, expected 1 to {}", thread_count, kThreadsMax);
}

// Calls `make_worker()`, which gives a Result<Worker>, once a thread, and `work(index, worker)`
// once for every index below `count`, in any order. thread_count 0: one more than
// UsableCoreCount(), because a conversion's worker also waits for the drive.
// Errors: the first one of either; kInvalid for a thread_count beyond kThreadsMax.
template <class MakeWorker, class Work>
Status RunWorkers(size_t count, size_t thread_count, const MakeWorker& make_worker,
                  const Work& work) {
  if (thread_count == 0) thread_count = std::min(UsableCoreCount() + 1, kThreadsMax);
  FirstError error;
  std::atomic<size_t> next{0};
  SMOE_TRY_ASSIGN(const auto pool, ThreadPool::Create(thread_count));
  pool->ParallelFor(thread_count, 1, [&](size_t, size_t) {
    auto worker = make_worker();
    if (!worker) {
      error.Note(Unexpected(std::move(worker.error())));
      return;
    }
    while (!error.failed()) {
      const size_t index = next.fetch_add(1);
      if (index >= count) break;
      error.Note(work(index, *worker));
    }
  });
  return error.Take();
}

}  // namespace smoe::convert
