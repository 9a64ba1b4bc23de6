#include "engine/cache_figures.h"

#include <iterator>

namespace smoe::engine {

namespace {

using experts::CacheStats;
using Counter = uint64_t CacheStats::*;

constexpr Counter kCounters[] = {
    &CacheStats::hit_count,           &CacheStats::miss_count,
    &CacheStats::failed_count,        &CacheStats::reread_count,
    &CacheStats::read_bytes,          &CacheStats::wait_ns,
    &CacheStats::prefetch_count,      &CacheStats::prefetch_hit_count,
    &CacheStats::prefetch_used_count, &CacheStats::prefetch_wasted_count,
    &CacheStats::idle_count,          &CacheStats::idle_used_count,
    &CacheStats::idle_wasted_count,   &CacheStats::gauge_miss_count,
    &CacheStats::gauge_saved_bytes};
static_assert(sizeof(CacheStats) == std::size(kCounters) * sizeof(uint64_t),
              "a counter is missing");

double ShareOfWanted(uint64_t count, const experts::CacheStats& stats, double of_none) {
  const uint64_t wanted = stats.wanted_count();
  return wanted == 0 ? of_none : static_cast<double>(count) / static_cast<double>(wanted);
}

}  // namespace

experts::CacheStats CacheSince(const experts::CacheStats& before,
                               const experts::CacheStats& after) {
  experts::CacheStats since;
  for (const Counter counter : kCounters) since.*counter = after.*counter - before.*counter;
  return since;
}

experts::CacheStats CacheSum(const experts::CacheStats& one, const experts::CacheStats& other) {
  experts::CacheStats sum;
  for (const Counter counter : kCounters) sum.*counter = one.*counter + other.*counter;
  return sum;
}

double Over(double value, double by) { return by > 0 ? value / by : 0; }

double HitShare(const experts::CacheStats& stats) {
  return ShareOfWanted(stats.hit_count, stats, 1);
}

double ForeseenShare(const experts::CacheStats& stats) {
  return ShareOfWanted(stats.prefetch_hit_count, stats, 0);
}

}  // namespace smoe::engine
