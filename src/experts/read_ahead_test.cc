// How many reads wait in the queue at once, and what is looked at together when they end together.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "experts/expert_cache.h"
#include "experts/store_for_test.h"
#include "io/fake_read_queue.h"

namespace smoe::experts {
namespace {

using store::ExpertId;

std::vector<ExpertId> FirstOf(uint32_t layer, uint32_t count) {
  std::vector<ExpertId> ids;
  for (uint32_t expert = 0; expert < count; ++expert) ids.push_back({layer, expert});
  return ids;
}

std::unique_ptr<ExpertCache> CreateCache(TestStore& store, io::ReadQueue& queue,
                                         const ExpertCache::Options& options) {
  auto cache = ExpertCache::Create(store, queue, options);
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

// To the end of the pass; those that failed are counted.
size_t RunPass(TestStore& store, ExpertCache& cache, const std::vector<ExpertId>& wanted,
               std::vector<ReadyExpert>* failed = nullptr) {
  size_t good_count = 0;
  cache.Begin(wanted);
  while (auto next = cache.Next().value()) {
    if (next->error) {
      if (failed != nullptr) failed->push_back(std::move(*next));
      continue;
    }
    ++good_count;
    EXPECT_TRUE(std::ranges::equal(next->weights.up.data, store.Weights(next->id).up.data));
    cache.Release(*next);
  }
  return good_count;
}

class ReadAhead : public testing::Test {
 protected:
  TestStore store_{{.layers = {{0, 24}, {1, 24}}}};
};

TEST_F(ReadAhead, GuessesStopAtTheirDepthAndDemandFillsTheQueue) {
  auto queue = io::MakeFakeReadQueue({.depth = 20});
  auto cache = CreateCache(store_, *queue, {.slot_count = 48, .guess_depth = 3});
  cache->Begin({});
  cache->Prefetch(FirstOf(1, 10), true);
  EXPECT_EQ(cache->Audit().loading, 3u);
  EXPECT_FALSE(cache->Next().value().has_value());
  cache->Begin(FirstOf(0, 24));
  EXPECT_EQ(queue->free_count(), 0u);
  EXPECT_EQ(cache->Audit().loading, 20u);
  ASSERT_TRUE(cache->Abandon().has_value());
}

TEST_F(ReadAhead, GuessesGoOnBetweenPassesWherePollLooksAndNobodyWaits) {
  auto queue = io::MakeFakeReadQueue({.depth = 20});
  auto cache = CreateCache(store_, *queue, {.slot_count = 48, .guess_depth = 3});
  cache->Poll();
  cache->Prefetch(FirstOf(1, 10), true);
  EXPECT_EQ(cache->stats().prefetch_count, 3u);
  for (int i = 0; i < 1000 && cache->Audit().resident < 10; ++i) {
    cache->Poll();
    EXPECT_LE(cache->Audit().loading, 3u);
  }
  EXPECT_EQ(cache->Audit().resident, 10u);
  EXPECT_EQ(cache->stats().wait_ns, 0u);
  EXPECT_EQ(RunPass(store_, *cache, FirstOf(1, 10)), 10u);
  EXPECT_EQ(cache->stats().prefetch_hit_count, 10u);
}

TEST_F(ReadAhead, GuessesStartAgainAsReadsEndAndNoneIsLeftOut) {
  auto queue = io::MakeFakeReadQueue({.depth = 20});
  auto cache = CreateCache(store_, *queue, {.slot_count = 48, .guess_depth = 3});
  cache->Begin({});
  cache->Prefetch(FirstOf(1, 10), true);
  for (int i = 0; i < 1000 && cache->stats().prefetch_count < 10; ++i) {
    EXPECT_FALSE(cache->TryNext().value().has_value());
    EXPECT_LE(cache->Audit().loading, 3u);
  }
  EXPECT_EQ(cache->stats().prefetch_count, 10u);
  EXPECT_FALSE(cache->Next().value().has_value());
  EXPECT_EQ(RunPass(store_, *cache, FirstOf(1, 10)), 10u);
  EXPECT_EQ(cache->stats().prefetch_used_count, 10u);
}

TEST_F(ReadAhead, WhatIsForeseenFillsTheQueueAndLeavesHalfOfTheSlots) {
  auto queue = io::MakeFakeReadQueue({.depth = 20});
  auto cache = CreateCache(store_, *queue, {.slot_count = 48, .guess_depth = 3});
  cache->Begin({});
  cache->Prefetch(FirstOf(1, 24), false);
  EXPECT_EQ(cache->Audit().loading, 20u);
  ASSERT_TRUE(cache->Abandon().has_value());
  auto small = CreateCache(store_, *queue, {.slot_count = 12, .guess_depth = 3});
  small->Begin({});
  small->Prefetch(FirstOf(1, 24), false);
  EXPECT_EQ(small->Audit().loading, 6u);
  ASSERT_TRUE(small->Abandon().has_value());
  const SlotCounts counts = small->Audit();
  EXPECT_EQ(counts.loading, 0u);
  EXPECT_EQ(counts.resident, 6u);
}

TEST_F(ReadAhead, WithoutADepthOfTheirOwnGuessesFillTheQueue) {
  auto queue = io::MakeFakeReadQueue({.depth = 7});
  auto cache = CreateCache(store_, *queue, {.slot_count = 48});
  cache->Begin({});
  cache->Prefetch(FirstOf(1, 10), true);
  EXPECT_EQ(cache->Audit().loading, 7u);
  ASSERT_TRUE(cache->Abandon().has_value());
}

// Threads look at what has ended together: each finds its own damage, and the pass goes on.
TEST_F(ReadAhead, DamageAmongManyThatEndTogetherIsThatExpertsAlone) {
  ThreadPool pool(4);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    io::FakeReadOptions options{.seed = seed};
    options.damage = [&](const io::ReadRequest& request) {
      const uint64_t ordinal = request.offset / store_.slot_bytes();
      if (ordinal == 5 || ordinal == 17) request.into[3] ^= std::byte{0x10};
    };
    auto queue = io::MakeFakeReadQueue(options);
    auto cache = CreateCache(store_, *queue, {.slot_count = 48, .pool = &pool});
    std::vector<ReadyExpert> failed;
    EXPECT_EQ(RunPass(store_, *cache, FirstOf(0, 24), &failed), 22u);
    ASSERT_EQ(failed.size(), 2u);
    for (const ReadyExpert& expert : failed) {
      const std::string name = fmt::format("layer 0, expert {}:", expert.id.expert_index);
      EXPECT_TRUE(expert.id.expert_index == 5 || expert.id.expert_index == 17);
      EXPECT_NE(expert.error->message().find(name), std::string::npos) << expert.error->message();
    }
    EXPECT_EQ(cache->stats().failed_count, 2u);
    EXPECT_EQ(cache->Audit().resident, 22u);
    EXPECT_EQ(cache->Audit().free, 26u);
  }
}

TEST_F(ReadAhead, DamageThatTheSecondReadMendsIsCountedOnceForEach) {
  ThreadPool pool(4);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<int> read_counts(48);
    io::FakeReadOptions options{.seed = seed};
    options.damage = [&](const io::ReadRequest& request) {
      const uint64_t ordinal = request.offset / store_.slot_bytes();
      if (++read_counts[ordinal] == 1 && ordinal % 3 == 0) request.into[3] ^= std::byte{0x10};
    };
    auto queue = io::MakeFakeReadQueue(options);
    auto cache = CreateCache(store_, *queue, {.slot_count = 48, .pool = &pool});
    EXPECT_EQ(RunPass(store_, *cache, FirstOf(0, 24)), 24u);
    EXPECT_EQ(cache->stats().reread_count, 8u);
    EXPECT_EQ(cache->stats().failed_count, 0u);
  }
}

TEST_F(ReadAhead, AbandonedReadsThatEndTogetherLeaveNoSlotBehind) {
  ThreadPool pool(4);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    io::FakeReadOptions options{.seed = seed};
    options.damage = [&](const io::ReadRequest& request) {
      if (request.offset / store_.slot_bytes() == 7) request.into[3] ^= std::byte{0x10};
    };
    auto queue = io::MakeFakeReadQueue(options);
    auto cache = CreateCache(store_, *queue, {.slot_count = 40, .pool = &pool});
    cache->Begin(FirstOf(0, 16));
    cache->Prefetch(FirstOf(1, 20), false);
    ASSERT_TRUE(cache->Abandon().has_value());
    const SlotCounts counts = cache->Audit();
    EXPECT_EQ(counts.loading + counts.ready + counts.pinned, 0u);
    EXPECT_EQ(counts.resident, 35u);
    EXPECT_EQ(counts.free, 5u);
    EXPECT_EQ(queue->free_count(), 64u);
  }
}

}  // namespace
}  // namespace smoe::experts
