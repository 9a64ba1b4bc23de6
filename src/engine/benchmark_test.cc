#include "engine/benchmark.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace smoe::engine {
namespace {

TEST(RandomTokens, AreThoseOfTheSeedAndInsideTheVocabulary) {
  const std::vector<uint32_t> tokens = RandomTokens(1, 1000, 50);
  EXPECT_EQ(tokens, RandomTokens(1, 1000, 50));
  EXPECT_NE(tokens, RandomTokens(2, 1000, 50));
  EXPECT_LT(*std::ranges::max_element(tokens), 50u);
  for (uint32_t id = 0; id < 50; ++id) EXPECT_NE(std::ranges::find(tokens, id), tokens.end()) << id;
  // A longer list begins like a shorter one.
  const std::vector<uint32_t> longer = RandomTokens(1, 2000, 50);
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), longer.begin()));
}

// The first numbers of SplitMix64 from seed 1234567 are 6457827717110365317 and
// 3203168211198807973 (Rosetta Code, "Pseudo-random numbers/Splitmix64"). Their upper halves are
// 1503580183 and 745795716; of a vocabulary of 2^31 they keep 31 bits.
TEST(RandomTokens, FollowSplitMix64) {
  EXPECT_EQ(RandomTokens(1234567, 2, 1u << 31),
            (std::vector<uint32_t>{1503580183 / 2, 745795716 / 2}));
}

// 1000 bytes a token at 10 a second are a quarter of 40000 bytes a second.
TEST(BenchReport, TheShareIsThatOfTheFasterPages) {
  BenchReport report;
  report.options.prompt_tokens = 4;
  report.decode_bytes = 1000;
  report.decode_rate.median = 10;
  report.memory.all_huge.median = 40000;
  report.memory.all_small.median = 30000;
  EXPECT_DOUBLE_EQ(report.DecodeBound(), 40);
  EXPECT_DOUBLE_EQ(report.DecodeShare(), 0.25);
  EXPECT_DOUBLE_EQ(report.DecodeBytesPerSecond(), 10000);
  report.memory.all_small.median = 50000;
  EXPECT_DOUBLE_EQ(report.DecodeShare(), 0.2);
  report.prefill_operations = 8000;
  report.prefill_rate.median = 2;
  EXPECT_DOUBLE_EQ(report.PrefillOperationsPerSecond(), 4000);
  EXPECT_EQ(BenchReport().DecodeShare(), 0);
}

TEST(TokenCost, EveryEarlierPositionAddsItsKeysAndValues) {
  TokenCost cost;
  cost.trunk_bytes = 1;
  cost.head_bytes = 20;
  cost.expert_bytes = 300;
  cost.kv_bytes_per_position = 1000;
  EXPECT_EQ(cost.DecodeBytes(4.5), 4821u);
}

}  // namespace
}  // namespace smoe::engine
