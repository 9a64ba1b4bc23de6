#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace smoe::model {
namespace {

using checkpoint::RopeConfig;
using checkpoint::RopeType;

RopeConfig Plain(double theta, double share = 1.0) {
  RopeConfig config;
  config.theta = theta;
  config.partial_rotary_factor = share;
  return config;
}

RopeConfig Yarn(double theta, double factor, uint64_t original_positions) {
  RopeConfig config;
  config.type = RopeType::kYarn;
  config.theta = theta;
  config.factor = factor;
  config.original_positions = original_positions;
  return config;
}

Rope Make(const RopeConfig& config, uint32_t head_dim) {
  auto rope = Rope::Create(config, head_dim);
  EXPECT_TRUE(rope.has_value()) << rope.error().message();
  return *rope;
}

void ExpectClose(std::span<const float> found, std::initializer_list<float> expected) {
  ASSERT_EQ(found.size(), expected.size());
  size_t i = 0;
  for (const float value : expected) {
    EXPECT_NEAR(found[i], value, 1.2e-7f * std::fabs(value)) << "frequency " << i;
    ++i;
  }
}

// Expected frequencies: numpy in f32, with the formulas of modeling_rope_utils.py.
TEST(Rope, FrequenciesAreThetaToTheMinusTwoIOverDim) {
  const Rope rope = Make(Plain(1e6), 8);
  ExpectClose(rope.inv_freq(),
              {1.0f, 0.03162277862429619f, 0.0010000000474974513f, 3.162277425872162e-05f});
  EXPECT_EQ(rope.attention_factor(), 1.0f);
  EXPECT_EQ(rope.rotary_dim(), 8u);
}

TEST(Rope, YarnBlendsBetweenKeptAndStretchedFrequencies) {
  const Rope short_context = Make(Yarn(10000, 4, 64), 16);
  ExpectClose(short_context.inv_freq(),
              {1.0f, 0.23717081546783447f, 0.04999999701976776f, 0.007905694656074047f,
               0.0024999999441206455f, 0.0007905694656074047f, 0.0002500000118743628f,
               7.905694656074047e-05f});
  RopeConfig config = Yarn(1e6, 4, 32768);
  ExpectClose(Make(config, 16).inv_freq(),
              {1.0f, 0.17782793939113617f, 0.03162277862429619f, 0.004217559937387705f,
               0.0005000000237487257f, 4.4456985051510856e-05f, 7.905693564680405e-06f,
               1.405853367941745e-06f});
  config.truncate = false;
  ExpectClose(Make(config, 16).inv_freq(),
              {1.0f, 0.17782793939113617f, 0.03162277862429619f, 0.005517270416021347f,
               0.000607408001087606f, 4.4456985051510856e-05f, 7.905693564680405e-06f,
               1.405853367941745e-06f});
}

TEST(Rope, YarnAttentionFactorIsGivenOrFollowsFactorAndMscale) {
  RopeConfig config = Yarn(10000, 4, 64);
  EXPECT_FLOAT_EQ(Make(config, 16).attention_factor(), 1.138629436111989f);  // 0.1 ln 4 + 1
  config.mscale = 0.707;
  config.mscale_all_dim = 0.707;
  EXPECT_FLOAT_EQ(Make(config, 16).attention_factor(), 1.0f);
  config.attention_factor = 1.5;
  EXPECT_FLOAT_EQ(Make(config, 16).attention_factor(), 1.5f);
  config.attention_factor.reset();
  config.mscale.reset();
  config.factor = 0.5;
  EXPECT_FLOAT_EQ(Make(config, 16).attention_factor(), 1.0f);
}

// numpy: cos and sin of f32(130 * frequency), in double, rounded.
TEST(Rope, RowsHoldCosineAndSineOfTheF32Angle) {
  const Rope rope = Make(Plain(1e6), 8);
  float cosines[4];
  float sines[4];
  rope.FillRow(130, cosines, sines);
  ExpectClose(cosines, {-0.36729133129119873f, -0.5658200979232788f, 0.9915618896484375f,
                        0.9999915361404419f});
  ExpectClose(sines, {-0.9301059246063232f, -0.824528694152832f, 0.12963415682315826f,
                      0.0041109491139650345f});
}

TEST(Rope, TurnsPairsOfTheTwoHalvesAndPassesTheRest) {
  const Rope rope = Make(Plain(100, 0.5), 8);
  ASSERT_EQ(rope.rotary_dim(), 4u);
  const float cosines[2] = {0.0f, 0.6f};
  const float sines[2] = {1.0f, 0.8f};
  float head[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  rope.Apply(cosines, sines, head);
  // Pair (1, 3) by a quarter turn: (-3, 1). Pair (2, 4): (2*.6 - 4*.8, 4*.6 + 2*.8).
  const float expected[8] = {-3, 2 * 0.6f - 4 * 0.8f, 1, 4 * 0.6f + 2 * 0.8f, 5, 6, 7, 8};
  for (int i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(head[i], expected[i]) << i;
}

TEST(Rope, RefusesSharesThatDoNotPair) {
  for (const double share : {0.0, -0.5, 1.5, 0.01, 0.1875, std::nan("")}) {
    const auto rope = Rope::Create(Plain(10000, share), 16);
    ASSERT_FALSE(rope.has_value()) << share;
    EXPECT_EQ(rope.error().code(), ErrorCode::kInvalid);
  }
}

TEST(Rope, RefusesFrequenciesThatAreNotFinite) {
  EXPECT_FALSE(Rope::Create(Plain(0), 16).has_value());
  EXPECT_FALSE(Rope::Create(Yarn(10000, 4, 0), 16).has_value());
}

TEST(Rope, TypesThatAreNotComputedAreRefusedByName) {
  RopeConfig config;
  config.type = RopeType::kLinear;
  const auto rope = Rope::Create(config, 32);
  ASSERT_FALSE(rope);
  EXPECT_EQ(rope.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(rope.error().message().find("linear"), std::string::npos);
}

}  // namespace
}  // namespace smoe::model
