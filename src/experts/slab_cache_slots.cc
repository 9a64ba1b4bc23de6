#include <algorithm>
#include <cstring>
#include <utility>

#include "experts/slab_cache.h"

namespace smoe::experts {

Status SlabCache::SetSlotLimit(uint32_t slot_count) {
  if (queue_error_) return Unexpected(*queue_error_);
  SMOE_CHECK(!is_in_pass_ && pinned_count_ == 0);
  SMOE_TRY(Abandon());
  const uint32_t limit = std::clamp(slot_count, 1U, slot_capacity());
  for (; limit_ < limit; ++limit_) free_.PushBack(limit_);
  if (limit == limit_) return Ok();
  const bool was_filling = filler_ && !filler_->is_done();
  filler_.reset();
  while (resident_.size() > limit) {
    const uint32_t slot = EvictLeast(false);
    slots_[slot].state = SlotState::kFree;
    free_.PushBack(slot);
  }
  for (uint32_t slot = limit; slot < limit_; ++slot) {
    if (free_.Holds(slot)) free_.Remove(slot);
  }
  for (uint32_t slot = limit; slot < limit_; ++slot) {
    if (slots_[slot].state == SlotState::kResident) MoveExpert(slot, free_.PopFront());
  }
  SMOE_TRY(queue_.ForgetMemory());
  slab_.Discard(limit * slot_bytes_, (limit_ - limit) * slot_bytes_);
  limit_ = limit;
  if (!was_filling) return Ok();
  filler_ = PageFiller::Start(slab_.bytes().first(limit * slot_bytes_), ahead_bytes_);
  if (filler_) filler_->Use(std::min(used_bytes_, limit * slot_bytes_));
  return Ok();
}

// A resident expert into a slot that is in no list.
void SlabCache::MoveExpert(uint32_t from, uint32_t to) {
  std::memcpy(SlotBytes(to).data(), SlotBytes(from).data(), slot_bytes_);
  resident_.Replace(from, to);
  Slot& source = slots_[from];
  Slot& target = slots_[to];
  target.state = std::exchange(source.state, SlotState::kFree);
  target.id = source.id;
  target.ordinal = source.ordinal;
  target.wanted_index = kNotWanted;
  target.is_prefetched = std::exchange(source.is_prefetched, false);
  target.is_idle_read = std::exchange(source.is_idle_read, false);
  slot_of_[target.ordinal] = to;
  std::replace(prefetched_.begin(), prefetched_.end(), from, to);
}

// The resident slot that goes first. Of equals, the one that was there longest.
uint32_t SlabCache::LeastWorth(bool spares_prefetched) const {
  uint32_t least = kNoSlot;
  double least_worth = 0;
  for (uint32_t slot = resident_.front(); slot != kNoSlot; slot = slots_[slot].links.next) {
    if (spares_prefetched && slots_[slot].is_prefetched) continue;
    const double worth = policy_->Worth(slots_[slot].ordinal);
    if (least != kNoSlot && worth >= least_worth) continue;
    least = slot;
    least_worth = worth;
  }
  return least;
}

// A slot for a new expert, in no list; kNoSlot if every one is in use.
uint32_t SlabCache::TakeSlot(bool spares_prefetched) {
  return free_.empty() ? EvictLeast(spares_prefetched) : free_.PopFront();
}

uint32_t SlabCache::EvictLeast(bool spares_prefetched) {
  const uint32_t slot = LeastWorth(spares_prefetched);
  if (slot == kNoSlot) return kNoSlot;
  resident_.Remove(slot);
  slot_of_[slots_[slot].ordinal] = kNoSlot;
  if (std::exchange(slots_[slot].is_prefetched, false)) ++stats_.prefetch_wasted_count;
  if (std::exchange(slots_[slot].is_idle_read, false)) ++stats_.idle_wasted_count;
  return slot;
}

SlotCounts SlabCache::Audit() const {
  SlotCounts counts;
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    const bool has_expert = slot_of_[slot.ordinal] == index;
    switch (slot.state) {
      case SlotState::kFree:
        SMOE_CHECK(!has_expert);
        SMOE_CHECK(index < limit_ ? free_.Holds(index) : slot.list == nullptr);
        counts.free += index < limit_ ? 1 : 0;
        break;
      case SlotState::kLoading:
        SMOE_CHECK(has_expert && (slot.list == nullptr || starting_.Holds(index)));
        ++counts.loading;
        break;
      case SlotState::kReady:
        SMOE_CHECK(ready_.Holds(index) && has_expert == !slot.error.has_value());
        ++counts.ready;
        break;
      case SlotState::kPinned:
        SMOE_CHECK(slot.list == nullptr && has_expert);
        ++counts.pinned;
        break;
      case SlotState::kResident:
        SMOE_CHECK(resident_.Holds(index) && has_expert);
        ++counts.resident;
        break;
    }
  }
  SMOE_CHECK(counts.free == free_.size() && counts.ready == ready_.size());
  SMOE_CHECK(counts.resident == resident_.size() && counts.pinned == pinned_count_);
  for (uint32_t ordinal = 0; ordinal < slot_of_.size(); ++ordinal) {
    const uint32_t slot = slot_of_[ordinal];
    SMOE_CHECK(slot == kNoSlot || slot < limit_);
    SMOE_CHECK(slot == kNoSlot || slots_[slot].ordinal == ordinal);
  }
  return counts;
}

}  // namespace smoe::experts
