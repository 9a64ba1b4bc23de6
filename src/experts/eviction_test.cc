#include "experts/eviction.h"

#include <gtest/gtest.h>

#include "experts/shadow_cache.h"

namespace smoe::experts {
namespace {

constexpr uint32_t kExperts = 4;

PassUse Use(std::span<const uint32_t> ordinals, uint32_t row_count = 1,
            std::span<const uint32_t> row_counts = {}) {
  return {.row_count = row_count, .ordinals = ordinals, .row_counts = row_counts};
}

TEST(Eviction, LruValuesTheLatestMost) {
  const auto lru = MakeEvictionPolicy(Eviction::kLru, {0, kExperts});
  const uint32_t first[] = {0, 1};
  const uint32_t second[] = {1};
  lru->Note(Use(first));
  lru->Note(Use(second));
  EXPECT_LT(lru->Worth(0), lru->Worth(1));
  EXPECT_LT(lru->Worth(3), lru->Worth(0));
}

// All averages of one token are that token; of two, the long and the fast one of the first token's
// expert are k / (1 + k) with k = 2^(-1/1024) and 2^(-1/2).
TEST(Eviction, FrequencyBeginsWithThreeQuartersSlowAndOneQuarterFast) {
  const auto frequency = MakeEvictionPolicy(Eviction::kFrequency, {0, kExperts});
  const uint32_t used[] = {2};
  frequency->Note(Use(used));
  EXPECT_NEAR(frequency->Worth(2), 1, 1e-9);
  const uint32_t other[] = {3};
  frequency->Note(Use(other));
  EXPECT_NEAR(frequency->Worth(2), 0.75 * 0.4998308 + 0.25 * 0.4142136, 1e-6);
  EXPECT_EQ(frequency->Worth(1), 0.0);
}

TEST(Eviction, ManyRowsCountAsManyTokens) {
  const auto rows = MakeEvictionPolicy(Eviction::kFrequency, {0, kExperts});
  const uint32_t used[] = {0, 1};
  const uint32_t row_counts[] = {192, 64};
  rows->Note(Use(used, 256, row_counts));
  EXPECT_NEAR(rows->Worth(0), 0.75, 1e-9);
  EXPECT_NEAR(rows->Worth(1), 0.25, 1e-9);
}

TEST(Eviction, APassThroughTwoLayersIsNotedInBoth) {
  const auto frequency = MakeEvictionPolicy(Eviction::kFrequency, {0, kExperts, 2 * kExperts});
  const uint32_t used[] = {5, 1, 6};
  frequency->Note(Use(used));
  for (const uint32_t ordinal : used) EXPECT_NEAR(frequency->Worth(ordinal), 1, 1e-9);
  EXPECT_EQ(frequency->Worth(4), 0.0);
}

TEST(Eviction, OtherLayersAreLeftAlone) {
  const auto frequency = MakeEvictionPolicy(Eviction::kFrequency, {0, kExperts, 2 * kExperts});
  const uint32_t used[] = {1};
  const uint32_t other[] = {5};
  frequency->Note(Use(used));
  const double before = frequency->Worth(1);
  frequency->Note(Use(other));
  EXPECT_EQ(frequency->Worth(1), before);
}

TEST(Eviction, NamesGoBothWays) {
  for (const Eviction eviction : {Eviction::kFrequency, Eviction::kLru}) {
    EXPECT_EQ(EvictionFromName(EvictionName(eviction)), eviction);
  }
  EXPECT_EQ(EvictionFromName("belady"), std::nullopt);
}

TEST(ShadowCache, CountsWhatLruWouldMiss) {
  const auto lru = MakeEvictionPolicy(Eviction::kLru, {0, kExperts});
  ShadowCache cache(kExperts, 2, *lru);
  const auto pass = [&](std::vector<uint32_t> ordinals) {
    lru->Note(Use(ordinals));
    return cache.Pass(ordinals);
  };
  EXPECT_EQ(pass({0}), 1U);
  EXPECT_EQ(pass({1}), 1U);
  EXPECT_EQ(pass({0}), 0U);
  EXPECT_EQ(pass({2}), 1U);  // 1 goes
  EXPECT_EQ(pass({0}), 0U);
  EXPECT_EQ(pass({1}), 1U);
  EXPECT_EQ(cache.miss_count(), 4U);
  EXPECT_EQ(cache.wanted_count(), 6U);
}

TEST(ShadowCache, APassNeverEvictsWhatItWants) {
  const auto lru = MakeEvictionPolicy(Eviction::kLru, {0, kExperts});
  ShadowCache cache(kExperts, 2, *lru);
  const uint32_t first[] = {0, 1};
  const uint32_t second[] = {0, 2};
  lru->Note(Use(first));
  EXPECT_EQ(cache.Pass(first), 2U);
  lru->Note(Use(second));
  EXPECT_EQ(cache.Pass(second), 1U);
  EXPECT_EQ(cache.Pass(second), 0U);
}

TEST(ShadowCache, APassMayWantMoreThanThereAreSlots) {
  const auto lru = MakeEvictionPolicy(Eviction::kLru, {0, kExperts});
  ShadowCache cache(kExperts, 1, *lru);
  const uint32_t all[] = {0, 1, 2, 3};
  EXPECT_EQ(cache.Pass(all), 4U);
  const uint32_t last[] = {3};
  EXPECT_EQ(cache.Pass(last), 0U);
  EXPECT_EQ(cache.Pass(all), 3U);
}

}  // namespace
}  // namespace smoe::experts
