#include "engine/memory_bench.h"

#include <gtest/gtest.h>

#include "engine/cache_figures.h"

namespace smoe::engine {
namespace {

// 4 tokens in 2 seconds, of which the drive needs 1 and memory a half: half of the bound, which is
// the drive's.
PhaseRun ARun() {
  return {.seconds = 2,
          .token_count = 4,
          .cache = {.hit_count = 70,
                    .miss_count = 20,
                    .read_bytes = 4000,
                    .wait_ns = 500'000'000,
                    .prefetch_hit_count = 10},
          .needed_bytes = 3000,
          .drive_seconds = 1,
          .other_seconds = 0.5};
}

TEST(PhaseFigures, OfOneRunByHand) {
  const PhaseFigures figures{{ARun()}};
  EXPECT_DOUBLE_EQ(figures.TokensPerSecond().median, 2);
  EXPECT_DOUBLE_EQ(figures.BoundTokensPerSecond().median, 4);
  EXPECT_DOUBLE_EQ(figures.Share().median, 0.5);
  EXPECT_DOUBLE_EQ(figures.DriveRate().median, 2000);
  EXPECT_DOUBLE_EQ(figures.HitShare(), 0.7);
  EXPECT_DOUBLE_EQ(figures.ForeseenShare(), 0.1);
  EXPECT_DOUBLE_EQ(figures.WaitShare(), 0.25);
  EXPECT_DOUBLE_EQ(figures.ReadBytesPerToken(), 1000);
  EXPECT_TRUE(figures.IsDriveBound());
}

TEST(PhaseFigures, TheSlowerOfDriveAndTheOtherIsTheBoundOfEachRun) {
  PhaseRun slow = ARun();
  slow.other_seconds = 1.5;
  const PhaseFigures figures{{ARun(), slow, slow}};
  EXPECT_DOUBLE_EQ(figures.Share().min, 0.5);
  EXPECT_DOUBLE_EQ(figures.Share().median, 0.75);
  EXPECT_FALSE(figures.IsDriveBound());
}

TEST(PhaseFigures, OfNothingAreNothing) {
  const PhaseFigures none;
  EXPECT_EQ(none.Share().median, 0);
  EXPECT_EQ(none.ReadBytesPerToken(), 0);
  EXPECT_EQ(none.WaitShare(), 0);
  EXPECT_EQ(none.HitShare(), 1);
  EXPECT_FALSE(none.IsDriveBound());
}

TEST(MemoryBench, RefusesAnEmptyListBeforeAnythingIsOpened) {
  const auto open = []() -> Result<store::ModelFiles> { return Invalid("opened"); };
  const auto report = RunMemoryBench(open, {}, [](uint64_t, uint64_t) {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message(), "--memory: 0 sizes, expected 1 to 32");
}

TEST(CacheFigures, SharesAreOfAllThatWasWanted) {
  experts::CacheStats before, after;
  before.hit_count = 5;
  after.hit_count = 75;
  after.prefetch_hit_count = 10;
  after.miss_count = 20;
  const experts::CacheStats since = CacheSince(before, after);
  EXPECT_DOUBLE_EQ(HitShare(since), 0.7);
  EXPECT_DOUBLE_EQ(ForeseenShare(since), 0.1);
  const experts::CacheStats twice = CacheSum(since, since);
  EXPECT_EQ(twice.hit_count, 140u);
  EXPECT_EQ(twice.wanted_count(), 200u);
  EXPECT_DOUBLE_EQ(HitShare(twice), 0.7);
  EXPECT_DOUBLE_EQ(HitShare({}), 1);
  EXPECT_DOUBLE_EQ(ForeseenShare({}), 0);
}

}  // namespace
}  // namespace smoe::engine
