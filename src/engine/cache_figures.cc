#include "engine/cache_figures.h"

namespace smoe::engine {

namespace {

double ShareOfWanted(uint64_t count, const experts::CacheStats& stats, double of_none) {
  const uint64_t wanted = stats.wanted_count();
  return wanted == 0 ? of_none : static_cast<double>(count) / static_cast<double>(wanted);
}

}  // namespace

experts::CacheStats CacheSince(const experts::CacheStats& before,
                               const experts::CacheStats& after) {
  return {.hit_count = after.hit_count - before.hit_count,
          .miss_count = after.miss_count - before.miss_count,
          .failed_count = after.failed_count - before.failed_count,
          .reread_count = after.reread_count - before.reread_count,
          .read_bytes = after.read_bytes - before.read_bytes,
          .wait_ns = after.wait_ns - before.wait_ns,
          .prefetch_count = after.prefetch_count - before.prefetch_count,
          .prefetch_hit_count = after.prefetch_hit_count - before.prefetch_hit_count,
          .prefetch_used_count = after.prefetch_used_count - before.prefetch_used_count,
          .prefetch_wasted_count = after.prefetch_wasted_count - before.prefetch_wasted_count,
          .idle_count = after.idle_count - before.idle_count,
          .idle_used_count = after.idle_used_count - before.idle_used_count,
          .idle_wasted_count = after.idle_wasted_count - before.idle_wasted_count,
          .gauge_miss_count = after.gauge_miss_count - before.gauge_miss_count,
          .gauge_saved_bytes = after.gauge_saved_bytes - before.gauge_saved_bytes};
}

double Over(double value, double by) { return by > 0 ? value / by : 0; }

double HitShare(const experts::CacheStats& stats) {
  return ShareOfWanted(stats.hit_count, stats, 1);
}

double ForeseenShare(const experts::CacheStats& stats) {
  return ShareOfWanted(stats.prefetch_hit_count, stats, 0);
}

}  // namespace smoe::engine
