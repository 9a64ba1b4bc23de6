// engine/warm_start.h: a run begins where the last one of the same model ended.
//
// At the start the last run's worths (engine/hot_set.h), halved, are taken up by the cache's
// policy, so that a long prompt does not throw out what its answer will need; and the experts that
// they name, as many as the cache has room for, are read while the drive is idle
// (ExpertCache::ReadWhenIdle). Those of less than kReadWorthMin are not: a read takes some of the
// computing thread's time too, more than a chance of one in a hundred is worth (docs/streaming.md).
// At the end, and every kKeepNs, the worths are written again: so what no run uses loses half its
// worth with each.
//
// No result depends on any of it.
#pragma once

#include <cstdint>
#include <string>

#include "base/stopwatch.h"
#include "experts/expert_cache.h"
#include "store/expert_store.h"

namespace smoe::engine {

class WarmStart {
 public:
  static constexpr double kKeptShare = 0.5;          // of a worth, from one run to the next
  static constexpr double kReadWorthMin = 1.0 / 64;  // wanted once in so many tokens
  static constexpr uint64_t kKeepNs = 180'000'000'000;

  // Borrows both. Begins at once. `path`: of the hot set; a file that cannot be used is a warning
  // in the log, and replaced later.
  WarmStart(experts::ExpertCache& cache, const store::ExpertStore& store, std::string path);
  // Keeps what is known now.
  ~WarmStart();
  WarmStart(const WarmStart&) = delete;
  WarmStart& operator=(const WarmStart&) = delete;

  // "warm start: 614 experts of PATH are read while the drive is idle"
  const std::string& sentence() const { return sentence_; }

  // Between steps: writes the file if kKeepNs have passed. Cost: a look at the clock.
  void Look();
  // Writes the file, if any expert was wanted since the last time. What goes wrong is a line in the
  // log, once.
  void Keep();

 private:
  void Begin();

  experts::ExpertCache& cache_;
  const store::ExpertStore& store_;
  const std::string path_;
  std::string sentence_;
  Stopwatch since_kept_;
  uint64_t kept_wanted_count_ = 0;
  bool has_complained_ = false;
};

}  // namespace smoe::engine
