// experts/slot_list.h: a doubly linked list of slot numbers that lives in the slots themselves.
//
// A slot is in one list at most. Nothing here allocates; every operation is O(1).
#pragma once

#include <cstdint>

#include "base/check.h"

namespace smoe::experts {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

struct SlotLinks {
  uint32_t previous = kNoSlot;
  uint32_t next = kNoSlot;
};

// Slots is anything with slots[index].links and slots[index].list, the list that holds the slot.
template <class Slots>
class SlotList {
 public:
  explicit SlotList(Slots& slots) : slots_(&slots) {}
  SlotList(const SlotList&) = delete;
  SlotList& operator=(const SlotList&) = delete;

  bool empty() const { return front_ == kNoSlot; }
  uint32_t front() const { return front_; }
  uint32_t size() const { return size_; }
  bool Holds(uint32_t slot) const { return (*slots_)[slot].list == this; }

  void PushBack(uint32_t slot) {
    SMOE_CHECK((*slots_)[slot].list == nullptr);
    (*slots_)[slot].list = this;
    (*slots_)[slot].links = {.previous = back_, .next = kNoSlot};
    (back_ == kNoSlot ? front_ : (*slots_)[back_].links.next) = slot;
    back_ = slot;
    ++size_;
  }

  void Remove(uint32_t slot) {
    SMOE_CHECK(Holds(slot));
    const SlotLinks links = (*slots_)[slot].links;
    (links.previous == kNoSlot ? front_ : (*slots_)[links.previous].links.next) = links.next;
    (links.next == kNoSlot ? back_ : (*slots_)[links.next].links.previous) = links.previous;
    (*slots_)[slot].list = nullptr;
    --size_;
  }

  // `by` takes the place of `slot`.
  void Replace(uint32_t slot, uint32_t by) {
    SMOE_CHECK(Holds(slot) && (*slots_)[by].list == nullptr);
    const SlotLinks links = (*slots_)[slot].links;
    (links.previous == kNoSlot ? front_ : (*slots_)[links.previous].links.next) = by;
    (links.next == kNoSlot ? back_ : (*slots_)[links.next].links.previous) = by;
    (*slots_)[by].links = links;
    (*slots_)[by].list = this;
    (*slots_)[slot].list = nullptr;
  }

  uint32_t PopFront() {
    const uint32_t slot = front_;
    Remove(slot);
    return slot;
  }

 private:
  Slots* slots_;
  uint32_t front_ = kNoSlot;
  uint32_t back_ = kNoSlot;
  uint32_t size_ = 0;
};

}  // namespace smoe::experts
