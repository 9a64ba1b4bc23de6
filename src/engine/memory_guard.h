// engine/memory_guard.h: shrinks the expert cache before the system kills or pages, and grows it
// back slowly.
//
// MemoryGuard decides, from samples alone; CacheKeeper reads the samples and does what was decided;
// WatchedBackend has it look before every layer, so that a long prompt is watched as well.
//
// Room is what would be free if the cache were full: the free bytes less what its empty slots have
// still to take. Memory is short
//   - if the room is less than the floor, or will be at the next look if it goes on falling as it
//     did since the last one. Then as many slots go as bring it back to twice the floor, at once;
//     an eighth at most for what is only foreseen;
//   - or if, since the last sample, tasks waited for memory kShortStall of the time, or if for
//     kShortFaultsNs this process had to read back kShortFaults pages a second, or its cgroup lost
//     and wanted again as many (refaults): a program's own code that comes back once is no
//     shortness. Then an eighth of the slots goes, and for kSettleNs nothing further for such
//     a reason, so that the effect shows. Waiting and refaults that others may have caused - the
//     whole system's, or files that others read - count only where the room is less than
//     kNearFloors floors. If tokens take kSlowTokens times as long as usual, a quarter of each of
//     these rates is enough.
// After a calm time a thirty-second of the first size comes back, if that leaves twice the floor,
// and so on every kGrowNs; shortness within kRelapseNs of growing doubles the calm time that is
// asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_pressure.h"
#include "base/result.h"
#include "experts/backend.h"
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
  static constexpr double kShortFaults = 200;  // a second; refaults too
  static constexpr uint64_t kShortFaultsNs = 300'000'000;
  static constexpr uint64_t kNearFloors = 16;
  static constexpr double kSlowTokens = 1.5;
  static constexpr double kSlowShare = 0.25;  // of the rates, when tokens are slow
  static constexpr uint64_t kSettleNs = 1'000'000'000;
  static constexpr uint64_t kGrowNs = 2'000'000'000;
  static constexpr uint64_t kCalmNs = 10'000'000'000;  // before the first growth
  static constexpr uint64_t kCalmNsMax = 16 * kCalmNs;
  static constexpr uint64_t kRelapseNs = 4'000'000'000;

  struct Options {
    uint32_t slot_count = 0;      // to begin with, and at most
    uint32_t slot_count_min = 1;  // never fewer
    uint64_t slot_bytes = 0;
    uint64_t floor_bytes = 0;       // that should stay free
    bool reads_page_cache = false;  // experts pass through it: refaults are how it works
  };
  explicit MemoryGuard(const Options& options);

  // The slots that the cache should have now. Samples in the order of their time; the first only
  // tells where the counters stand, and what room there is.
  // unfilled_bytes: of the slots that the cache has now, not in memory yet.
  uint32_t Decide(const PressureSample& sample, uint64_t unfilled_bytes = 0);

  // A decoding step has taken so long.
  void NoteToken(uint64_t ns);

  // From now on so many at most. More than before come at once; where memory was short, and not all
  // slots have come back and stayed for a calm time since, slowly, as above.
  void Allow(uint32_t slot_count);

  // Why the last change was made: "memory stalls 23 % of the time".
  const std::string& reason() const { return reason_; }
  GuardStats stats() const { return stats_; }

 private:
  struct Rates {  // since the last sample
    double stall = 0;
    double faults = 0;
    double refaults = 0;
  };
  Rates RatesOf(const PressureSample& sample, double seconds) const;
  bool IsNear() const { return room_ < static_cast<int64_t>(kNearFloors * options_.floor_bytes); }
  bool TokensAreSlow() const;
  std::string Pressure(const Rates& rates, uint64_t elapsed_ns);
  bool IsCalm(const Rates& rates) const;
  uint64_t LackingSlots(int64_t room) const;
  bool RemoveSlots(uint64_t count, uint64_t time_ns);
  bool MakeRoom(const PressureSample& sample, uint64_t unfilled_bytes);
  void Grow(const PressureSample& sample);

  Options options_;
  PressureSample last_;
  bool has_last_ = false;
  int64_t room_ = 0;          // of the last sample; below 0: what lacks
  int64_t room_before_ = 0;   // of the one before, as it was left
  uint64_t faulting_ns_ = 0;  // how long there have been many faults, or refaults, up to now
  bool was_short_ = false;    // slots went, and there was no calm time with all of them since
  uint64_t shrunk_ns_ = 0;
  uint64_t grown_ns_ = 0;
  uint64_t calm_since_ns_ = 0;
  uint64_t calm_wanted_ns_ = kCalmNs;
  uint64_t token_count_ = 0;
  double recent_token_ns_ = 0;  // averages of some ten and some hundred tokens
  double usual_token_ns_ = 0;
  std::string reason_;
  GuardStats stats_;
};

// A look at the system every kLookNs, and the cache's size.
class CacheKeeper {
 public:
  static constexpr uint64_t kLookNs = 100'000'000;
  static constexpr uint64_t kSayNs = 1'000'000'000;

  // Borrows the cache. `root` as in base/memory_pressure.h.
  CacheKeeper(experts::ExpertCache& cache, const MemoryGuard::Options& options,
              std::string root = "")
      : cache_(cache), guard_(options), root_(std::move(root)), said_count_(options.slot_count) {}

  // Requires that no pass of the cache is under way. Says in the log what it changed.
  // Errors: as ExpertCache::SetSlotLimit.
  // Cost: a look at the clock; every kLookNs as ReadPressure, and while the cache has empty slots
  // as ResidentBytesOf.
  Status Look();
  // The same at a given time, for tests.
  Status LookAt(uint64_t time_ns);

  // From now on the cache has so many slots at most, because others need the memory, or need it no
  // longer. Requires that no pass of the cache is under way. Errors: as ExpertCache::SetSlotLimit.
  Status Allow(uint32_t slot_count);

  void NoteToken(uint64_t ns) { guard_.NoteToken(ns); }

  GuardStats stats() const { return guard_.stats(); }

 private:
  uint64_t UnfilledBytes() const;
  void Say(uint32_t count, uint64_t time_ns);

  experts::ExpertCache& cache_;
  MemoryGuard guard_;
  const std::string root_;
  uint64_t looked_ns_ = 0;
  uint32_t said_count_;
  uint64_t said_ns_ = 0;
};

// Lets the keeper look whenever a layer's experts are about to be wanted: a step of a long prompt
// takes seconds, a layer of it a fraction of one.
class WatchedBackend final : public experts::ExpertBackend {
 public:
  // Borrows the keeper.
  WatchedBackend(std::unique_ptr<experts::ExpertBackend> backend, CacheKeeper& keeper)
      : backend_(std::move(backend)), keeper_(keeper) {}

  Status Begin(const experts::RoutedRows& rows) override {
    SMOE_TRY(keeper_.Look());
    return backend_->Begin(rows);
  }
  Status Run(const experts::RoutedRows& rows, std::vector<experts::RowFailure>* failures) override {
    return backend_->Run(rows, failures);
  }
  bool WantsLikely(size_t row_count) const override { return backend_->WantsLikely(row_count); }
  void ForgetActivations() override { backend_->ForgetActivations(); }
  bool WantsFirst(size_t row_count) const override { return backend_->WantsFirst(row_count); }
  void Foresee(uint32_t layer_index, std::span<const uint32_t> likely_ids,
               size_t row_count) override {
    backend_->Foresee(layer_index, likely_ids, row_count);
  }
  void Poll() override { backend_->Poll(); }
  experts::CacheStats stats() const override { return backend_->stats(); }
  uint64_t compute_ns() const override { return backend_->compute_ns(); }

 private:
  const std::unique_ptr<experts::ExpertBackend> backend_;
  CacheKeeper& keeper_;
};

}  // namespace smoe::engine
