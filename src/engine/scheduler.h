// engine/scheduler.h: which rows of which request go into the next step.
//
// Requests in decode come first, one row each: they are what people watch. The rows that are left
// go to prompts in order of submission, a chunk each. The choice never changes a result, only when
// it comes (model/model.h: a row's numbers depend on its own sequence alone).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace smoe::engine {

// How far a request is: tokens known (prompt and generated) and tokens through the model.
struct Progress {
  size_t known_count = 0;
  size_t computed_count = 0;  // below known_count while the request runs
};

// Rows [first, first + count) of one request.
struct Turn {
  size_t request_index = 0;
  size_t first = 0;
  size_t count = 0;
  bool is_last = false;  // reaches the newest known token: its logits give the next one
};

struct StepLimits {
  size_t row_count_max = 1;  // of the whole step
  size_t chunk_tokens = 1;   // of one request
};

// Replaces `turns`. At most one turn for a request, in the order of `requests`.
// Cost: no allocation once `turns` has room for all requests.
void PlanStep(std::span<const Progress> requests, const StepLimits& limits,
              std::vector<Turn>* turns);

}  // namespace smoe::engine
