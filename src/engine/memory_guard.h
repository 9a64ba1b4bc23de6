// engine/memory_guard.h: shrinks the expert cache before the system kills or pages, and grows it
// back slowly.
//
// MemoryGuard decides, from samples alone; CacheKeeper reads the samples and does what was decided.
// Memory is short if, since the last sample, tasks waited for memory kShortStall of the time, or
// this process had to read back kShortFaults pages a second, or less than the floor is free. Then
// an eighth of the slots goes, or as many as bring the free memory back to twice the floor,
// whichever is more; and nothing further for kSettleNs, so that the effect shows. After a calm time
// a thirty-second of the first size comes back, if that leaves twice the floor free, and so on
// every kGrowNs; shortness within kRelapseNs of growing doubles the calm time that is asked for.
#pragma once

#include <cstdint>
#include <string>

#include "base/memory_pressure.h"
#include "base/result.h"
#include "experts/expert_cache.h"

namespace smoe::engine {

struct GuardStats {
  uint64_t shrink_count = 0;
  uint64_t grow_count = 0;
  uint32_t slot_count = 0;      // now
  uint32_t slot_count_min = 0;  // the fewest so far
};

class MemoryGuard {
 public:
  static constexpr double kShortStall = 0.1;   // of the time
  static constexpr double kCalmStall = 0.02;   // between the two nothing is done
  static constexpr double kShortFaults = 200;  // a second
  static constexpr uint64_t kSettleNs = 1'000'000'000;
  static constexpr uint64_t kGrowNs = 2'000'000'000;
  static constexpr uint64_t kCalmNs = 10'000'000'000;  // before the first growth
  static constexpr uint64_t kCalmNsMax = 16 * kCalmNs;
  static constexpr uint64_t kRelapseNs = 4'000'000'000;

  struct Options {
    uint32_t slot_count = 0;      // to begin with, and at most
    uint32_t slot_count_min = 1;  // never fewer
    uint64_t slot_bytes = 0;
    uint64_t floor_bytes = 0;  // that should stay free
  };
  explicit MemoryGuard(const Options& options);

  // The slots that the cache should have now. Samples in the order of their time; the first only
  // tells where the counters stand.
  uint32_t Decide(const PressureSample& sample);

  // Why the last change was made: "memory stalls 23 % of the time".
  const std::string& reason() const { return reason_; }
  GuardStats stats() const { return stats_; }

 private:
  bool IsShort(const PressureSample& sample, double seconds);
  bool IsCalm(const PressureSample& sample, double seconds) const;
  void Shrink(const PressureSample& sample);
  void Grow(const PressureSample& sample);

  const Options options_;
  PressureSample last_;
  bool has_last_ = false;
  uint64_t shrunk_ns_ = 0;
  uint64_t grown_ns_ = 0;
  uint64_t calm_since_ns_ = 0;
  uint64_t calm_wanted_ns_ = kCalmNs;
  std::string reason_;
  GuardStats stats_;
};

// Between steps: a look at the system every kLookNs, and the cache's size.
class CacheKeeper {
 public:
  static constexpr uint64_t kLookNs = 250'000'000;

  // Borrows the cache. `root` as in base/memory_pressure.h.
  CacheKeeper(experts::ExpertCache& cache, const MemoryGuard::Options& options,
              std::string root = "")
      : cache_(cache), guard_(options), root_(std::move(root)) {}

  // Requires that no pass of the cache is under way. Says in the log what it changed.
  // Errors: as ExpertCache::SetSlotLimit.
  // Cost: a look at the clock; every kLookNs as ReadPressure.
  Status Look();
  // The same at a given time, for tests.
  Status LookAt(uint64_t time_ns);

  GuardStats stats() const { return guard_.stats(); }

 private:
  experts::ExpertCache& cache_;
  MemoryGuard guard_;
  const std::string root_;
  uint64_t looked_ns_ = 0;
};

}  // namespace smoe::engine
