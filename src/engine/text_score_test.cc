#include "engine/text_score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace smoe::engine {
namespace {

// Logits ln 1, ln 1, ln 2 give the probabilities 1/4, 1/4, 1/2.
std::vector<float> QuarterQuarterHalf() { return {0, 0, std::log(2.0f)}; }

TEST(TextScore, SurpriseIsMinusTheLogOfTheProbability) {
  EXPECT_NEAR(Surprise(QuarterQuarterHalf(), 0), std::log(4.0), 1e-7);
  EXPECT_NEAR(Surprise(QuarterQuarterHalf(), 2), std::log(2.0), 1e-7);
  const std::vector<float> large = {1000, 999};
  EXPECT_NEAR(Surprise(large, 0), std::log(1 + std::exp(-1.0)), 1e-9);
}

// KL((1/4, 1/4, 1/2) || (1/3, 1/3, 1/3)) = 2/4 ln(3/4) + 1/2 ln(3/2) = 0.0588915...
// The other way round: 2/3 ln(4/3) + 1/3 ln(2/3) = 0.0566330...
TEST(TextScore, KlOfTwoSmallDistributionsByHand) {
  const std::vector<float> even = {5, 5, 5};
  EXPECT_NEAR(KlDivergence(QuarterQuarterHalf(), even), 0.5 * std::log(0.75) + 0.5 * std::log(1.5),
              1e-7);
  EXPECT_NEAR(KlDivergence(even, QuarterQuarterHalf()),
              2.0 / 3 * std::log(4.0 / 3) + 1.0 / 3 * std::log(2.0 / 3), 1e-7);
  EXPECT_NEAR(KlDivergence(QuarterQuarterHalf(), even), 0.05889151782, 1e-7);
}

TEST(TextScore, KlIsZeroForTheSameDistributionWhateverTheOffset) {
  const std::vector<float> a = {1, 2, 3, -4};
  const std::vector<float> shifted = {65, 66, 67, 60};
  EXPECT_EQ(KlDivergence(a, a), 0);
  EXPECT_NEAR(KlDivergence(a, shifted), 0, 1e-12);
}

TEST(TextScore, TopTokenIsTheFirstOfEquals) {
  EXPECT_EQ(TopToken(std::vector<float>{1, 7, 3, 7}), 1u);
}

// Two tokens of probability 1/4 and 1/2: the geometric mean of 4 and 2 is sqrt(8).
TEST(TextScore, PerplexityIsTheGeometricMean) {
  TextScore score;
  score.Add(QuarterQuarterHalf(), 1);
  score.Add(QuarterQuarterHalf(), 2);
  EXPECT_NEAR(score.perplexity(), std::sqrt(8.0), 1e-6);
  EXPECT_EQ(score.token_count, 2u);
}

}  // namespace
}  // namespace smoe::engine
