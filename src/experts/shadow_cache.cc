#include "experts/shadow_cache.h"

#include <algorithm>

#include "base/check.h"

namespace smoe::experts {

ShadowCache::ShadowCache(uint32_t expert_count, uint32_t slot_count, const EvictionPolicy& policy)
    : policy_(policy),
      slot_count_(slot_count),
      is_resident_(expert_count),
      is_wanted_(expert_count) {
  SMOE_CHECK(slot_count > 0);
  residents_.reserve(std::min(slot_count, expert_count));
  missing_.reserve(expert_count);
}

uint32_t ShadowCache::Pass(std::span<const uint32_t> wanted) {
  missing_.clear();
  for (const uint32_t ordinal : wanted) {
    if (is_resident_[ordinal] == 0) missing_.push_back(ordinal);
    is_wanted_[ordinal] = 1;
  }
  const auto miss_count = static_cast<uint32_t>(missing_.size());
  if (residents_.size() + missing_.size() > slot_count_) {
    const size_t kept_max = slot_count_ - std::min<size_t>(missing_.size(), slot_count_);
    const auto gone =
        static_cast<std::ptrdiff_t>(residents_.size() - std::min(residents_.size(), kept_max));
    // Those of least worth; those that the pass wants only when no other is left.
    std::partial_sort(residents_.begin(), residents_.begin() + gone, residents_.end(),
                      [&](uint32_t a, uint32_t b) {
                        if (is_wanted_[a] != is_wanted_[b]) return is_wanted_[a] < is_wanted_[b];
                        const double worth_a = policy_.Worth(a);
                        const double worth_b = policy_.Worth(b);
                        return worth_a != worth_b ? worth_a < worth_b : a < b;
                      });
    std::for_each(residents_.begin(), residents_.begin() + gone,
                  [&](uint32_t ordinal) { is_resident_[ordinal] = 0; });
    residents_.erase(residents_.begin(), residents_.begin() + gone);
    // A pass that wants more than there are slots: the first to arrive made room for the last.
    if (missing_.size() > slot_count_) {
      missing_.erase(missing_.begin(), missing_.end() - static_cast<std::ptrdiff_t>(slot_count_));
    }
  }
  for (const uint32_t ordinal : missing_) {
    is_resident_[ordinal] = 1;
    residents_.push_back(ordinal);
  }
  for (const uint32_t ordinal : wanted) is_wanted_[ordinal] = 0;
  miss_count_ += miss_count;
  wanted_count_ += wanted.size();
  return miss_count;
}

}  // namespace smoe::experts
