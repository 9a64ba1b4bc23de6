#include "cli/generation.h"

#include <utility>

#include "base/stopwatch.h"
#include "cli/interrupt.h"

namespace smoe::cli {

Result<Answer> Generate(engine::Engine& engine, engine::Request request, Console& console,
                        StatusMode status_mode, const std::function<Status(uint32_t)>& on_token) {
  Answer answer;
  Status delivered = Ok();
  Stopwatch stopwatch;
  StatusLine status(engine, request.prompt.size(), status_mode, console);
  request.is_cancelled = InterruptGuard::Requested;
  SMOE_TRY_ASSIGN(const uint64_t id, engine.Submit(std::move(request)));
  while (!engine.idle()) {
    SMOE_TRY_ASSIGN(const std::span<const engine::TokenEvent> events, engine.Step());
    for (const engine::TokenEvent& event : events) {
      status.Token();
      if (event.token) {
        if (answer.tokens.empty()) {
          answer.first_token_seconds = stopwatch.seconds();
          answer.at_first_token = engine.stats();
          stopwatch = Stopwatch();  // from here on the answer's
        }
        answer.tokens.push_back(*event.token);
        // What is cancelled ends with the next step: not before is the engine free for others.
        if (delivered) delivered = on_token(*event.token);
        if (!delivered) engine.Cancel(id);
      }
      if (event.error) return Unexpected(*event.error);
      if (event.finished) answer.reason = *event.finished;
    }
  }
  SMOE_TRY(std::move(delivered));
  (answer.tokens.empty() ? answer.first_token_seconds : answer.decode_seconds) =
      stopwatch.seconds();
  return answer;
}

}  // namespace smoe::cli
