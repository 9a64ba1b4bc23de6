#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/fixed_ring.h"
#include "io/read_progress.h"
#include "io/read_queue.h"
#include "io/split_read_queue.h"

namespace smoe::io {

namespace {

class ThreadedReadQueue final : public ReadQueue {
 public:
  explicit ThreadedReadQueue(uint32_t depth)
      : free_count_(depth), pushed_(depth), waiting_(depth), finished_(depth) {}

  // Reads that a thread has begun are waited for; those that none has begun are dropped.
  ~ThreadedReadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_arrived_.notify_all();
    for (std::thread& reader : readers_) reader.join();
  }

  // Signals go to the threads that the program made for itself: an interrupt must reach main.
  Status StartReaders(uint32_t count) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status status = Ok();
    readers_.reserve(count);
    // The standard library reports a refused thread in no other way.
    try {
      while (readers_.size() < count) readers_.emplace_back([this] { ReaderLoop(); });
    } catch (const std::system_error& refusal) {
      status = Exhausted("read threads: {} asked, the system gave {}: {}", count, readers_.size(),
                         refusal.code().message());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
  }

  const char* name() const override { return "threads"; }
  uint32_t free_count() const override { return free_count_; }

  void Push(const ReadRequest& request) override {
    SMOE_CHECK(free_count_ > 0);
    --free_count_;
    ++unreaped_count_;
    pushed_.Push(request);
  }

  Status Submit() override {
    const size_t count = pushed_.size();
    if (count == 0) return Ok();
    {
      const std::lock_guard lock(mutex_);
      while (pushed_.size() > 0) waiting_.Push(pushed_.Pop());
    }
    if (count == 1) {
      work_arrived_.notify_one();
    } else {
      work_arrived_.notify_all();
    }
    return Ok();
  }

  Result<size_t> Reap(std::span<ReadDone> done, size_t done_min) override {
    SMOE_CHECK(done_min <= done.size() && done_min <= unreaped_count_);
    SMOE_TRY(Submit());
    std::unique_lock lock(mutex_);
    finished_min_ = done_min;
    while (finished_.size() < done_min) enough_finished_.wait(lock);
    finished_min_ = 0;
    const size_t count = std::min(done.size(), finished_.size());
    for (size_t i = 0; i < count; ++i) done[i] = finished_.Pop();
    free_count_ += static_cast<uint32_t>(count);
    unreaped_count_ -= static_cast<uint32_t>(count);
    return count;
  }

 private:
  void ReaderLoop() {
    pthread_setname_np(pthread_self(), "smoe-read");
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!stopping_ && waiting_.size() == 0) work_arrived_.wait(lock);
      if (stopping_) return;
      const ReadRequest request = waiting_.Pop();
      lock.unlock();
      const int error = ReadNow(request);
      lock.lock();
      finished_.Push({.tag = request.tag, .error = error});
      if (finished_min_ != 0 && finished_.size() >= finished_min_) enough_finished_.notify_one();
    }
  }

  // The owner's alone.
  uint32_t free_count_;
  uint32_t unreaped_count_ = 0;
  FixedRing<ReadRequest> pushed_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable work_arrived_;
  std::condition_variable enough_finished_;
  FixedRing<ReadRequest> waiting_;
  FixedRing<ReadDone> finished_;
  size_t finished_min_ = 0;  // the owner sleeps until so many are finished; 0: it does not sleep
  bool stopping_ = false;
  std::vector<std::thread> readers_;
};

}  // namespace

Result<std::unique_ptr<ReadQueue>> ReadQueue::OpenThreaded(const Options& options) {
  SMOE_TRY(CheckReadOptions(options));
  const bool is_split = options.piece_bytes != 0;
  const uint32_t depth = is_split ? PieceDepth(options.depth) : options.depth;
  auto queue = std::make_unique<ThreadedReadQueue>(depth);
  SMOE_TRY(queue->StartReaders(std::min(options.thread_count, depth)));
  if (!is_split) return std::unique_ptr<ReadQueue>(std::move(queue));
  return MakeSplitReadQueue(std::move(queue), options.depth, options.piece_bytes);
}

}  // namespace smoe::io
