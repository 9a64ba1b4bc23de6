// base/page_filler.h: takes the pages of fresh memory before they are needed.
//
// The system hands out anonymous memory when it is first touched, zeroed, at 1 to 8 GB/s a thread:
// a virtual machine whose host has taken idle pages back is at the slow end. Where a drive is to
// write into such memory, the thread that starts the read would do that work instead of its own.
// A filler does it ahead, on a thread of its own, from the front of the memory to the back, and
// never more than `ahead_bytes` beyond what is in use: what nobody needs is not taken.
//
// Contents do not change: memory may be in use already. Where the kernel cannot (before Linux 5.14)
// the filler does nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/bytes.h"
#include "base/thread_pool.h"

namespace smoe {

class PageFiller {
 public:
  // Borrows `memory`, whole pages of one mapping, until Stop or the end. Null if the system refuses
  // a thread: the pages then come when they are touched, as ever.
  static std::unique_ptr<PageFiller> Start(MutableBytes memory, uint64_t ahead_bytes);
  ~PageFiller() { Stop(); }
  PageFiller(const PageFiller&) = delete;
  PageFiller& operator=(const PageFiller&) = delete;

  // The first `bytes` are in use, or soon will be. Never less than in an earlier call.
  // Threads: one owner. Cost: a store; a system call if the filler waits for this.
  void Use(uint64_t bytes);

  // The first `bytes` are written next: what of them is not taken yet is taken now, by all threads
  // of `pool`, and a little of what lies ahead. Threads: the owner, which is the pool's too. Cost:
  // two loads if nothing is left.
  void TakeNow(uint64_t bytes, ThreadPool& pool);

  // Waits until the filler touches nothing any more: at most the time of a huge page. Before pages
  // are given back to the system, or the memory ends.
  void Stop();

  // All pages were taken; or the system takes none ahead.
  bool is_done() const { return filled_.load(std::memory_order_acquire) == memory_.size(); }

  // Until the filler has taken what it may take now; for tests.
  void AwaitRest() const;

 private:
  PageFiller(MutableBytes memory, uint64_t ahead_bytes);
  uint64_t EndOfPage(uint64_t at) const;
  void Run();

  const MutableBytes memory_;
  const uint64_t ahead_bytes_;
  std::atomic<uint64_t> goal_{0};  // fill up to here; kStop: no further
  std::atomic<uint64_t> filled_{0};
  uint64_t taken_bytes_ = 0;  // the owner's: from the front, by TakeNow
  std::thread thread_;
};

}  // namespace smoe
