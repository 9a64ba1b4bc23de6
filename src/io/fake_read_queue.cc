#include "io/fake_read_queue.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "io/read_progress.h"

namespace smoe::io {

namespace {

struct FakeRead {
  ReadRequest request;
  int fault = 0;
  uint32_t stalled_reaps = 0;
  uint64_t number = 0;  // in the order of Push
};

class FakeReadQueue final : public ReadQueue {
 public:
  explicit FakeReadQueue(const FakeReadOptions& options)
      : options_(options), random_(options.seed) {
    SMOE_CHECK(options.depth >= 1 && options.depth <= kReadDepthMax);
    reads_.reserve(options.depth);
  }

  const char* name() const override { return "fake"; }
  uint32_t free_count() const override {
    return options_.depth - static_cast<uint32_t>(reads_.size());
  }

  void Push(const ReadRequest& request) override {
    SMOE_CHECK(free_count() > 0);
    const int fault = options_.fault ? options_.fault(request) : 0;
    const uint32_t stalled_reaps = options_.stall ? options_.stall(request) : 0;
    reads_.push_back({.request = request,
                      .fault = fault,
                      .stalled_reaps = stalled_reaps,
                      .number = pushed_count_++});
  }

  Status Submit() override { return Ok(); }

  Result<size_t> Reap(std::span<ReadDone> done, size_t done_min) override {
    SMOE_CHECK(done_min <= done.size() && done_min <= reads_.size());
    // Those that may finish now stand first; of the stalled ones the soonest follow, if the caller
    // waits for so many.
    std::sort(reads_.begin(), reads_.end(), [](const FakeRead& a, const FakeRead& b) {
      return std::pair(a.stalled_reaps, a.number) < std::pair(b.stalled_reaps, b.number);
    });
    size_t movable_count = 0;
    while (movable_count < reads_.size() && reads_[movable_count].stalled_reaps == 0) {
      ++movable_count;
    }
    movable_count = std::max(movable_count, done_min);
    const size_t count = Draw(done_min, std::min(done.size(), movable_count));
    for (size_t i = 0; i < count; ++i) {
      const auto chosen =
          reads_.begin() + static_cast<std::ptrdiff_t>(Draw(0, movable_count - 1 - i));
      done[i] = Finish(*chosen);
      reads_.erase(chosen);
    }
    for (FakeRead& read : reads_) read.stalled_reaps -= read.stalled_reaps == 0 ? 0 : 1;
    return count;
  }

 private:
  // The remainder is biased by less than 2^-50 here, and is the same with every standard library.
  size_t Draw(size_t lowest, size_t highest) {
    return lowest + static_cast<size_t>(random_() % (highest - lowest + 1));
  }

  // A read that fails has filled some of its buffer all the same, as a real one may.
  ReadDone Finish(const FakeRead& read) {
    const uint32_t call_bytes_max =
        Draw(0, 3) == 0 ? static_cast<uint32_t>(kDirectAlignment) * 3 : kCallBytesMax;
    int error = ReadNow(read.request, call_bytes_max);
    if (read.fault != 0) error = read.fault;
    if (error == 0 && options_.damage) options_.damage(read.request);
    return {.tag = read.request.tag, .error = error};
  }

  FakeReadOptions options_;
  std::mt19937_64 random_;
  std::vector<FakeRead> reads_;
  uint64_t pushed_count_ = 0;
};

}  // namespace

std::unique_ptr<ReadQueue> MakeFakeReadQueue(const FakeReadOptions& options) {
  return std::make_unique<FakeReadQueue>(options);
}

}  // namespace smoe::io
