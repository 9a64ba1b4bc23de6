#include "engine/scheduler.h"

#include <algorithm>

namespace smoe::engine {

namespace {

size_t PendingCount(const Progress& progress) {
  return progress.known_count - progress.computed_count;
}

bool InDecode(const Progress& progress) {
  return PendingCount(progress) == 1 && progress.computed_count != 0;
}

}  // namespace

void PlanStep(std::span<const Progress> requests, const StepLimits& limits,
              std::vector<Turn>* turns) {
  turns->clear();
  size_t decode_count = 0;
  for (const Progress& progress : requests) {
    if (InDecode(progress)) ++decode_count;
  }
  size_t decode_rows = std::min(decode_count, limits.row_count_max);
  size_t prompt_rows = limits.row_count_max - decode_rows;

  for (size_t index = 0; index < requests.size(); ++index) {
    const Progress& progress = requests[index];
    const size_t pending = PendingCount(progress);
    size_t& rows_left = InDecode(progress) ? decode_rows : prompt_rows;
    const size_t count = std::min({pending, limits.chunk_tokens, rows_left});
    if (count == 0) continue;
    rows_left -= count;
    turns->push_back({index, progress.computed_count, count, count == pending});
  }
}

}  // namespace smoe::engine
