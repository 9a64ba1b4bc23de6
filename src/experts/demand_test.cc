#include "experts/demand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace smoe::experts {
namespace {

const double kLongKeep = std::exp2(-1.0 / 1024);
const double kFastKeep = std::exp2(-1.0 / 2);

constexpr Histories kCorners[] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {0, 1, 1}};

void AddFrom(const Histories& weights, WorthWeights* fit) {
  for (const Histories& x : kCorners) {
    fit->AddInput(x);
    fit->AddOutcome(x, weights[0] * x[0] + weights[1] * x[1] + weights[2] * x[2]);
  }
}

TEST(WorthWeights, FindsTheWeightsThatOutcomesWereMadeWith) {
  WorthWeights fit;
  AddFrom({2, -1, 3}, &fit);
  const Histories found = fit.Solve();
  EXPECT_NEAR(found[0], 2, 1e-4);
  EXPECT_NEAR(found[1], -1, 1e-4);
  EXPECT_NEAR(found[2], 3, 1e-4);
}

TEST(WorthWeights, ForgetsWhatFaded) {
  WorthWeights fit;
  AddFrom({2, -1, 3}, &fit);
  fit.Fade(1e-6);
  AddFrom({0, 1, 0}, &fit);
  const Histories found = fit.Solve();
  EXPECT_NEAR(found[0], 0, 1e-4);
  EXPECT_NEAR(found[1], 1, 1e-4);
}

TEST(WorthWeights, StaysFiniteWhereHistoriesAreAlike) {
  WorthWeights fit;
  EXPECT_EQ(fit.Solve(), kFirstWeights);
  fit.AddInput({1, 1, 1});
  fit.AddOutcome({1, 1, 1}, 0.6);
  for (const double weight : fit.Solve()) EXPECT_NEAR(weight, 0.2, 1e-4);
}

// One token: all of it in every average. Two: the long one is k / (1 + k), the fast one likewise.
TEST(Demand, AveragesAreOfTheTokensSeenSoFar) {
  Demand demand({0, 2});
  demand.Note(0, 1, std::vector<double>{1, 0});
  EXPECT_NEAR(demand.Forecast(0), 0.75 + 0.25, 1e-12);
  EXPECT_EQ(demand.Forecast(1), 0.0);
  demand.Note(0, 1, std::vector<double>{0, 1});
  const double long_share = kLongKeep / (1 + kLongKeep);
  EXPECT_NEAR(demand.LongShare(0), long_share, 1e-12);
  EXPECT_NEAR(demand.Forecast(0), 0.75 * long_share + 0.25 * kFastKeep / (1 + kFastKeep), 1e-12);
}

// 256 tokens are 1 - 2^(-1/4) of the long average, and all of the fast one; 1024 more halve it.
TEST(Demand, ManyRowsCountAsManyTokens) {
  Demand demand({0, 2});
  demand.Note(0, 256, std::vector<double>{0.75, 0.25});
  EXPECT_NEAR(demand.Forecast(0), 0.75, 1e-9);
  EXPECT_NEAR(demand.Forecast(1), 0.25, 1e-9);
  demand.Note(0, 1024, std::vector<double>{0, 1});
  const double seen = 1 - std::exp2(-0.25);
  EXPECT_NEAR(demand.LongShare(0), 0.75 * seen / (1 + seen), 1e-9);
}

TEST(Demand, OtherLayersAreLeftAlone) {
  Demand demand({0, 2, 5});
  demand.Note(0, 1, std::vector<double>{1, 0});
  demand.Note(1, 1, std::vector<double>{0, 1, 1});
  EXPECT_EQ(demand.LayerOf(1), 0U);
  EXPECT_EQ(demand.LayerOf(2), 1U);
  EXPECT_NEAR(demand.Forecast(0), 1, 1e-12);
  EXPECT_NEAR(demand.Forecast(4), 1, 1e-12);
}

// Four experts in turn: the one just chosen comes last, the one chosen longest ago comes next. The
// first weights say the opposite.
TEST(Demand, LearnsThatTheLatestComesLast) {
  Demand demand({0, 4});
  const auto note = [&](size_t token) {
    std::vector<double> shares(4);
    shares[token % 4] = 1;
    demand.Note(0, 1, shares);
  };
  size_t token = 0;
  for (; token < 16; ++token) note(token);  // the latest is 15 % 4 = 3
  EXPECT_GT(demand.Forecast(3), demand.Forecast(0));
  for (; token < 400; ++token) note(token);
  EXPECT_LT(demand.Forecast(3), demand.Forecast(2));
  EXPECT_LT(demand.Forecast(2), demand.Forecast(1));
  EXPECT_LT(demand.Forecast(1), demand.Forecast(0));
}

// A fair coin has no history: forecasts come near the share of a half and stay there. By the first
// weights they swing by an eighth, a quarter of what the fast history does.
TEST(Demand, LearnsThatTheLatestSaysNothing) {
  Demand demand({0, 2});
  uint32_t state = 1;
  double swing = 0;
  for (int token = 0; token < 4000; ++token) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator; its high bits are good
    const bool head = state >> 31 == 0;
    demand.Note(0, 1, std::vector<double>{head ? 1.0 : 0.0, head ? 0.0 : 1.0});
    if (token < 3000) continue;
    for (const uint32_t side : {0U, 1U}) {
      swing = std::max(swing, std::abs(demand.Forecast(side) - 0.5));
    }
  }
  EXPECT_LT(swing, 0.05);
}

TEST(Demand, ARecalledShareCountsForAQuarterOfAnAverage) {
  Demand demand({0, 2});
  demand.Recall(0, 0.4);
  demand.Recall(1, 0);
  EXPECT_DOUBLE_EQ(demand.LongShare(0), 0.4);
  EXPECT_DOUBLE_EQ(demand.Forecast(0), 0.75 * 0.4);
  demand.Note(0, 1, std::vector<double>{0, 1});
  const double recalled = 0.25 * kLongKeep;
  EXPECT_NEAR(demand.LongShare(0), 0.4 * recalled / (recalled + 1 - kLongKeep), 1e-12);
}

}  // namespace
}  // namespace smoe::experts
