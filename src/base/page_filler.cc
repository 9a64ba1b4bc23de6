#include "base/page_filler.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <system_error>

#include "base/memory.h"

namespace smoe {

namespace {

constexpr int kNiceness = 15;
constexpr uint64_t kAtOnce = uint64_t{16} << 20;  // by all threads: worth waking them
constexpr uint64_t kStop = std::numeric_limits<uint64_t>::max();

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // since Linux 5.14; older headers lack it
#endif

}  // namespace

std::unique_ptr<PageFiller> PageFiller::Start(MutableBytes memory, uint64_t ahead_bytes) {
  auto filler = std::unique_ptr<PageFiller>(new PageFiller(memory, ahead_bytes));
  // The standard library reports a refused thread in no other way.
  try {
    filler->thread_ = std::thread([raw = filler.get()] { raw->Run(); });
  } catch (const std::system_error&) {
    return nullptr;
  }
  return filler;
}

PageFiller::PageFiller(MutableBytes memory, uint64_t ahead_bytes)
    : memory_(memory), ahead_bytes_(std::min<uint64_t>(ahead_bytes, memory.size())) {
  goal_ = ahead_bytes_;
}

void PageFiller::Use(uint64_t bytes) {
  const uint64_t goal = std::min<uint64_t>(bytes, memory_.size() - ahead_bytes_) + ahead_bytes_;
  if (goal <= goal_.load(std::memory_order_relaxed)) return;
  goal_.store(goal, std::memory_order_release);
  goal_.notify_all();
}

void PageFiller::Stop() {
  if (!thread_.joinable()) return;
  goal_.store(kStop, std::memory_order_release);
  goal_.notify_all();
  thread_.join();
}

void PageFiller::AwaitRest() const {
  for (uint64_t filled = filled_.load(); filled < goal_.load(); filled = filled_.load()) {
    filled_.wait(filled);
  }
}

// Where the huge page ends that `at` lies in, so that each comes whole.
uint64_t PageFiller::EndOfPage(uint64_t at) const {
  const uint64_t misfit = reinterpret_cast<uintptr_t>(memory_.data()) % kHugePageBytes;
  return std::min<uint64_t>(RoundUp(at + misfit + 1, kHugePageBytes) - misfit, memory_.size());
}

void PageFiller::TakeNow(uint64_t bytes, ThreadPool& pool) {
  const uint64_t begin = std::max(filled_.load(std::memory_order_acquire), taken_bytes_);
  if (begin >= std::min<uint64_t>(bytes, memory_.size())) return;
  const uint64_t end = std::min<uint64_t>(bytes + std::min(ahead_bytes_, kAtOnce), memory_.size());
  const auto take = [&](size_t first, size_t last) {
    uint64_t at = first == 0 ? begin : EndOfPage(begin + (first - 1) * kHugePageBytes);
    for (size_t i = first; i < last && at < end; ++i) {
      const uint64_t page_end = EndOfPage(at);
      // As in Run: a refusal costs time later.
      (void)madvise(memory_.data() + at, page_end - at, kPopulateWrite);
      at = page_end;
    }
  };
  pool.ParallelFor(CeilDiv(end - begin, kHugePageBytes) + 1, 1, std::ref(take));
  taken_bytes_ = end;
}

// One huge page after the other.
void PageFiller::Run() {
  // On Linux a thread's alone. Whoever computes or converts meanwhile goes first.
  (void)setpriority(PRIO_PROCESS, 0, kNiceness);
  for (uint64_t at = 0; at < memory_.size();) {
    const uint64_t goal = goal_.load(std::memory_order_acquire);
    if (goal == kStop) return;
    if (at >= goal) {
      goal_.wait(goal, std::memory_order_acquire);
      continue;
    }
    const uint64_t end = EndOfPage(at);
    // A refusal costs time later and nothing else; the next piece would be refused as well.
    const bool refused = madvise(memory_.data() + at, end - at, kPopulateWrite) != 0;
    at = refused ? memory_.size() : end;
    filled_.store(at, std::memory_order_release);
    filled_.notify_all();
  }
}

}  // namespace smoe
