#include "model/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace smoe::model {
namespace {

// A softmax in double, so that this test depends on no kernel.
void SoftmaxInDouble(float* x, size_t count) {
  const double max = *std::max_element(x, x + count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(x[i] - max);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(std::exp(x[i] - max) / sum);
}

kernels::KernelTable Kernels() {
  kernels::KernelTable table{};
  table.softmax = &SoftmaxInDouble;
  return table;
}

struct Routing {
  bool finite = false;
  std::vector<uint32_t> ids;
  std::vector<float> weights;
};

Routing Route(const RouterRule& rule, std::vector<float> logits) {
  Routing routing{false, std::vector<uint32_t>(rule.top_k), std::vector<float>(rule.top_k)};
  routing.finite =
      RouteRow(rule, Kernels(), logits.data(), routing.ids.data(), routing.weights.data());
  return routing;
}

// Logits whose softmax is 1/16, 2/16, ... by hand: ln(1), ln(2), ln(4), ln(2), ln(3), ln(1), ...
std::vector<float> KnownLogits() {
  std::vector<float> logits;
  for (const double share : {1, 2, 4, 2, 3, 1, 1, 2}) {
    logits.push_back(static_cast<float>(std::log(share)));
  }
  return logits;
}

TEST(Router, SoftmaxMatrixOfNormalisationAndScaling) {
  for (const bool renormalise : {false, true}) {
    for (const float scale : {1.0f, 2.5f}) {
      const Routing routing =
          Route({.expert_count = 8, .top_k = 2, .renormalise = renormalise, .scale = scale},
                KnownLogits());
      ASSERT_TRUE(routing.finite);
      EXPECT_EQ(routing.ids, (std::vector<uint32_t>{2, 4}));
      const float divisor = renormalise ? 7.0f : 16.0f;
      EXPECT_NEAR(routing.weights[0], 4 / divisor * scale, 1e-6);
      EXPECT_NEAR(routing.weights[1], 3 / divisor * scale, 1e-6);
    }
  }
}

TEST(Router, EqualScoresGoToTheLowestIndex) {
  EXPECT_EQ(Route({.expert_count = 8, .top_k = 4}, KnownLogits()).ids,
            (std::vector<uint32_t>{2, 4, 1, 3}));
  EXPECT_EQ(Route({.expert_count = 64, .top_k = 8}, std::vector<float>(64, 0.0f)).ids,
            (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Router, NegativeLogitsAreOrderedLikeOthers) {
  EXPECT_EQ(Route({.expert_count = 4, .top_k = 2}, {-5.5f, -5.0f, -7.0f, -5.25f}).ids,
            (std::vector<uint32_t>{1, 3}));
  const Routing far = Route({.expert_count = 4, .top_k = 3}, {-1e30f, 0.0f, -1e30f, -1e30f});
  EXPECT_EQ(far.ids, (std::vector<uint32_t>{1, 0, 2}));  // scores 0 tie
}

TEST(Router, TakesAllExpertsWhenKIsTheirNumber) {
  const Routing routing =
      Route({.expert_count = 2, .top_k = 2, .renormalise = true}, {0.0f, std::log(3.0f)});
  EXPECT_EQ(routing.ids, (std::vector<uint32_t>{1, 0}));
  EXPECT_NEAR(routing.weights[0], 0.75, 1e-6);
  EXPECT_NEAR(routing.weights[1], 0.25, 1e-6);
  EXPECT_EQ(Route({.expert_count = 1, .top_k = 1}, {3.0f}).weights[0], 1.0f);
}

TEST(Router, RefusesEveryLogitThatIsNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (size_t place = 0; place < 4; ++place) {
      std::vector<float> logits(4, 1.0f);
      logits[place] = bad;
      EXPECT_FALSE(Route({.expert_count = 4, .top_k = 2}, logits).finite);
    }
  }
}

}  // namespace
}  // namespace smoe::model
