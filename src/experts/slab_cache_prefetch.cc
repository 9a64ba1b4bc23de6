#include <utility>

#include "experts/slab_cache.h"

namespace smoe::experts {

// Those that this pass did not want may be evicted like any other.
void SlabCache::ForgetPrefetched() {
  for (const uint32_t slot : prefetched_) {
    if (std::exchange(slots_[slot].is_prefetched, false)) ++stats_.prefetch_wasted_count;
  }
  prefetched_.clear();
}

void SlabCache::Prefetch(std::span<const store::ExpertId> likely, bool yields) {
  if (queue_error_) return;
  likely_yields_ = yields;
  SMOE_CHECK(likely.size() <= likely_.capacity());
  likely_.assign(likely.begin(), likely.end());
  likely_begin_ = 0;
  if (Status started = StartReads(); !started) queue_error_ = std::move(started.error());
}

// The next of likely_ that is not in memory. False if there is none, or no slot for it.
bool SlabCache::StartNextPrefetch() {
  const bool is_in_the_way = left_count_ > ready_.size() || in_flight_count_ >= guess_depth_;
  if (likely_yields_ && is_in_the_way) return false;
  // Half of the slots at most: the pass after the next one shall not find all of them new.
  if (prefetched_.size() >= limit_ / 2) return false;
  for (; likely_begin_ < likely_.size(); ++likely_begin_) {
    const std::optional<uint32_t> ordinal = FindOrdinal(store_, likely_[likely_begin_]);
    if (!ordinal || slot_of_[*ordinal] != kNoSlot) continue;
    const uint32_t slot = TakeSlot(true);
    if (slot == kNoSlot) return false;
    StartLoading(slot, likely_[likely_begin_++], kNotWanted);
    prefetched_.push_back(slot);
    ++stats_.prefetch_count;
    return true;
  }
  return false;
}

void SlabCache::ReadWhenIdle(std::span<const store::ExpertId> likely) {
  idle_.assign(likely.begin(), likely.end());
  idle_begin_ = 0;
  if (queue_error_) return;
  if (Status started = StartReads(); !started) queue_error_ = std::move(started.error());
}

bool SlabCache::StartNextIdleRead() {
  if (in_flight_count_ > 0 || free_.empty()) return false;
  for (; idle_begin_ < idle_.size(); ++idle_begin_) {
    const std::optional<uint32_t> ordinal = FindOrdinal(store_, idle_[idle_begin_]);
    if (!ordinal || slot_of_[*ordinal] != kNoSlot) continue;
    const uint32_t slot = free_.PopFront();
    StartLoading(slot, idle_[idle_begin_++], kNotWanted);
    slots_[slot].is_prefetched = false;
    slots_[slot].is_idle_read = true;
    ++stats_.idle_count;
    return true;
  }
  return false;
}

}  // namespace smoe::experts
