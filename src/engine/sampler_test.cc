// Expected distributions are worked out by hand beside each test.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace smoe::engine {
namespace {

constexpr int kDrawCount = 20000;

// Shares of the tokens drawn from `logits`, with a new seed for each draw.
std::map<uint32_t, double> Shares(SamplerOptions options, const std::vector<float>& logits,
                                  const std::vector<uint32_t>& history = {}) {
  std::map<uint32_t, double> shares;
  Sampler sampler(options, logits.size(), kernels::kScalarKernels);
  for (int i = 0; i < kDrawCount; ++i) shares[sampler.Sample(logits, history).value()] += 1;
  for (auto& [token, share] : shares) share /= kDrawCount;
  return shares;
}

// Probabilities 0.1, 0.2, 0.3, 0.4 at temperature 1.
const std::vector<float> kFour = {std::log(0.1f), std::log(0.2f), std::log(0.3f), std::log(0.4f)};
// Five standard deviations of a share near 0.5 in 20000 draws: 5 * sqrt(0.25 / 20000).
constexpr double kNoise = 0.018;

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdOfATie) {
  Sampler sampler({}, 4, kernels::kScalarKernels);
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, 3, 2, 3}, {}).value(), 1u);
  EXPECT_EQ(sampler.Sample(std::vector<float>{-5, -INFINITY, -4, -4}, {}).value(), 2u);
}

TEST(Sampler, DrawsInProportion) {
  SamplerOptions options;
  options.temperature = 1;
  const auto shares = Shares(options, kFour);
  EXPECT_NEAR(shares.at(0), 0.1, kNoise);
  EXPECT_NEAR(shares.at(1), 0.2, kNoise);
  EXPECT_NEAR(shares.at(2), 0.3, kNoise);
  EXPECT_NEAR(shares.at(3), 0.4, kNoise);
}

TEST(Sampler, TemperatureTwoTakesTheSquareRootOfTheOdds) {
  SamplerOptions options;
  options.temperature = 2;
  // sqrt of 0.1, 0.2, 0.3, 0.4 over their sum: 0.1627, 0.2301, 0.2818, 0.3254.
  EXPECT_NEAR(Shares(options, kFour).at(0), 0.1627, kNoise);
  EXPECT_NEAR(Shares(options, kFour).at(3), 0.3254, kNoise);
}

TEST(Sampler, TheSmallestTemperatureTakesTheLikeliestOfTheLargestLogits) {
  SamplerOptions options;
  options.temperature = kTemperatureMin;
  Sampler sampler(options, 3, kernels::kScalarKernels);
  // 1e30 / 1e-6 is still a number in f32.
  EXPECT_EQ(sampler.Sample(std::vector<float>{-1e30f, 9e29f, 1e30f}, {}).value(), 2u);
}

TEST(Sampler, TopKKeepsKAndAllThatEqualTheLast) {
  SamplerOptions options;
  options.temperature = 1;
  options.top_k = 2;
  const auto two = Shares(options, kFour);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(3), 0.4 / 0.7, kNoise);
  const auto tied = Shares(options, {2, 1, 1, 0});
  EXPECT_EQ(tied.size(), 3u) << "torch.topk's threshold keeps both that equal the second";
  options.top_k = 0;
  EXPECT_EQ(Shares(options, kFour).size(), 4u) << "0 is off";
}

TEST(Sampler, TopPKeepsTheShortestHeadThatReachesP) {
  SamplerOptions options;
  options.temperature = 1;
  options.top_p = 0.65;  // 0.4 + 0.3 reaches it
  const auto shares = Shares(options, kFour);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(3), 0.4 / 0.7, kNoise);
  options.top_p = 0.75;  // needs 0.2 as well
  EXPECT_EQ(Shares(options, kFour).size(), 3u);
}

TEST(Sampler, MinPKeepsWhatIsWithinItsShareOfTheLikeliest) {
  SamplerOptions options;
  options.temperature = 1;
  options.min_p = 0.6;  // at least 0.24
  EXPECT_EQ(Shares(options, kFour).size(), 2u);
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogitsOnce) {
  SamplerOptions options;
  options.repetition_penalty = 2;
  Sampler sampler(options, 3, kernels::kScalarKernels);
  // 3 / 2 = 1.5 is still above 1.4; seen twice counts once.
  EXPECT_EQ(sampler.Sample(std::vector<float>{3, 1.4f, 0}, std::vector<uint32_t>{0, 0}).value(),
            0u);
  // -1 * 2 = -2 falls below -1.5.
  EXPECT_EQ(sampler.Sample(std::vector<float>{-1, -1.5f, -3}, std::vector<uint32_t>{0}).value(),
            1u);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  SamplerOptions options;
  options.temperature = 1;
  options.seed = 42;
  Sampler one(options, 4, kernels::kScalarKernels);
  Sampler other(options, 4, kernels::kScalarKernels);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(one.Sample(kFour, {}).value(), other.Sample(kFour, {}).value());
  }
}

// NaN is an error of the request, never token 0.
TEST(Sampler, RefusesNaNAndNoFiniteLogit) {
  Sampler sampler({}, 3, kernels::kScalarKernels);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, nan, 2}, {}).error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(sampler.Sample(std::vector<float>{-INFINITY, -INFINITY, -INFINITY}, {}));
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, INFINITY, 2}, {}));
}

TEST(CheckSamplerOptions, NamesTheOptionAndItsRange) {
  const auto refused = [](auto change) {
    SamplerOptions options;
    change(options);
    return !CheckSamplerOptions(options).has_value();
  };
  EXPECT_TRUE(CheckSamplerOptions({}));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.temperature = -0.1; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.temperature = NAN; }));
  EXPECT_FALSE(refused([](SamplerOptions& o) { o.temperature = kTemperatureMin; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.temperature = kTemperatureMin / 2; }));
  EXPECT_FALSE(refused([](SamplerOptions& o) { o.temperature = kTemperatureMax; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.temperature = kTemperatureMax + 1; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.top_p = 0; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.top_p = 1.01; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.min_p = -1; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.repetition_penalty = 0; }));
  EXPECT_FALSE(refused([](SamplerOptions& o) { o.repetition_penalty = kRepetitionPenaltyMin; }));
  EXPECT_FALSE(refused([](SamplerOptions& o) { o.repetition_penalty = kRepetitionPenaltyMax; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.repetition_penalty = kRepetitionPenaltyMax + 1; }));
}

}  // namespace
}  // namespace smoe::engine
