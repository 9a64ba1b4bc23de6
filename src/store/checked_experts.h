// store/checked_experts.h: whose bytes have been compared with their checksum since a store was
// opened.
//
// A checksum costs a pass over the bytes, half as much processor time as computing with them: so it
// is compared when an expert comes from the drive for the first time. What says whose bytes they
// are is compared every time. Why: docs/decisions/0007-checksums-at-first-arrival.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "base/check.h"

namespace smoe::store {

class CheckedExperts {
 public:
  explicit CheckedExperts(size_t count) : checked_(count) {}
  // Threads: any.
  bool Contains(size_t index) const {
    SMOE_CHECK(index < checked_.size());
    return checked_[index].load(std::memory_order_relaxed);
  }
  void Add(size_t index) {
    SMOE_CHECK(index < checked_.size());
    checked_[index].store(true, std::memory_order_relaxed);
  }

 private:
  std::vector<std::atomic<bool>> checked_;
};

}  // namespace smoe::store
