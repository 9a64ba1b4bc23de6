// cli/generation.h: one answer, token by token, for the commands run and chat.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cli/console.h"
#include "engine/engine.h"

namespace smoe::cli {

struct Answer {
  std::vector<uint32_t> tokens;
  engine::FinishReason reason = engine::FinishReason::kStop;
  double first_token_seconds = 0;  // from the request to its first token
  double decode_seconds = 0;       // from the first token to the end
};

// Runs one request to its end. An interrupt (cli/interrupt.h) cancels it. `on_token` gets each
// token as it comes. A prompt that takes more than two seconds shows its progress on stderr.
// Errors: the request's own error; what on_token returns.
Result<Answer> Generate(engine::Engine& engine, engine::Request request, Console& console,
                        const std::function<Status(uint32_t)>& on_token);

// What an answer cost, for people (a few lines) and for scripts. `before`: the engine's counters
// when the request began.
std::string StatsText(const engine::EngineStats& before, const engine::EngineStats& after,
                      const Answer& answer);
Json StatsJson(const engine::EngineStats& before, const engine::EngineStats& after,
               const Answer& answer);

}  // namespace smoe::cli
