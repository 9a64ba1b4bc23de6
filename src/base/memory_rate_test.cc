#include "base/memory_rate.h"

#include <gtest/gtest.h>

#include "base/fake_root_for_test.h"
#include "base/huge_pages.h"
#include "base/spread.h"

namespace smoe {
namespace {

TEST(MemoryRate, EveryWordIsReadOnceOnAnyNumberOfThreads) {
  for (const size_t threads : {1u, 2u, 3u}) {
    ThreadPool pool(threads);
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{5000}, uint64_t{3} << 20}) {
      const auto meter = MemoryRateMeter::Create({.bytes = bytes}, pool);
      ASSERT_TRUE(meter);
      EXPECT_GE(meter->memory().size(), bytes);
      EXPECT_EQ(meter->memory().size() % kPageBytes, 0u);
      const auto reading = meter->Read(pool);
      EXPECT_EQ(reading.sum, meter->expected_sum());
      EXPECT_GT(reading.bytes_per_second, 0);
    }
  }
}

// 0 + 1 + ... + 511 of the one page.
TEST(MemoryRate, TheSumIsThatOfTheWordsNumbers) {
  ThreadPool pool(1);
  const auto meter = MemoryRateMeter::Create({.bytes = 4096}, pool);
  ASSERT_TRUE(meter);
  EXPECT_EQ(meter->expected_sum(), 511u * 512u / 2);
}

TEST(MemoryRate, WithoutHugePagesThereAreNone) {
  ThreadPool pool(2);
  const auto meter =
      MemoryRateMeter::Create({.bytes = uint64_t{16} << 20, .huge_pages = false}, pool);
  ASSERT_TRUE(meter);
  const auto pages = ReadPageUse(meter->memory());
  ASSERT_TRUE(pages) << pages.error().message();
  EXPECT_EQ(pages->huge_bytes, 0u);
  EXPECT_GE(pages->resident_bytes, meter->memory().size());
}

TEST(MemoryRate, TooMuchIsRefusedWithItsSize) {
  ThreadPool pool(1);
  const auto meter = MemoryRateMeter::Create({.bytes = uint64_t{1} << 62}, pool);
  ASSERT_FALSE(meter);
  EXPECT_EQ(meter.error().code(), ErrorCode::kExhausted);
}

TEST(MemoryRate, ReadsManyTimesTheCachesAndLeavesMemoryToOthers) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  EXPECT_EQ(RateBytes(32 * kMiB, uint64_t{64} << 30), 1024 * kMiB);
  EXPECT_EQ(RateBytes(300 * kMiB, uint64_t{64} << 30), 1200 * kMiB);
  EXPECT_EQ(RateBytes(300 * kMiB, 2048 * kMiB), 512 * kMiB);
  EXPECT_EQ(RateBytes(0, 0), kRateBytesMin);
}

class Caches : public FakeRootTest {};

TEST_F(Caches, TheLargestCounts) {
  EXPECT_EQ(LargestCacheBytes(root_), 0u);
  Write("/sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
  Write("/sys/devices/system/cpu/cpu0/cache/index2/size", "2048K\n");
  Write("/sys/devices/system/cpu/cpu0/cache/index3/size", "105M\n");
  EXPECT_EQ(LargestCacheBytes(root_), uint64_t{105} << 20);
}

TEST(Spread, TheMedianIsAMeasuredValue) {
  EXPECT_EQ(SpreadOf({}).median, 0);
  const Spread odd = SpreadOf({3, 1, 2});
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.max, 3);
  EXPECT_EQ(SpreadOf({4, 1, 2, 3}).median, 2);
}

}  // namespace
}  // namespace smoe
