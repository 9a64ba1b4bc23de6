#include "engine/budget.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace smoe::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

BudgetDemand SmallModel() {
  BudgetDemand demand;
  demand.trunk_bytes = 100 * kMiB;
  demand.kv_bytes_per_token = 1024;
  demand.slot_bytes = kMiB;
  demand.expert_count = 512;
  demand.top_k = 8;
  demand.max_positions = 4096;
  return demand;
}

TEST(DivideMemory, KeepsAllExpertsWhereTheyFit) {
  const auto budget = DivideMemory(SmallModel(), {4096 * kMiB, "MemAvailable"});
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->slot_count, 512u);
  EXPECT_EQ(budget->context_tokens, 4096u);
}

TEST(DivideMemory, GivesTheCacheWhatIsLeft) {
  // 800 free - 100 trunk - 4 keys and values - 512 reserve = 184 slots of 1 MiB.
  const auto budget = DivideMemory(SmallModel(), {800 * kMiB, "limited to 800 MiB by cgroup /a"});
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->slot_count, 184u);
}

TEST(DivideMemory, NeverChoosesAContextBeyondTheModelNorBelowTheLeast) {
  BudgetDemand demand = SmallModel();
  demand.max_positions = 128;
  EXPECT_EQ(DivideMemory(demand, {4096 * kMiB, ""})->context_tokens, 128u);
  // An eighth of 800 MiB holds 100 tokens of 1 MiB each.
  demand.max_positions = 4096;
  demand.kv_bytes_per_token = kMiB;
  demand.cache_experts = 9;
  EXPECT_EQ(DivideMemory(demand, {800 * kMiB, ""})->context_tokens, kContextTokensMin);
  demand.max_positions = 0;
  EXPECT_EQ(DivideMemory(demand, {8000 * kMiB, ""})->context_tokens, 1000u);
}

// A limit below the fixed part of the model is refused with the numbers.
TEST(DivideMemory, NamesTheSmallestSizeThatWorks) {
  const auto budget = DivideMemory(SmallModel(), {600 * kMiB, "limited by cgroup /a"});
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().code(), ErrorCode::kExhausted);
  // 100 + 4 + 512 + 9 slots of 1 MiB.
  EXPECT_NE(budget.error().message().find("smallest that works is 625.0 MiB"), std::string::npos)
      << budget.error().message();
}

TEST(DivideMemory, TakesTheUsersWordAndRefusesHalfAnExpert) {
  BudgetDemand demand = SmallModel();
  demand.cache_bytes = 5 * kMiB + 17;
  EXPECT_EQ(DivideMemory(demand, {4096 * kMiB, ""})->slot_count, 5u);
  demand.cache_bytes = kMiB - 1;
  EXPECT_EQ(DivideMemory(demand, {4096 * kMiB, ""}).error().code(), ErrorCode::kInvalid);
  demand.cache_experts = 3;
  EXPECT_FALSE(DivideMemory(demand, {4096 * kMiB, ""})) << "both options at once";
  demand.cache_bytes.reset();
  EXPECT_EQ(DivideMemory(demand, {4096 * kMiB, ""})->slot_count, 3u);
  demand.cache_experts = 100000;
  EXPECT_EQ(DivideMemory(demand, {4096 * kMiB, ""})->slot_count, 512u);
}

TEST(DivideMemory, WarnsOfACacheThatDoesNotFitInWhatIsFree) {
  BudgetDemand demand = SmallModel();
  demand.cache_experts = 400;
  const auto fits = DivideMemory(demand, {4096 * kMiB, ""});
  ASSERT_TRUE(fits);
  EXPECT_TRUE(fits->warnings.empty());
  const auto tight = DivideMemory(demand, {800 * kMiB, "MemAvailable"});
  ASSERT_TRUE(tight);
  EXPECT_EQ(tight->slot_count, 400u);
  ASSERT_EQ(tight->warnings.size(), 1u);
  EXPECT_NE(tight->warnings[0].find("400.0 MiB asked"), std::string::npos) << tight->warnings[0];
}

TEST(DivideMemory, TakesTheLargestContextThatCanBeAddressedAndNoTokenMore) {
  BudgetDemand demand = SmallModel();
  demand.cache_experts = 9;
  demand.context_tokens = kKvBytesMax / 1024;
  EXPECT_TRUE(DivideMemory(demand, {4096 * kMiB, ""}));
  for (const size_t tokens : {kKvBytesMax / 1024 + 1, SIZE_MAX}) {
    demand.context_tokens = tokens;
    const auto budget = DivideMemory(demand, {4096 * kMiB, ""});
    ASSERT_FALSE(budget) << tokens;
    EXPECT_EQ(budget.error().code(), ErrorCode::kExhausted);
    EXPECT_NE(budget.error().message().find("at most 137438953472"), std::string::npos)
        << budget.error().message();
  }
}

}  // namespace
}  // namespace smoe::engine
