#include "engine/memory_gauge.h"

#include <gtest/gtest.h>

namespace smoe::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(MemoryGaugeTest, SavedBytesAreSharedAmongTheTokensInBetween) {
  EngineStats before;
  EngineStats after;
  before.cache.gauge_saved_bytes = 100 * kMiB;
  after.cache.gauge_saved_bytes = 340 * kMiB;
  EXPECT_EQ(GaugeSavedBytesPerToken(before, after, 10), 24 * kMiB);
  EXPECT_EQ(GaugeSavedBytesPerToken(before, after, 0), 0u);
  EXPECT_EQ(GaugeSavedBytesPerToken(after, before, 10), 0u) << "more memory never costs";
  EngineSetup setup;
  setup.slot_count = 3;
  setup.expert_count = 8;
  EXPECT_EQ(MemoryGaugeText(setup, before, after, 10), "with 1.0 GiB more: 24.0 MiB a token fewer");
  setup.slot_count = 8;
  EXPECT_EQ(MemoryGaugeText(setup, before, after, 10), "all experts fit in memory");
}

}  // namespace
}  // namespace smoe::engine
