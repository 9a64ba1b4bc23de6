#include "engine/compare_logits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "engine/logit_file.h"

namespace smoe::engine {
namespace {

// Two positions of a vocabulary of two. The first: (1/2, 1/2) and (1/4, 3/4), KL = ln 2 - ln(3)/2,
// equal tops nowhere but by the tie. The second: the same row twice.
TEST(LogitComparison, AddsUpPositionsByHand) {
  const float ln3 = std::log(3.0f);
  const std::vector<float> even = {0, 0};
  const std::vector<float> quarter = {0, ln3};
  const uint32_t next = 1;
  LogitComparison comparison;
  comparison.Add(4, even, quarter, &next);
  comparison.Add(5, quarter, quarter, nullptr);
  EXPECT_EQ(comparison.position_count, 2u);
  const double kl = std::log(2.0) - std::log(3.0) / 2;
  EXPECT_NEAR(comparison.kl_max, kl, 1e-7);
  EXPECT_EQ(comparison.kl_max_position, 4u);
  EXPECT_NEAR(comparison.kl_mean(), kl / 2, 1e-7);
  EXPECT_EQ(comparison.top_token_agreement(), 0.5);
  EXPECT_NEAR(comparison.a.perplexity(), 2, 1e-6);
  EXPECT_NEAR(comparison.b.perplexity(), 4.0 / 3, 1e-6);
}

TEST(LogitFile, GivesBackWhatItGotInAnyOrder) {
  auto file = LogitFile::Create(3, 2);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_TRUE(file->Write(2, std::vector<float>{5, 6}));
  ASSERT_TRUE(file->Write(0, std::vector<float>{1, 2}));
  std::vector<float> row(2);
  ASSERT_TRUE(file->Read(2, row));
  EXPECT_EQ(row, (std::vector<float>{5, 6}));
  ASSERT_TRUE(file->Read(0, row));
  EXPECT_EQ(row, (std::vector<float>{1, 2}));
}

TEST(LogitFile, SaysWhatItNeedsAndWhatThereIs) {
  for (const uint64_t rows : {uint64_t{1} << 45, UINT64_MAX}) {
    const auto file = LogitFile::Create(rows, 1000);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code(), ErrorCode::kExhausted);
    EXPECT_NE(file.error().message().find("TMPDIR"), std::string::npos) << file.error().message();
  }
}

}  // namespace
}  // namespace smoe::engine
