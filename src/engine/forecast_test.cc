#include "engine/forecast.h"

#include <gtest/gtest.h>

#include <utility>

namespace smoe::engine {
namespace {

// Qwen3-30B-A3B as Q4: design figures 0.96 GB a token and 15.4 GB of experts.
ForecastDemand Qwen() {
  return {.trunk_read_bytes = 1'200'000'000,
          .expert_bytes = 2'506'752,
          .expert_count = 48 * 128,
          .layer_count = 48,
          .top_k = 8,
          .slot_count = 48 * 128,
          .chunk_tokens = 256,
          .prompt_tokens = 128,
          .drive_rate = 1e9,
          .dram_rate = 20e9};
}

TEST(Forecast, HitsFollowTheCurveOnWhichEightPercentTakeHalf) {
  EXPECT_NEAR(SkewedHitShare(0.08), 0.5, 1e-3);
  EXPECT_EQ(SkewedHitShare(0), 0.0);
  EXPECT_EQ(SkewedHitShare(1), 1.0);
  EXPECT_EQ(SkewedHitShare(2), 1.0);
}

// docs/streaming.md, "Which experts stay": hits of the default policy on a synthetic model.
TEST(Forecast, HitsAreThoseOfARecordedRunWithinFivePoints) {
  constexpr std::pair<double, double> kReplayed[] = {{0.1, 0.617}, {0.2, 0.822}, {0.3, 0.905},
                                                     {0.4, 0.950}, {0.5, 0.974}, {0.6, 0.987},
                                                     {0.7, 0.994}, {0.8, 0.998}};
  for (const auto& [cached, hits] : kReplayed) {
    EXPECT_NEAR(ExpectedHitShare(cached), hits, 0.05) << cached;
  }
  EXPECT_EQ(ExpectedHitShare(0), 0.0);
  EXPECT_EQ(ExpectedHitShare(1), 1.0);
  EXPECT_EQ(ExpectedHitShare(2), 1.0);
}

TEST(Forecast, UnionGrowsFromTopKToTheWholeLayer) {
  EXPECT_DOUBLE_EQ(UnionCount(128, 8, 1), 8.0);
  EXPECT_DOUBLE_EQ(UnionCount(128, 8, 2), 15.5);  // 8 + 8 (1 - 8 / 128)
  EXPECT_NEAR(UnionCount(128, 8, 128), 128.0, 0.05);
  EXPECT_DOUBLE_EQ(UnionCount(4, 8, 1), 4.0);
}

TEST(Forecast, ResidentModelIsLimitedByMemory) {
  const Forecast forecast = ForecastSpeed(Qwen());
  EXPECT_EQ(forecast.miss_bytes, 0u);
  EXPECT_EQ(forecast.active_bytes, 2'162'592'768u);  // 1.2 GB + 48 x 8 x 2,506,752
  // 20e9 / 2.162592768e9
  EXPECT_NEAR(forecast.tokens_per_second_bound(), 9.248, 1e-3);
  EXPECT_NEAR(forecast.tokens_per_second(), 0.85 * 9.248, 1e-3);
  EXPECT_FALSE(forecast.is_limited_by_drive());
  // The whole store, but for what 128 tokens leave out.
  EXPECT_NEAR(forecast.first_token_seconds(), 15.4, 0.05);
}

TEST(Forecast, FewSlotsAreLimitedByTheDriveAndChunksReadAgain) {
  ForecastDemand demand = Qwen();
  demand.slot_count = demand.expert_count * 8 / 100;  // 1 - 0.5 x 0.92 ^ 2.2 hit
  const Forecast one = ForecastSpeed(demand);
  EXPECT_NEAR(static_cast<double>(one.miss_bytes), 0.4162 * 962'592'768, 1e6);
  EXPECT_TRUE(one.is_limited_by_drive());
  EXPECT_NEAR(one.tokens_per_second_bound(), 1e9 / (0.4162 * 962'592'768), 0.01);
  // 400.6 ms of the drive and half of 2.162592768e9 / 20e9 / 0.85 = 127.2 ms.
  EXPECT_NEAR(one.tokens_per_second(), 1 / 0.4642, 0.01);
  demand.prompt_tokens = 256;
  demand.chunk_tokens = 128;
  const Forecast two = ForecastSpeed(demand);
  EXPECT_NEAR(static_cast<double>(two.prompt_bytes) / static_cast<double>(one.prompt_bytes), 1.92,
              0.001);
}

// docs/measuring.md, "smoe plan": qwen3-30b-a3b cut to 12 layers, with the rates that were measured
// beside each run.
TEST(Forecast, TokensOfMeasuredRunsAreMetWithinAQuarter) {
  struct Measured {
    uint32_t slot_count;
    double drive_rate, dram_rate, tokens_per_second;
  };
  constexpr Measured kRuns[] = {{384, 1.30e9, 19.5e9, 23.87}, {583, 1.36e9, 24.6e9, 28.56},
                                {781, 1.34e9, 22.3e9, 28.74}, {1536, 1.32e9, 25.4e9, 31.12},
                                {384, 1.60e9, 22.0e9, 27.92}, {583, 1.60e9, 22.0e9, 31.26},
                                {781, 1.60e9, 22.0e9, 32.85}};
  for (const Measured& run : kRuns) {
    const Forecast forecast = ForecastSpeed({.trunk_read_bytes = 323'000'000,
                                             .expert_bytes = 2'506'752,
                                             .expert_count = 12 * 128,
                                             .layer_count = 12,
                                             .top_k = 8,
                                             .slot_count = run.slot_count,
                                             .chunk_tokens = 1024,
                                             .prompt_tokens = 128,
                                             .drive_rate = run.drive_rate,
                                             .dram_rate = run.dram_rate});
    EXPECT_NEAR(forecast.tokens_per_second(), run.tokens_per_second, run.tokens_per_second / 4)
        << run.slot_count;
  }
}

TEST(Forecast, SaysNothingWhereARateIsNotKnown) {
  ForecastDemand demand = Qwen();
  demand.drive_rate = 0;
  EXPECT_NEAR(ForecastSpeed(demand).tokens_per_second_bound(), 9.248, 1e-3) << "reads nothing";
  EXPECT_EQ(ForecastSpeed(demand).first_token_seconds(), 0.0);
  demand.slot_count = 100;
  EXPECT_EQ(ForecastSpeed(demand).tokens_per_second(), 0.0);
  EXPECT_EQ(ForecastSpeed(demand).tokens_per_second_bound(), 0.0);
}

}  // namespace
}  // namespace smoe::engine
