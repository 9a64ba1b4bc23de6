#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <vector>

namespace smoe::engine {
namespace {

std::vector<Turn> Plan(const std::vector<Progress>& requests, const StepLimits& limits) {
  std::vector<Turn> turns;
  PlanStep(requests, limits, &turns);
  return turns;
}

TEST(PlanStep, CutsAPromptIntoChunks) {
  const auto turns = Plan({{10, 4}}, {.row_count_max = 100, .chunk_tokens = 4});
  ASSERT_EQ(turns.size(), 1u);
  EXPECT_EQ(turns[0].first, 4u);
  EXPECT_EQ(turns[0].count, 4u);
  EXPECT_FALSE(turns[0].is_last);
  EXPECT_TRUE(Plan({{10, 8}}, {.row_count_max = 100, .chunk_tokens = 4})[0].is_last);
}

TEST(PlanStep, ServesDecodeBeforePromptsSubmittedEarlier) {
  // Request 0 has a long prompt, request 1 generates: with 3 rows, 1 gets its row.
  const auto turns = Plan({{100, 0}, {6, 5}}, {.row_count_max = 3, .chunk_tokens = 64});
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].count, 2u);
  EXPECT_EQ(turns[1].request_index, 1u);
  EXPECT_EQ(turns[1].count, 1u);
}

TEST(PlanStep, NeverPlansMoreRowsThanTheStepHolds) {
  const std::vector<Progress> requests = {{9, 0}, {1, 0}, {5, 4}, {7, 6}, {30, 3}};
  for (size_t rows = 1; rows < 60; ++rows) {
    for (size_t chunk : {1u, 7u, 64u}) {
      size_t total = 0;
      for (const Turn& turn : Plan(requests, {rows, chunk})) {
        total += turn.count;
        EXPECT_LE(turn.count, chunk);
        EXPECT_GT(turn.count, 0u);
      }
      EXPECT_LE(total, rows);
      EXPECT_GT(total, 0u);
    }
  }
}

}  // namespace
}  // namespace smoe::engine
