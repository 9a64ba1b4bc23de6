// experts/shadow_cache.h: what a cache of another size would have read, without its memory.
//
// Keeps only which experts would be resident. Answers two questions: how many reads one more GiB
// would save (a gauge beside the real cache), and how policies compare on a recorded trace.
//
// Threads: one owner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/eviction.h"

namespace smoe::experts {

class ShadowCache {
 public:
  // Borrows the policy; whoever owns it tells it of each pass before Pass is called here.
  // Requires slot_count >= 1.
  ShadowCache(uint32_t expert_count, uint32_t slot_count, const EvictionPolicy& policy);

  // A pass that wants these experts, all different. As in the real cache, experts that the pass
  // still wants stay, and a pass may want more than there are slots.
  // Returns how many were not resident. Cost: O(slots) with misses, else O(wanted).
  uint32_t Pass(std::span<const uint32_t> wanted);

  uint32_t slot_count() const { return slot_count_; }
  uint64_t miss_count() const { return miss_count_; }
  uint64_t wanted_count() const { return wanted_count_; }

 private:
  const EvictionPolicy& policy_;
  uint32_t slot_count_;
  std::vector<uint8_t> is_resident_;  // by ordinal
  std::vector<uint8_t> is_wanted_;    // the same, all zero between passes
  std::vector<uint32_t> residents_;   // in no order
  std::vector<uint32_t> missing_;
  uint64_t miss_count_ = 0;
  uint64_t wanted_count_ = 0;
};

}  // namespace smoe::experts
