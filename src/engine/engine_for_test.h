// engine/engine_for_test.h: requests of an engine, run to their ends.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace smoe::engine {

struct Outcome {
  std::vector<uint32_t> tokens;
  std::optional<FinishReason> reason;
  std::string error;
};

// Of all requests that run, by their ids. A step that fails fails the test.
inline std::map<uint64_t, Outcome> Finish(Engine& engine) {
  std::map<uint64_t, Outcome> outcomes;
  while (!engine.idle()) {
    auto events = engine.Step();
    if (!events) {
      ADD_FAILURE() << events.error().message();
      break;
    }
    for (const TokenEvent& event : *events) {
      Outcome& outcome = outcomes[event.request_id];
      if (event.token) outcome.tokens.push_back(*event.token);
      if (event.finished) outcome.reason = *event.finished;
      if (event.error) outcome.error = event.error->message();
    }
  }
  return outcomes;
}

inline Outcome RunAlone(Engine& engine, Request request) {
  const auto id = engine.Submit(std::move(request));
  if (!id) return {{}, {}, id.error().message()};
  return Finish(engine)[*id];
}

}  // namespace smoe::engine
