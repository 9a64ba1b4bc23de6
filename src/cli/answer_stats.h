// cli/answer_stats.h: what an answer cost, for --stats, /stats and --json.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/generation.h"
#include "engine/engine.h"

namespace smoe::cli {

// A few lines for people. `before`: the engine's counters when the request began.
std::string StatsText(const engine::EngineSetup& setup, const engine::EngineStats& before,
                      const engine::EngineStats& after, const Answer& answer);
// The same for scripts; "prefill" and "decode" have the counters of the two phases.
Json StatsJson(const engine::EngineSetup& setup, const engine::EngineStats& before,
               const engine::EngineStats& after, const Answer& answer);

}  // namespace smoe::cli
