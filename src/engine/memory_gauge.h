// engine/memory_gauge.h: what one GiB more for the expert cache would save, measured while it runs.
//
// Beside the cache runs a shadow of it with that much more room (experts/shadow_cache.h). So the
// figure is about this run's own experts, and no estimate from the model's size.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace smoe::engine {

// Bytes of reads that each of `token_count` tokens, computed between the two, would have been
// spared. 0 for no tokens.
uint64_t GaugeSavedBytesPerToken(const EngineStats& before, const EngineStats& after,
                                 uint64_t token_count);

// The same for people: "with 1.0 GiB more: 12.3 MiB a token fewer"; "all experts fit in memory"
// where nothing is left to save.
std::string MemoryGaugeText(const EngineSetup& setup, const EngineStats& before,
                            const EngineStats& after, uint64_t token_count);

}  // namespace smoe::engine
