// Experts that are read while the drive has nothing else to do: in front of nobody, and for the
// place of nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/store_for_test.h"
#include "io/fake_read_queue.h"

namespace smoe::experts {
namespace {

using store::ExpertId;
using Ids = std::vector<ExpertId>;

Ids Experts(uint32_t layer, const std::vector<uint32_t>& experts) {
  Ids ids;
  for (const uint32_t expert : experts) ids.push_back({layer, expert});
  return ids;
}

// Layer 0 is read at idle, layer 1 on demand.
class IdleReads : public testing::Test {
 protected:
  void Create(uint32_t slots, io::FakeReadOptions options = {},
              Eviction eviction = Eviction::kLru) {
    const auto fault = options.fault;
    options.fault = [this, fault](const io::ReadRequest& request) {
      const uint64_t ordinal = request.offset / store_.slot_bytes();
      order_.push_back(ordinal);
      const uint32_t under_way = queue_depth_ - queue_->free_count();
      if (ordinal < 8) idle_company_max_ = std::max(idle_company_max_, under_way);
      return fault ? fault(request) : 0;
    };
    queue_ = io::MakeFakeReadQueue(options);
    queue_depth_ = queue_->free_count();
    auto cache = ExpertCache::Create(store_, *queue_, {.slot_count = slots, .eviction = eviction});
    ASSERT_TRUE(cache.has_value());
    cache_ = std::move(*cache);
  }

  void RunPass(const Ids& wanted) {
    cache_->Begin(wanted);
    for (;;) {
      const auto next = cache_->Next();
      ASSERT_TRUE(next.has_value());
      if (!*next) return;
      ASSERT_FALSE((*next)->error.has_value());
      const Bytes got = (*next)->weights.up.data;
      const Bytes expected = store_.Weights((*next)->id).up.data;
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()));
      cache_->Release(**next);
    }
  }

  TestStore store_{{.layers = {{0, 8}, {1, 8}}}};
  std::vector<uint64_t> order_;  // ordinals as their reads were queued
  uint32_t queue_depth_ = 0;
  uint32_t idle_company_max_ = 0;  // reads under way when an idle one was queued
  std::unique_ptr<io::ReadQueue> queue_;
  std::unique_ptr<ExpertCache> cache_;
};

TEST_F(IdleReads, ADemandWaitsForOneOfThemAtMost) {
  Create(16);
  cache_->ReadWhenIdle(Experts(0, {3, 2, 1, 0}));
  EXPECT_EQ(order_, (std::vector<uint64_t>{3}));
  RunPass(Experts(1, {4, 5, 6}));
  ASSERT_GE(order_.size(), 4u);
  EXPECT_EQ(std::vector<uint64_t>(order_.begin(), order_.begin() + 4),
            (std::vector<uint64_t>{3, 12, 13, 14}));
  for (int i = 0; i < 8; ++i) RunPass(Experts(1, {4}));
  EXPECT_EQ(order_, (std::vector<uint64_t>{3, 12, 13, 14, 2, 1, 0}));
  EXPECT_EQ(cache_->stats().hit_count, 8u);
  RunPass(Experts(0, {0, 1, 2, 3}));
  const CacheStats stats = cache_->stats();
  EXPECT_EQ(stats.hit_count, 12u);
  EXPECT_EQ(stats.miss_count, 3u);
  EXPECT_EQ(stats.idle_count, 4u);
  EXPECT_EQ(stats.idle_used_count, 4u);
  EXPECT_EQ(stats.idle_wasted_count, 0u);
}

TEST_F(IdleReads, BehindWhatIsForeseenToo) {
  Create(16);
  cache_->Begin(Experts(1, {0}));
  cache_->Prefetch(Experts(1, {1, 2}), false);
  cache_->ReadWhenIdle(Experts(0, {0, 1}));
  EXPECT_EQ(order_, (std::vector<uint64_t>{8, 9, 10}));
  ASSERT_TRUE(cache_->Abandon().has_value());
}

// Any order of arrival, any demand: never beside another read.
TEST_F(IdleReads, NoneBeginsWhileAnotherReadIsUnderWay) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    cache_.reset();
    Create(12, {.seed = seed, .depth = 1 + static_cast<uint32_t>(seed % 5)});
    std::mt19937_64 random(seed);
    cache_->ReadWhenIdle(Experts(0, {0, 1, 2, 3, 4, 5, 6, 7}));
    for (int i = 0; i < 30; ++i) {
      const auto first = static_cast<uint32_t>(random() % 6);
      RunPass(Experts(1, {first, first + 1, first + 2}));
      const SlotCounts counts = cache_->Audit();
      EXPECT_EQ(counts.ready + counts.pinned, 0u);
    }
    EXPECT_EQ(idle_company_max_, 0u) << seed;
    EXPECT_GT(cache_->stats().idle_count, 2u) << seed;
  }
}

TEST_F(IdleReads, NothingGoesForThem) {
  Create(3);
  RunPass(Experts(1, {5, 6, 7}));
  cache_->ReadWhenIdle(Experts(0, {0, 1, 2}));
  RunPass(Experts(1, {5, 6, 7}));
  EXPECT_EQ(cache_->stats().hit_count, 3u);
  EXPECT_EQ(cache_->stats().idle_count, 0u);
}

TEST_F(IdleReads, TheyGoLikeAnyOtherAndAreCountedThen) {
  Create(3);
  cache_->ReadWhenIdle(Experts(0, {0, 1, 2}));
  while (cache_->Audit().resident < 3) RunPass({});
  RunPass(Experts(1, {1, 2, 3}));
  EXPECT_EQ(cache_->stats().idle_count, 3u);
  EXPECT_EQ(cache_->stats().idle_wasted_count, 3u);
  EXPECT_EQ(cache_->stats().idle_used_count, 0u);
  EXPECT_EQ(cache_->Audit().resident, 3u);
}

TEST_F(IdleReads, AFailedOneIsLeftToTheDemand) {
  int failure_count = 0;
  Create(8, {.fault = [&](const io::ReadRequest& request) {
           return request.offset == 0 && failure_count++ == 0 ? EIO : 0;
         }});
  cache_->ReadWhenIdle(Experts(0, {0, 1}));
  while (cache_->Audit().resident < 1) RunPass({});
  EXPECT_EQ(order_, (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(cache_->stats().idle_wasted_count, 1u);
  EXPECT_EQ(cache_->stats().failed_count, 0u);
  RunPass(Experts(0, {0, 1}));
  EXPECT_EQ(cache_->stats().hit_count, 1u);
  EXPECT_EQ(cache_->stats().miss_count, 1u);
}

// They go on after the cache was made smaller, into what slots are left.
TEST_F(IdleReads, ASmallerCacheGetsFewerOfThem) {
  Create(8);
  cache_->ReadWhenIdle(Experts(0, {0, 1, 2, 3, 4, 5, 6, 7}));
  RunPass({});
  ASSERT_TRUE(cache_->SetSlotLimit(5).has_value());
  for (int i = 0; i < 20; ++i) RunPass({});
  EXPECT_EQ(cache_->Audit().resident, 5u);
  EXPECT_EQ(cache_->stats().idle_wasted_count, 0u);
}

TEST_F(IdleReads, OnesThatTheStoreDoesNotHaveArePassedOver) {
  Create(8);
  cache_->ReadWhenIdle({{{7, 0}, {0, 99}, {0, 4}}});
  RunPass(Experts(0, {4}));
  EXPECT_EQ(order_, (std::vector<uint64_t>{4}));
  EXPECT_EQ(cache_->stats().idle_used_count, 1u);
}

// What an earlier run knew decides who goes, until this one knows better.
TEST_F(IdleReads, RecalledWorthCountsFromTheFirstPassOn) {
  Create(2, {}, Eviction::kFrequency);
  std::vector<double> worths(16, 0.0);
  worths[8] = 0.5;
  cache_->Recall(worths);
  EXPECT_DOUBLE_EQ(cache_->Worth({1, 0}), 0.5 * 0.75);
  EXPECT_EQ(cache_->LastingWorths(), worths);
  RunPass(Experts(1, {0}));
  for (uint32_t i = 1; i < 6; ++i) RunPass(Experts(1, {i}));
  EXPECT_EQ(cache_->stats().hit_count, 0u);
  RunPass(Experts(1, {0}));
  EXPECT_EQ(cache_->stats().hit_count, 1u);
}

}  // namespace
}  // namespace smoe::experts
