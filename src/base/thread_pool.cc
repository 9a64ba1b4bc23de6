#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace smoe {

struct ThreadPool::State {
  explicit State(size_t threads) : thread_count(threads) {}

  // The range of piece `index` when [0, count) is cut for all threads.
  void RunPiece(size_t index) const {
    const size_t piece = (count / grain + thread_count - 1) / thread_count * grain;
    const size_t length = std::max(piece, grain);
    const size_t begin = std::min(count, index * length);
    const size_t end = index + 1 == thread_count ? count : std::min(count, begin + length);
    if (begin < end) (*body)(begin, end);
  }

  // An exception that leaves a thread would end the program.
  void RunPieceGuarded(size_t index) {
    try {
      RunPiece(index);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void WorkerLoop(size_t index) {
    uint64_t seen = 0;
    for (;;) {
      generation.wait(seen, std::memory_order_acquire);
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) return;
      RunPieceGuarded(index);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  size_t thread_count;
  size_t count = 0;
  size_t grain = 1;
  const std::function<void(size_t, size_t)>* body = nullptr;
  std::atomic<uint64_t> generation{0};
  std::atomic<size_t> pending{0};
  std::atomic<bool> stopping{false};
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::vector<std::thread> workers;
};

Result<std::unique_ptr<ThreadPool>> ThreadPool::Create(size_t thread_count) {
  if (thread_count == 0 || thread_count > kThreadsMax) {
    return Invalid("threads: {}, expected 1 to {}", thread_count, kThreadsMax);
  }
  auto pool = std::make_unique<ThreadPool>(thread_count);
  if (pool->thread_count() == thread_count) return pool;
  return Exhausted("threads: {} asked, the system started {}; lower --threads or raise ulimit -u",
                   thread_count, pool->thread_count());
}

ThreadPool::ThreadPool(size_t thread_count) : state_(std::make_unique<State>(thread_count)) {
  SMOE_CHECK(thread_count >= 1 && thread_count <= kThreadsMax);
  state_->workers.reserve(thread_count - 1);
  // The standard library reports a refused thread in no other way.
  try {
    for (size_t index = 1; index < thread_count; ++index) {
      state_->workers.emplace_back([state = state_.get(), index] { state->WorkerLoop(index); });
    }
  } catch (const std::system_error&) {
    state_->thread_count = state_->workers.size() + 1;
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_release);
  state_->generation.fetch_add(1, std::memory_order_acq_rel);
  state_->generation.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

size_t ThreadPool::thread_count() const { return state_->thread_count; }

void ThreadPool::ParallelFor(size_t count, size_t grain,
                             const std::function<void(size_t, size_t)>& body) {
  SMOE_CHECK(grain >= 1);
  if (count == 0) return;
  if (state_->thread_count == 1 || count <= grain) {
    body(0, count);
    return;
  }
  state_->count = count;
  state_->grain = grain;
  state_->body = &body;
  state_->pending.store(state_->thread_count - 1, std::memory_order_release);
  state_->generation.fetch_add(1, std::memory_order_acq_rel);
  state_->generation.notify_all();
  state_->RunPieceGuarded(0);
  for (size_t left = state_->pending.load(std::memory_order_acquire); left != 0;
       left = state_->pending.load(std::memory_order_acquire)) {
    state_->pending.wait(left, std::memory_order_acquire);
  }
  if (state_->failure) std::rethrow_exception(std::exchange(state_->failure, nullptr));
}

}  // namespace smoe
