#include "engine/memory_guard.h"

#include <gtest/gtest.h>

namespace smoe::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSecond = 1'000'000'000;

// A machine whose clock and counters the test moves.
class MemoryGuardTest : public testing::Test {
 protected:
  uint32_t After(double seconds, double stall_share = 0, double faults_per_second = 0) {
    sample_.time_ns += static_cast<uint64_t>(seconds * 1e9);
    sample_.stall_us += static_cast<uint64_t>(seconds * stall_share * 1e6);
    sample_.major_fault_count += static_cast<uint64_t>(seconds * faults_per_second);
    return guard_.Decide(sample_, unfilled_bytes_);
  }
  uint64_t unfilled_bytes_ = 0;

  MemoryGuard guard_{
      {.slot_count = 320, .slot_count_min = 9, .slot_bytes = kMiB, .floor_bytes = 16 * kMiB}};
  PressureSample sample_ = {.time_ns = 5 * kSecond,
                            .stall_us = 1'000'000'000,
                            .stall_is_own = true,
                            .major_fault_count = 50'000,
                            .refault_count = 0,
                            .free_bytes = 500 * kMiB};
};

TEST_F(MemoryGuardTest, CalmAndTheHistoryOfTheMachineChangeNothing) {
  EXPECT_EQ(After(0), 320u);  // counters stand high from before
  for (int i = 0; i < 100; ++i) EXPECT_EQ(After(0.25, 0.05, 100), 320u);
  EXPECT_EQ(guard_.stats().shrink_count + guard_.stats().grow_count, 0u);
}

TEST_F(MemoryGuardTest, StallsTakeAnEighthAndWaitForTheEffect) {
  After(0);
  EXPECT_EQ(After(0.25, 0.2), 280u);  // 320 - 40
  EXPECT_EQ(guard_.reason(), "memory stalls 20 % of the time");
  EXPECT_EQ(After(0.25, 0.2), 280u);
  EXPECT_EQ(After(0.5, 0.2), 280u);
  EXPECT_EQ(After(0.25, 0.2), 245u);  // 280 - 35, one second later
  EXPECT_EQ(guard_.stats().shrink_count, 2u);
}

TEST_F(MemoryGuardTest, FaultsCountToo) {
  After(0);
  EXPECT_EQ(After(0.5, 0, 400), 280u);
  EXPECT_EQ(guard_.reason(), "400 pages a second read back");
}

TEST_F(MemoryGuardTest, FaultsThatDoNotLastAreNoShortness) {
  After(0);
  EXPECT_EQ(After(0.1, 0, 5800), 320u) << "the program's own code, once";
  EXPECT_EQ(After(0.1), 320u);
  EXPECT_EQ(After(0.1, 0, 300), 320u);
  EXPECT_EQ(After(0.1, 0, 300), 320u);
  EXPECT_EQ(After(0.125, 0, 300), 280u) << "for three tenths of a second";
}

TEST_F(MemoryGuardTest, LittleFreeMemoryTakesWhatIsLacking) {
  After(0);
  sample_.free_bytes = 15 * kMiB;
  EXPECT_EQ(After(0.25), 280u);  // 17 MiB lack for twice the floor: an eighth is more
  sample_.free_bytes = 0;
  for (int i = 0; i < 100; ++i) After(1);
  EXPECT_EQ(guard_.stats().slot_count, 9u) << "the least";
}

// 320 MiB of slots, 250 MiB free, nothing filled: 70 and twice the floor lack.
TEST_F(MemoryGuardTest, ACacheThatWouldNotFitIsCutBeforeItIsFilled) {
  sample_.free_bytes = 250 * kMiB;
  unfilled_bytes_ = 320 * kMiB;
  EXPECT_EQ(After(0), 320u - 70 - 32) << "at the first look";
  EXPECT_EQ(guard_.reason(), "250.0 MiB free, 320.0 MiB to be filled yet");
  unfilled_bytes_ = 218 * kMiB;
  EXPECT_EQ(After(0.1), 218u);
  // Filling it changes nothing: what is free becomes less as what is to be filled does.
  for (; unfilled_bytes_ > 0; unfilled_bytes_ -= 2 * kMiB, sample_.free_bytes -= 2 * kMiB) {
    EXPECT_EQ(After(0.1), 218u);
  }
}

TEST_F(MemoryGuardTest, SeesThatOthersTakeMemoryBeforeItIsGone) {
  sample_.free_bytes = 120 * kMiB;
  After(0);
  sample_.free_bytes = 65 * kMiB;
  EXPECT_EQ(After(0.1), 320u - 22) << "10 are foreseen: 22 lack to twice the floor";
  EXPECT_EQ(guard_.reason(), "65.0 MiB free, 55.0 MiB less since the last look");
  sample_.free_bytes = 32 * kMiB;  // 55 more were taken, 22 given
  EXPECT_EQ(After(0.1), 298u - 38) << "an eighth at most";
}

TEST_F(MemoryGuardTest, NothingWaitsWhereMemoryIsGone) {
  After(0);
  sample_.free_bytes = 2 * kMiB;
  ASSERT_EQ(After(0.1), 280u);
  sample_.free_bytes = 4 * kMiB;
  EXPECT_EQ(After(0.1), 280u - 35) << "not a second later";
}

TEST_F(MemoryGuardTest, RefaultsCountWhereMemoryIsNearItsEnd) {
  After(0);
  sample_.refault_count += 1000;
  EXPECT_EQ(After(1), 320u) << "500 MiB free: other files, other readers";
  sample_.free_bytes = 255 * kMiB;  // sixteen floors are 256
  After(1);
  sample_.refault_count += 300;
  EXPECT_EQ(After(1), 280u);
  EXPECT_EQ(guard_.reason(), "300 pages a second lost and wanted again");
}

TEST(MemoryGuard, ExpertsThatPassThroughThePageCacheRefaultAsTheyShould) {
  MemoryGuard guard(
      {.slot_count = 320, .slot_bytes = kMiB, .floor_bytes = 16 * kMiB, .reads_page_cache = true});
  guard.Decide({.time_ns = kSecond, .free_bytes = 100 * kMiB});
  EXPECT_EQ(guard.Decide({.time_ns = 2 * kSecond, .refault_count = 9000, .free_bytes = 100 * kMiB}),
            320u);
}

TEST_F(MemoryGuardTest, TheSystemsStallCountsOnlyWhereMemoryIsNearItsEnd) {
  sample_.stall_is_own = false;
  After(0);
  EXPECT_EQ(After(1, 0.5), 320u);
  sample_.free_bytes = 255 * kMiB;
  After(1);
  EXPECT_EQ(After(1, 0.5), 280u);
}

TEST_F(MemoryGuardTest, SlowTokensMakeWeakSignsEnough) {
  After(0);
  EXPECT_EQ(After(1, 0.04), 320u);
  for (int i = 0; i < 100; ++i) guard_.NoteToken(10'000'000);
  EXPECT_EQ(After(1, 0.04), 320u);
  for (int i = 0; i < 12; ++i) guard_.NoteToken(30'000'000);
  EXPECT_EQ(After(1, 0.001), 320u) << "slow, and no sign of memory";
  EXPECT_EQ(After(1, 0.04), 280u);
  EXPECT_EQ(guard_.reason().find("memory stalls 4 % of the time, tokens take 2."), 0u);
}

TEST_F(MemoryGuardTest, WhatIsAllowedIsKeptAndGrowthEndsThere) {
  After(0);
  guard_.Allow(300);
  EXPECT_EQ(After(0.25), 300u);
  EXPECT_EQ(After(1, 0.5), 262u);  // 300 - 38
  for (int i = 0; i < 60; ++i) After(1);
  EXPECT_EQ(guard_.stats().slot_count, 300u);
}

TEST_F(MemoryGuardTest, MoreThatIsAllowedComesAtOnceUnlessMemoryWasShort) {
  After(0);
  guard_.Allow(300);
  guard_.Allow(310);
  EXPECT_EQ(After(0.25), 310u);
  EXPECT_EQ(After(1, 0.5), 271u);  // 310 - 39
  guard_.Allow(320);
  EXPECT_EQ(After(1), 271u);
  EXPECT_EQ(guard_.stats().slot_count_min, 271u);
  for (int i = 0; i < 60; ++i) After(1);
  EXPECT_EQ(guard_.stats().slot_count, 320u);
}

// A prompt may take more slots than the guard did, and give them back.
TEST_F(MemoryGuardTest, ShortnessIsRememberedWhereLessIsAllowedMeanwhile) {
  After(0);
  EXPECT_EQ(After(1, 0.5), 280u);
  guard_.Allow(200);
  EXPECT_EQ(After(0.25), 200u);
  guard_.Allow(320);
  EXPECT_EQ(After(0.25), 200u);
  for (int i = 0; i < 60; ++i) After(1);
  EXPECT_EQ(guard_.stats().slot_count, 320u) << "ten each two seconds, behind a calm time";
  guard_.Allow(200);
  guard_.Allow(320);
  EXPECT_EQ(After(0.25), 320u) << "long calm";
}

TEST_F(MemoryGuardTest, TheReasonIsThatOfTheLastChange) {
  After(0);
  EXPECT_EQ(After(0.5, 0, 400), 280u);
  EXPECT_EQ(After(0.25, 0.2), 280u) << "the effect is waited for";
  EXPECT_EQ(guard_.reason(), "400 pages a second read back");
}

TEST_F(MemoryGuardTest, GrowsBackSlowlyAfterACalmTimeAndNeverBeyondTheFirstSize) {
  After(0);
  ASSERT_EQ(After(1, 0.5), 280u);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(After(1), 280u);
  EXPECT_EQ(After(1), 290u);  // ten calm seconds; 320 / 32
  EXPECT_EQ(After(1), 290u);
  EXPECT_EQ(After(1), 300u);
  for (int i = 0; i < 20; ++i) After(1);
  EXPECT_EQ(guard_.stats().slot_count, 320u);
  EXPECT_EQ(guard_.stats().grow_count, 4u);
}

TEST_F(MemoryGuardTest, DoesNotGrowIntoMemoryThatIsNotFree) {
  After(0);
  ASSERT_EQ(After(1, 0.5), 280u);
  sample_.free_bytes = 41 * kMiB;  // ten slots and twice the floor are 42
  EXPECT_EQ(After(100), 280u);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(After(1), 280u);
  sample_.free_bytes = 42 * kMiB;
  EXPECT_EQ(After(1), 290u);
}

TEST_F(MemoryGuardTest, ARelapseAfterGrowingDoublesTheCalmTime) {
  After(0);
  ASSERT_EQ(After(1, 0.5), 280u);
  for (int i = 0; i < 10; ++i) After(1);
  ASSERT_EQ(guard_.stats().slot_count, 290u);
  ASSERT_EQ(After(1, 0.5), 253u);  // 290 - 37
  for (int i = 0; i < 19; ++i) EXPECT_EQ(After(1), 253u);
  EXPECT_EQ(After(1), 263u);
}

TEST_F(MemoryGuardTest, CountersThatFallAreNoPressure) {
  After(0);
  sample_.stall_us = 0;
  sample_.major_fault_count = 0;
  EXPECT_EQ(After(1), 320u);
}

}  // namespace
}  // namespace smoe::engine
