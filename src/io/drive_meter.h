// io/drive_meter.h: how fast given reads come through a queue, and what they cost the processor.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "io/read_queue.h"

namespace smoe::io {

struct ReadRange {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t size = 0;
};

struct ReadRate {
  uint64_t bytes = 0;
  double seconds = 0;      // from the first submission to the last arrival
  double cpu_seconds = 0;  // of the whole process meanwhile, kernel included
  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
  double cpu_seconds_per_gb() const {
    return bytes > 0 ? cpu_seconds * 1e9 / static_cast<double>(bytes) : 0;
  }
  ReadRate& operator+=(const ReadRate& other);
};

// Keeps `depth` of the ranges in flight until all are read. Each lands in a part of `memory` as
// large as the largest range, rounded up to a page; the parts are used in turn, however many of
// them there are beyond `depth`. After `seconds_max` no new reads begin.
// Requires an idle queue with room for `depth` reads. What other threads of the process compute
// meanwhile is counted too.
// Errors: kIo with the offset if a read fails; kInvalid if memory is too small, saying the need.
Result<ReadRate> MeasureReads(ReadQueue& queue, std::span<const ReadRange> ranges,
                              MutableBytes memory, uint32_t depth, double seconds_max = 1e9);

// Processor time of this process so far, all threads, in user and system mode.
double ProcessCpuSeconds();

}  // namespace smoe::io
