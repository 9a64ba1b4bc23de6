#include "engine/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace smoe::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr char kCgroup[] = "limited to 800 MiB by cgroup /a";

BudgetDemand SmallModel() {
  BudgetDemand demand;
  demand.trunk_bytes = 100 * kMiB;
  demand.kv_bytes_per_token = 1024;
  demand.slot_bytes = kMiB;
  demand.expert_count = 2048;
  demand.layer_count = 16;
  demand.top_k = 8;
  demand.max_positions = 4096;
  return demand;
}

Result<Budget> Divide(const BudgetDemand& demand, uint64_t free_bytes,
                      const std::string& reason = kCgroup) {
  return DivideMemory(demand, LimitOf({}, {free_bytes, reason}, 0));
}

Result<Budget> DivideAsked(const BudgetDemand& demand, uint64_t bytes) {
  return DivideMemory(demand, LimitOf(bytes, {}, 20 * kMiB));
}

TEST(DivideMemory, KeepsAllExpertsWhereTheyFit) {
  const auto budget = Divide(SmallModel(), 4096 * kMiB);
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->slot_count, 2048u);
  EXPECT_EQ(budget->context_tokens, 4096u);
  EXPECT_EQ(budget->chunk_tokens, kChunkTokensDefault);
  EXPECT_FALSE(budget->drops_page_cache);
}

TEST(DivideMemory, GivesTheCacheWhatIsLeft) {
  // 800 - 64 program - 100 trunk - 4 keys and values; a 256th of 104 + slots for page tables.
  const auto budget = Divide(SmallModel(), 800 * kMiB);
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->slot_count, 629u);
  EXPECT_TRUE(budget->drops_page_cache);
  // And 512 for the others, where the machine's own memory is the limit.
  EXPECT_EQ(Divide(SmallModel(), 800 * kMiB, "MemAvailable")->slot_count, 119u);
  EXPECT_EQ(DivideAsked(SmallModel(), 800 * kMiB)->slot_count, 629u);
  BudgetDemand buffered = SmallModel();
  buffered.reads_page_cache = true;
  EXPECT_EQ(Divide(buffered, 800 * kMiB)->slot_count, 565u);  // 64 less, and their tables
}

TEST(DivideMemory, LeavesTheEmbeddingOnTheDriveWhereNotAllExpertsFitBesideIt) {
  BudgetDemand demand = SmallModel();
  demand.embedding_bytes = 50 * kMiB;  // of the trunk's 100
  const auto roomy = Divide(demand, 4096 * kMiB);
  ASSERT_TRUE(roomy);
  EXPECT_FALSE(roomy->leaves_embedding);
  // 800 - 64 program - 50 - 4 keys and values; a 256th of 54 + slots for page tables.
  const auto tight = Divide(demand, 800 * kMiB);
  ASSERT_TRUE(tight);
  EXPECT_TRUE(tight->leaves_embedding);
  EXPECT_EQ(tight->slot_count, 679u);
  EXPECT_THAT(tight->Table(), testing::HasSubstr("50.0 MiB  the embedding stays on the drive"));
  EXPECT_THAT(roomy->Table(), testing::Not(testing::HasSubstr("embedding")));
  // A cache that was asked for leaves room for the embedding, or it does not.
  demand.cache_experts = 100;
  EXPECT_FALSE(Divide(demand, 800 * kMiB)->leaves_embedding);
  demand.cache_experts = 650;
  EXPECT_TRUE(Divide(demand, 800 * kMiB)->leaves_embedding);
}

TEST(SlotsBeside, LendsTheCacheWhatNothingHasTouchedYet) {
  BudgetDemand demand = SmallModel();
  demand.chunk_tokens = 256;
  demand.scratch_bytes = [](size_t chunk) { return chunk * 1024 * 1024; };
  demand.touched_bytes = [](size_t rows, size_t) { return rows * 1024 * 1024; };
  const auto budget = Divide(demand, 800 * kMiB);
  ASSERT_TRUE(budget);
  // Slots of 1 MiB and a 256th; 4096 tokens of 1 KiB.
  const uint32_t slots = budget->slot_count;
  EXPECT_EQ(slots, 373u);  // 800 - 64 - 256 - 100 - 4, and a 256th of the rest for tables
  EXPECT_EQ(SlotsBeside(demand, *budget, 256, 4096), slots);
  EXPECT_EQ(SlotsBeside(demand, *budget, 1000, 100000), slots);
  EXPECT_EQ(SlotsBeside(demand, *budget, 56, 4096), slots + 199);
  EXPECT_EQ(SlotsBeside(demand, *budget, 256, 1024), slots + 2);
  EXPECT_EQ(budget->slot_count_max, SlotsBeside(demand, *budget, 1, 1));
  // Never more than there are experts, and nothing where the cache was asked for.
  demand.expert_count = slots + 10;
  EXPECT_EQ(SlotsBeside(demand, *budget, 1, 1), slots + 10);
  demand.cache_experts = slots;
  EXPECT_EQ(SlotsBeside(demand, *budget, 1, 1), slots);
}

TEST(SlotsBesideHeld, CountsWhatIsHeldAndLeavesASixtyFourth) {
  const BudgetDemand demand = SmallModel();
  const auto budget = DivideAsked(demand, 800 * kMiB);
  ASSERT_TRUE(budget);
  // 800 - 12.5 - 75 in slots of 1 MiB and a 256th.
  EXPECT_EQ(SlotsBesideHeld(demand, *budget, 75 * kMiB), 709u);
  EXPECT_EQ(SlotsBesideHeld(demand, *budget, 900 * kMiB), 0u);
  EXPECT_EQ(SlotsBesideHeld(demand, *budget, 0), 784u);
  BudgetDemand few = demand;
  few.expert_count = 700;
  EXPECT_EQ(SlotsBesideHeld(few, *budget, 0), 700u) << "as many as there are";
  // 300 - 12 - 75: a 64th would be less than the huge pages that are touched next.
  const auto small = DivideAsked(demand, 300 * kMiB);
  ASSERT_TRUE(small);
  EXPECT_EQ(SlotsBesideHeld(demand, *small, 75 * kMiB), 212u);
  // What is free at the start says nothing of what the process may hold.
  EXPECT_EQ(SlotsBesideHeld(demand, *Divide(demand, 800 * kMiB), 75 * kMiB), 0u);
  BudgetDemand asked = demand;
  asked.cache_experts = 20;
  EXPECT_EQ(SlotsBesideHeld(asked, *budget, 75 * kMiB), 0u);
}

TEST(DivideMemory, CountsALargeProgramOnceHoweverTheLimitIsMeant) {
  // 200 held: 300 in all. Asked, that is part of the 1000; free memory is beside what is held.
  const auto asked = DivideMemory(SmallModel(), LimitOf(1000 * kMiB, {}, 200 * kMiB));
  const auto free = DivideMemory(SmallModel(), LimitOf({}, {1000 * kMiB, kCgroup}, 200 * kMiB));
  ASSERT_TRUE(asked && free);
  EXPECT_EQ(asked->lines[0].bytes, 300 * kMiB);
  EXPECT_EQ(free->lines[0].bytes, 100 * kMiB);
}

TEST(DivideMemory, NeverTakesMoreThanThereIsNorLeavesRoomForAnExpert) {
  BudgetDemand demand = SmallModel();
  demand.scratch_bytes = [](size_t chunk) { return chunk * 100 * 1024; };
  for (uint64_t size = 200; size < 2500; size += 37) {
    const auto budget = DivideAsked(demand, size * kMiB);
    ASSERT_TRUE(budget) << size;
    EXPECT_LE(budget->used_bytes(), size * kMiB);
    if (budget->slot_count == demand.expert_count) continue;
    EXPECT_GT(budget->used_bytes() + kMiB + kMiB / kPageTableDivisor + 1, size * kMiB);
  }
}

TEST(DivideMemory, NeverChoosesAContextBeyondTheModelNorBelowTheLeast) {
  BudgetDemand demand = SmallModel();
  demand.max_positions = 128;
  EXPECT_EQ(Divide(demand, 4096 * kMiB)->context_tokens, 128u);
  // An eighth of 800 MiB holds 100 tokens of 1 MiB each.
  demand.max_positions = 4096;
  demand.kv_bytes_per_token = kMiB;
  demand.cache_experts = 9;
  EXPECT_EQ(Divide(demand, 800 * kMiB)->context_tokens, kContextTokensMin);
  demand.max_positions = 0;
  EXPECT_EQ(Divide(demand, 8000 * kMiB)->context_tokens, 1000u);
}

TEST(DivideMemory, AContextBeyondTheModelsPositionsIsRefusedByBothNumbers) {
  BudgetDemand demand = SmallModel();
  demand.max_positions = 4096;
  demand.context_tokens = 4096;
  EXPECT_TRUE(DivideAsked(demand, 4000 * kMiB));
  demand.context_tokens = 4097;
  const auto refused = DivideAsked(demand, 4000 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(refused.error().message().find("4097 tokens asked, the model was made for 4096"),
            std::string::npos)
      << refused.error().message();
  demand.request_count = 2;
  demand.context_tokens = 8192;
  const auto both = DivideAsked(demand, 4000 * kMiB);
  ASSERT_TRUE(both) << "both may use all positions";
  EXPECT_EQ(both->request_tokens, 4096u);
}

TEST(DivideMemory, ALongContextDoesNotDriveExpertsOutUnasked) {
  BudgetDemand demand = SmallModel();
  demand.max_positions = 40'000;
  demand.kv_bytes_per_token = 16 * 1024;
  EXPECT_EQ(Divide(demand, 4000 * kMiB)->context_tokens, 32'000u);  // an eighth: 500 MiB
  EXPECT_EQ(Divide(demand, 1500 * kMiB)->context_tokens, kContextTokensTight);
  demand.context_tokens = 20'000;
  EXPECT_EQ(Divide(demand, 1500 * kMiB)->context_tokens, 20'000u);
}

// One chunk for 1024 tokens reads the experts once; rows of 4 MiB leave no room for that.
TEST(DivideMemory, TakesTheChunkThatPays) {
  BudgetDemand demand = SmallModel();
  demand.scratch_bytes = [](size_t chunk) { return chunk * 100 * 1024; };
  EXPECT_EQ(Divide(demand, 800 * kMiB)->chunk_tokens, 1024u);
  demand.scratch_bytes = [](size_t chunk) { return chunk * 4 * kMiB; };
  EXPECT_EQ(Divide(demand, 800 * kMiB)->chunk_tokens, 128u);
  demand.chunk_tokens = 77;
  EXPECT_EQ(Divide(demand, 800 * kMiB)->chunk_tokens, 77u);
}

// A limit below the fixed part of the model is refused with the size that works, to the MiB.
TEST(DivideMemory, NamesTheSmallestSizeThatWorksAndThatSizeWorks) {
  for (const uint64_t row_bytes : {uint64_t{0}, uint64_t{77'777}, 3 * kMiB}) {
    BudgetDemand demand = SmallModel();
    demand.scratch_bytes = [row_bytes](size_t chunk) { return chunk * row_bytes; };
    const auto refused = DivideAsked(demand, 100 * kMiB);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
    const std::string& message = refused.error().message();
    constexpr char kBefore[] = "the smallest that works is ";
    const size_t at = message.find(kBefore);
    ASSERT_NE(at, std::string::npos) << message;
    const uint64_t size = std::stoull(message.substr(at + sizeof(kBefore) - 1));
    const auto least = DivideAsked(demand, size * kMiB);
    ASSERT_TRUE(least) << size << ": " << least.error().message();
    EXPECT_GE(least->slot_count, 9u);
    EXPECT_LE(least->used_bytes(), size * kMiB);
    EXPECT_FALSE(DivideAsked(demand, (size - 1) * kMiB)) << size;
    if (row_bytes == 0) {
      EXPECT_EQ(size, 174u);  // 64 + 100 + 1/2 + 9, tables
    }
  }
}

TEST(DivideMemory, TheSmallestSizeThatWorksLeavesTheEmbeddingOnTheDrive) {
  BudgetDemand demand = SmallModel();
  demand.embedding_bytes = 50 * kMiB;
  const auto refused = DivideAsked(demand, 100 * kMiB);
  ASSERT_FALSE(refused);
  // 64 + 50 + 1/2 + 9, tables: 50 less than with all of the trunk.
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("the smallest that works is 124MiB"));
  EXPECT_FALSE(DivideAsked(demand, 123 * kMiB));
  const auto least = DivideAsked(demand, 124 * kMiB);
  ASSERT_TRUE(least) << least.error().message();
  EXPECT_TRUE(least->leaves_embedding);
}

TEST(DivideMemory, WhatWasAskedForIsNamedAmongTheRemedies) {
  BudgetDemand demand = SmallModel();
  demand.scratch_bytes = [](size_t chunk) { return chunk * kMiB; };
  EXPECT_THAT(DivideAsked(demand, 100 * kMiB).error().message(),
              testing::Not(testing::HasSubstr("--chunk")));
  demand.chunk_tokens = 4294967295;
  EXPECT_THAT(DivideAsked(demand, 4096 * kMiB).error().message(),
              testing::HasSubstr("lower --chunk"));
}

TEST(DivideMemory, TakesTheUsersWordAndRefusesHalfAnExpert) {
  BudgetDemand demand = SmallModel();
  demand.cache_bytes = 5 * kMiB + 17;
  EXPECT_EQ(Divide(demand, 4096 * kMiB)->slot_count, 5u);
  EXPECT_EQ(Divide(demand, 4096 * kMiB)->slot_count_min, 5u);
  demand.cache_bytes = kMiB - 1;
  EXPECT_EQ(Divide(demand, 4096 * kMiB).error().code(), ErrorCode::kInvalid);
  demand.cache_experts = 3;
  EXPECT_FALSE(Divide(demand, 4096 * kMiB)) << "both options at once";
  demand.cache_bytes.reset();
  EXPECT_EQ(Divide(demand, 4096 * kMiB)->slot_count, 3u);
  demand.cache_experts = 100000;
  EXPECT_EQ(Divide(demand, 4096 * kMiB)->slot_count, 2048u);
}

TEST(DivideMemory, WarnsOfACacheThatDoesNotFit) {
  BudgetDemand demand = SmallModel();
  demand.cache_experts = 400;
  const auto fits = Divide(demand, 4096 * kMiB);
  ASSERT_TRUE(fits);
  EXPECT_TRUE(fits->warnings.empty());
  const auto tight = Divide(demand, 300 * kMiB);
  ASSERT_TRUE(tight);
  EXPECT_EQ(tight->slot_count, 400u);
  ASSERT_EQ(tight->warnings.size(), 1u);
  EXPECT_NE(tight->warnings[0].find("400.0 MiB asked"), std::string::npos) << tight->warnings[0];
}

TEST(DivideMemory, TakesTheLargestContextThatCanBeAddressedAndNoTokenMore) {
  BudgetDemand demand = SmallModel();
  demand.cache_experts = 9;
  demand.max_positions = 0;
  demand.context_tokens = kKvBytesMax / 1024;
  EXPECT_TRUE(Divide(demand, 4096 * kMiB));
  for (const size_t tokens : {kKvBytesMax / 1024 + 1, SIZE_MAX}) {
    demand.context_tokens = tokens;
    const auto budget = Divide(demand, 4096 * kMiB);
    ASSERT_FALSE(budget) << tokens;
    EXPECT_EQ(budget.error().code(), ErrorCode::kExhausted);
    EXPECT_NE(budget.error().message().find("at most 137438953472"), std::string::npos)
        << budget.error().message();
  }
}

TEST(DivideMemory, TableNamesEveryPartAndTheSum) {
  const std::string table = Divide(SmallModel(), 800 * kMiB)->Table();
  for (const char* word : {"program", "trunk", "keys and values", "activations", "page cache",
                           "expert cache", "629 of 2048 experts", "sum", kCgroup}) {
    EXPECT_NE(table.find(word), std::string::npos) << word << " in\n" << table;
  }
}

}  // namespace
}  // namespace smoe::engine
