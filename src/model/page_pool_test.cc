#include "model/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace smoe::model {
namespace {

constexpr uint32_t kRoot = PagePool::kRoot;

// 32 tokens: `first`, and zeros behind it.
std::vector<uint32_t> FullPage(uint32_t first) {
  std::vector<uint32_t> tokens(kKvPageTokens);
  tokens[0] = first;
  return tokens;
}

TEST(PagePool, GivesEachPageOnceAndThenNone) {
  PagePool pool(3);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 1u);
  EXPECT_EQ(pool.Take(), 2u);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.GiveBack(1);
  EXPECT_EQ(pool.unused_count(), 1u);
  EXPECT_EQ(pool.Take(), 1u);
}

TEST(PagePool, APoolWithoutPagesHasNoneToGive) {
  EXPECT_EQ(PagePool(0).Take(), std::nullopt);
  EXPECT_EQ(PagePool().page_count(), 0u);
}

TEST(PagePool, APageGoesWhenItsLastUserGivesItBack) {
  PagePool pool(1);
  const uint32_t page = *pool.Take();
  pool.Use(page);
  pool.GiveBack(page);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.GiveBack(page);
  EXPECT_EQ(pool.Take(), page);
}

TEST(PagePool, FindsTheLongestCommonBeginning) {
  PagePool pool(4);
  const uint32_t a = *pool.Take();
  const uint32_t b = *pool.Take();
  EXPECT_EQ(pool.Keep(kRoot, a, std::vector<uint32_t>{1, 2, 3}), a);
  EXPECT_EQ(pool.Keep(kRoot, b, std::vector<uint32_t>{1, 2, 9, 9}), b);
  const auto found = pool.Find(kRoot, std::vector<uint32_t>{1, 2, 9, 4});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->page, b);
  EXPECT_EQ(found->token_count, 3u);
  EXPECT_FALSE(pool.Find(kRoot, std::vector<uint32_t>{2, 1}));
  EXPECT_FALSE(pool.Find(kRoot, {}));
}

// The same tokens behind other tokens are another page.
TEST(PagePool, APageIsFoundOnlyBehindTheTokensItWasKeptBehind) {
  PagePool pool(4);
  const uint32_t a = *pool.Take();
  const uint32_t b = *pool.Take();
  const uint32_t behind_a = *pool.Take();
  pool.Keep(kRoot, a, FullPage(1));
  pool.Keep(kRoot, b, FullPage(2));
  pool.Keep(a, behind_a, FullPage(7));
  EXPECT_EQ(pool.Find(a, FullPage(7))->page, behind_a);
  EXPECT_FALSE(pool.Find(b, FullPage(7)));
  EXPECT_FALSE(pool.Find(kRoot, FullPage(7)));
}

TEST(PagePool, EqualPagesAreKeptOnceAndShorterOnesMakeWay) {
  PagePool pool(4);
  const uint32_t shorter = *pool.Take();
  const uint32_t longer = *pool.Take();
  const uint32_t equal = *pool.Take();
  pool.Keep(kRoot, shorter, std::vector<uint32_t>{5, 6});
  pool.GiveBack(shorter);
  EXPECT_EQ(pool.kept_unused_count(), 1u);
  EXPECT_EQ(pool.Keep(kRoot, longer, std::vector<uint32_t>{5, 6, 7}), longer);
  EXPECT_EQ(pool.kept_unused_count(), 0u) << "the shorter one is no longer kept";
  EXPECT_EQ(pool.Keep(kRoot, equal, std::vector<uint32_t>{5, 6}), longer);
  EXPECT_EQ(pool.Keep(kRoot, equal, std::vector<uint32_t>{5, 6, 7}), longer);
  EXPECT_EQ(pool.Take(), shorter) << "what is not kept goes first";
}

TEST(PagePool, TheLeastRecentlyUsedGoesFirstAndEndsBeforeBeginnings) {
  PagePool pool(4);
  uint32_t chain[2][2];  // two sequences of two pages
  for (uint32_t i = 0; i < 2; ++i) {
    chain[i][0] = *pool.Take();
    chain[i][1] = *pool.Take();
    pool.Keep(kRoot, chain[i][0], FullPage(i));
    pool.Keep(chain[i][0], chain[i][1], FullPage(9));
  }
  for (const auto& pages : chain) {
    pool.GiveBack(pages[1]);
    pool.GiveBack(pages[0]);
  }
  // The first is used again, so the second one is the older.
  pool.Use(chain[0][0]);
  pool.GiveBack(chain[0][0]);
  EXPECT_EQ(pool.Take(), chain[0][1]) << "given back before all others, and not used since";
  EXPECT_EQ(pool.Take(), chain[1][1]);
  EXPECT_EQ(pool.Take(), chain[1][0]);
  EXPECT_EQ(pool.forgotten_count(), 3u);
  EXPECT_TRUE(pool.Find(kRoot, FullPage(0)));
  EXPECT_EQ(pool.Take(), chain[0][0]);
  EXPECT_FALSE(pool.Find(kRoot, FullPage(0)));
}

}  // namespace
}  // namespace smoe::model
