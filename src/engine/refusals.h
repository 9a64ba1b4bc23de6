// engine/refusals.h: what to say where several amounts of memory were asked and all are too small.
#pragma once

#include <string>

#include "base/result.h"

namespace smoe::engine {

// Rows have a std::optional<Error> `refused`. Errors: kExhausted with the reasons of all, if none
// goes.
template <class Rows>
Status CheckAnyFits(const Rows& rows) {
  std::string reasons;
  for (const auto& row : rows) {
    if (!row.refused) return Ok();
    reasons += (reasons.empty() ? "" : "; ") + row.refused->message();
  }
  return Exhausted("{}", reasons);
}

}  // namespace smoe::engine
