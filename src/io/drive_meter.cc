#include "io/drive_meter.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/memory.h"
#include "base/stopwatch.h"
#include "io/fixed_ring.h"

namespace smoe::io {

namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

class ReadRun {
 public:
  ReadRun(ReadQueue& queue, std::span<const ReadRange> ranges, MutableBytes memory,
          uint64_t part_bytes)
      : queue_(queue),
        ranges_(ranges),
        memory_(memory),
        part_bytes_(part_bytes),
        free_parts_(std::min<uint64_t>(kPartsMax, memory.size() / part_bytes)) {
    while (free_parts_.size() < std::min<uint64_t>(kPartsMax, memory.size() / part_bytes)) {
      free_parts_.Push(static_cast<uint32_t>(free_parts_.size()));
    }
  }

  Status Run(uint32_t depth, double seconds_max) {
    std::vector<ReadDone> done(depth);
    for (uint32_t i = 0; i < depth; ++i) Start();
    while (in_flight_count_ > 0) {
      SMOE_TRY_ASSIGN(const size_t count, queue_.Reap(done, 1));
      const bool is_late = stopwatch_.seconds() > seconds_max;
      for (size_t i = 0; i < count; ++i) {
        --in_flight_count_;
        Take(done[i]);
        if (!is_late && error_ == 0) Start();
      }
    }
    if (error_ == 0) return Ok();
    return Io("measuring reads: offset {}: {}", error_offset_, std::strerror(error_));
  }
  uint64_t bytes() const { return bytes_; }
  double seconds() const { return stopwatch_.seconds(); }

 private:
  static constexpr uint64_t kPartsMax = kReadDepthMax;

  // Into the part that has been idle longest, as a cache's slots come round: a drive that copies
  // through the processor is faster into a few megabytes that stay in its caches.
  void Start() {
    if (next_ == ranges_.size()) return;
    const uint32_t part = free_parts_.Pop();
    const ReadRange& range = ranges_[next_];
    queue_.Push({.fd = range.fd,
                 .offset = range.offset,
                 .into = memory_.subspan(part * part_bytes_, range.size),
                 .tag = next_ * kPartsMax + part});
    ++next_;
    ++in_flight_count_;
  }

  void Take(const ReadDone& done) {
    free_parts_.Push(static_cast<uint32_t>(done.tag % kPartsMax));
    const ReadRange& range = ranges_[done.tag / kPartsMax];
    if (done.error == 0) {
      bytes_ += range.size;
    } else if (error_ == 0) {
      error_ = done.error;
      error_offset_ = range.offset;
    }
  }

  ReadQueue& queue_;
  const std::span<const ReadRange> ranges_;
  const MutableBytes memory_;
  const uint64_t part_bytes_;
  FixedRing<uint32_t> free_parts_;
  const Stopwatch stopwatch_;
  size_t next_ = 0;
  size_t in_flight_count_ = 0;
  uint64_t bytes_ = 0;
  uint64_t error_offset_ = 0;
  int error_ = 0;
};

}  // namespace

ReadRate& ReadRate::operator+=(const ReadRate& other) {
  bytes += other.bytes;
  seconds += other.seconds;
  cpu_seconds += other.cpu_seconds;
  return *this;
}

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

Result<ReadRate> MeasureReads(ReadQueue& queue, std::span<const ReadRange> ranges,
                              MutableBytes memory, uint32_t depth, double seconds_max) {
  SMOE_CHECK(depth >= 1 && depth <= queue.free_count());
  uint64_t part_bytes = 0;
  for (const ReadRange& range : ranges) part_bytes = std::max(part_bytes, range.size);
  part_bytes = std::max(kPageBytes, RoundUp(part_bytes, kPageBytes));
  if (memory.size() / depth < part_bytes) {
    return Invalid("measuring reads: {} bytes of memory, {} parts of {} wanted", memory.size(),
                   depth, part_bytes);
  }
  ReadRate rate;
  const double cpu_before = ProcessCpuSeconds();
  ReadRun run(queue, ranges, memory, part_bytes);
  SMOE_TRY(run.Run(depth, seconds_max));
  rate.seconds = run.seconds();
  rate.cpu_seconds = ProcessCpuSeconds() - cpu_before;
  rate.bytes = run.bytes();
  return rate;
}

}  // namespace smoe::io
