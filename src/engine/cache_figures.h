// engine/cache_figures.h: what a cache's counters say about the time between two looks at them.
#pragma once

#include "experts/expert_cache.h"

namespace smoe::engine {

// Every counter's growth.
experts::CacheStats CacheSince(const experts::CacheStats& before, const experts::CacheStats& after);

// Every counter of both.
experts::CacheStats CacheSum(const experts::CacheStats& one, const experts::CacheStats& other);

// Of all experts that passes wanted, 1 if none was: those that were in memory by themselves; and
// those that were there because they had been read ahead.
double HitShare(const experts::CacheStats& stats);
double ForeseenShare(const experts::CacheStats& stats);

// value / by; 0 where `by` is not above 0: nothing happened, or took no time.
double Over(double value, double by);

}  // namespace smoe::engine
