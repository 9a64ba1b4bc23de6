// io/fixed_ring.h: first in, first out, in memory taken once.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace smoe::io {

// Requires never more in it than `capacity`, and nothing to be taken from an empty one.
template <class T>
class FixedRing {
 public:
  explicit FixedRing(size_t capacity) : items_(capacity) {}
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& front() const {
    SMOE_DCHECK(size_ > 0);
    return items_[first_];
  }
  void Push(const T& item) {
    SMOE_DCHECK(size_ < items_.size());
    items_[(first_ + size_++) % items_.size()] = item;
  }
  T Pop() {
    SMOE_DCHECK(size_ > 0);
    const T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace smoe::io
