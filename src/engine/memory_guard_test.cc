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
    return guard_.Decide(sample_);
  }

  MemoryGuard guard_{
      {.slot_count = 320, .slot_count_min = 9, .slot_bytes = kMiB, .floor_bytes = 16 * kMiB}};
  PressureSample sample_ = {.time_ns = 5 * kSecond,
                            .stall_us = 1'000'000'000,
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

TEST_F(MemoryGuardTest, LittleFreeMemoryTakesWhatIsLacking) {
  After(0);
  sample_.free_bytes = 15 * kMiB;
  EXPECT_EQ(After(0.25), 280u);  // 17 MiB lack for twice the floor: an eighth is more
  sample_.free_bytes = 0;
  for (int i = 0; i < 100; ++i) After(1);
  EXPECT_EQ(guard_.stats().slot_count, 9u) << "the least";
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
