// cli/generation.h: one answer, token by token, for the commands run and chat.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/console.h"
#include "cli/status_line.h"
#include "engine/engine.h"

namespace smoe::cli {

struct Answer {
  std::vector<uint32_t> tokens;
  engine::FinishReason reason = engine::FinishReason::kStop;
  double first_token_seconds = 0;  // from the request to its first token; without one, to the end
  double decode_seconds = 0;       // from the first token to the end
  engine::EngineStats at_first_token = {};  // the engine's counters when it came
};

// Runs one request to its end. An interrupt (cli/interrupt.h) cancels it. `on_token` gets each
// token as it comes. How far it is stands on stderr: see cli/status_line.h.
// Errors: the request's own error; what on_token returns.
Result<Answer> Generate(engine::Engine& engine, engine::Request request, Console& console,
                        StatusMode status_mode, const std::function<Status(uint32_t)>& on_token);

}  // namespace smoe::cli
