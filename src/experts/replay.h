// experts/replay.h: what caches of several sizes and policies would have read for a trace.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/eviction.h"
#include "experts/trace.h"

namespace smoe::experts {

struct ReplayCounts {
  uint64_t wanted_count = 0;
  uint64_t miss_count = 0;
  double hit_rate() const {
    return wanted_count == 0
               ? 0.0
               : 1.0 - static_cast<double>(miss_count) / static_cast<double>(wanted_count);
  }
};

// Every token of the trace, layer after layer, as in decoding; counted from token `skip` on, when
// the cache is warm. Requires slot_count >= 1.
// Cost: about tokens x layers x slots.
ReplayCounts Replay(const Trace& trace, Eviction eviction, uint32_t slot_count, size_t skip);

// The fewest reads that any policy can have, since it knows the future: the expert that is wanted
// again last goes first. Source: L. A. Belady, IBM Systems Journal 5 (1966), the MIN algorithm.
ReplayCounts ReplayBelady(const Trace& trace, uint32_t slot_count, size_t skip);

}  // namespace smoe::experts
