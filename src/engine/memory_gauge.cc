#include "engine/memory_gauge.h"

#include <algorithm>

#include "base/memory_limits.h"

namespace smoe::engine {

uint64_t GaugeSavedBytesPerToken(const EngineStats& before, const EngineStats& after,
                                 uint64_t token_count) {
  if (token_count == 0) return 0;
  const uint64_t saved = after.cache.gauge_saved_bytes;
  return (saved - std::min(saved, before.cache.gauge_saved_bytes)) / token_count;
}

std::string MemoryGaugeText(const EngineSetup& setup, const EngineStats& before,
                            const EngineStats& after, uint64_t token_count) {
  if (setup.is_resident()) return "all experts fit in memory";
  return fmt::format("with {} more: {} a token fewer", SizeText(experts::ExpertCache::kGaugeBytes),
                     SizeText(GaugeSavedBytesPerToken(before, after, token_count)));
}

}  // namespace smoe::engine
