#include "experts/expert_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "experts/allocation_count_for_test.h"
#include "experts/read_damage.h"
#include "experts/store_for_test.h"
#include "io/fake_read_queue.h"

namespace smoe::experts {
namespace {

using store::ExpertId;

bool Same(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

std::unique_ptr<ExpertCache> CreateCache(TestStore& store, io::ReadQueue& queue, uint32_t slots,
                                         Eviction eviction = Eviction::kLru) {
  Result<std::unique_ptr<ExpertCache>> cache =
      ExpertCache::Create(store, queue, {.slot_count = slots, .eviction = eviction});
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

// Runs a pass, releasing each expert at once; returns the experts in the order of their arrival.
std::vector<ReadyExpert> RunPass(TestStore& store, ExpertCache& cache,
                                 const std::vector<ExpertId>& wanted) {
  std::vector<ReadyExpert> experts;
  cache.Begin(wanted);
  for (;;) {
    Result<std::optional<ReadyExpert>> next = cache.Next();
    EXPECT_TRUE(next.has_value());
    if (!next || !*next) return experts;
    ReadyExpert& expert = **next;
    EXPECT_EQ(wanted[expert.wanted_index], expert.id);
    if (!expert.error) {
      EXPECT_TRUE(Same(expert.weights.gate.data, store.Weights(expert.id).gate.data));
      EXPECT_TRUE(Same(expert.weights.down.data, store.Weights(expert.id).down.data));
      cache.Release(expert);
    }
    experts.push_back(expert);
  }
}

std::vector<ExpertId> Experts(uint32_t layer, const std::vector<uint32_t>& experts) {
  std::vector<ExpertId> ids;
  for (const uint32_t expert : experts) ids.push_back({layer, expert});
  return ids;
}

TEST(ExpertCache, DeliversEachWantedExpertOnceAlsoWhenSlotsAreFew) {
  TestStore store({.layers = {{1, 8}, {4, 5}}, .extent_count = 3});
  for (const uint32_t slots : {1u, 2u, 7u, 13u, 100u}) {
    for (const uint32_t depth : {1u, 2u, 64u}) {
      auto queue = io::MakeFakeReadQueue({.seed = slots, .depth = depth});
      auto cache = CreateCache(store, *queue, slots);
      EXPECT_EQ(cache->slot_count(), std::min(slots, 13u));
      EXPECT_EQ(RunPass(store, *cache, Experts(1, {0, 1, 2, 3, 4, 5, 6, 7})).size(), 8u);
      EXPECT_EQ(RunPass(store, *cache, Experts(4, {4, 0})).size(), 2u);
      EXPECT_EQ(cache->stats().hit_count, 0u);
      EXPECT_EQ(cache->stats().miss_count, 10u);
      EXPECT_EQ(cache->stats().read_bytes, 10 * store.Content({1, 0}).size());
    }
  }
}

TEST(ExpertCache, PassOverNothingEndsAtOnce) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 2);
  EXPECT_TRUE(RunPass(store, *cache, {}).empty());
  EXPECT_FALSE(cache->Next().value().has_value());
}

TEST(ExpertCache, ExpertsInMemoryComeFirst) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({.seed = 3});
  auto cache = CreateCache(store, *queue, 8);
  RunPass(store, *cache, Experts(0, {5, 6}));
  const std::vector<ReadyExpert> experts = RunPass(store, *cache, Experts(0, {0, 6, 1, 5, 2}));
  ASSERT_EQ(experts.size(), 5u);
  EXPECT_EQ(experts[0].id.expert_index, 6u);
  EXPECT_EQ(experts[1].id.expert_index, 5u);
  EXPECT_EQ(cache->stats().hit_count, 2u);
}

TEST(ExpertCache, TryNextTakesWhatIsThereAndNeverWaits) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({.seed = 6});
  auto cache = CreateCache(store, *queue, 8);
  EXPECT_FALSE(cache->TryNext().value().has_value());  // before the first pass
  RunPass(store, *cache, Experts(0, {5, 6}));
  const uint64_t wait_ns = cache->stats().wait_ns;
  cache->Begin(Experts(0, {0, 6, 1, 5, 2}));
  std::vector<ReadyExpert> held;
  for (const uint32_t expected : {6u, 5u}) {
    held.push_back(std::move(*cache->TryNext().value()));
    EXPECT_EQ(held.back().id.expert_index, expected);
  }
  EXPECT_EQ(cache->Audit().loading, 3u) << "hits are handed out without a look at the queue";
  // The fake drive ends reads when it likes: TryNext finds none or some, but does not wait.
  while (held.size() < 5) {
    std::optional<ReadyExpert> next = cache->TryNext().value();
    if (next) held.push_back(std::move(*next));
  }
  EXPECT_EQ(cache->stats().wait_ns, wait_ns);
  EXPECT_FALSE(cache->TryNext().value().has_value());
  EXPECT_FALSE(cache->Next().value().has_value());
  for (const ReadyExpert& expert : held) cache->Release(expert);
}

TEST(ExpertCache, TryNextHasNothingWhileTheCallerHoldsEverySlot) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({.seed = 8});
  auto cache = CreateCache(store, *queue, 2);
  cache->Begin(Experts(0, {0, 1, 2, 3}));
  const ReadyExpert first = std::move(*cache->Next().value());
  const ReadyExpert second = std::move(*cache->Next().value());
  EXPECT_FALSE(cache->TryNext().value().has_value());
  cache->Release(first);  // starts the read of the third
  std::optional<ReadyExpert> third;
  while (!third) third = cache->TryNext().value();
  EXPECT_TRUE(Same(second.weights.up.data, store.Weights(second.id).up.data));
  EXPECT_TRUE(Same(third->weights.up.data, store.Weights(third->id).up.data));
  cache->Release(second);
  cache->Release(*third);
  const ReadyExpert fourth = std::move(*cache->Next().value());
  EXPECT_FALSE(cache->Next().value().has_value());
  cache->Release(fourth);
}

TEST(ExpertCache, LeastRecentlyUsedIsEvictedAndNoOther) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 3);
  const auto hits = [&](uint32_t expert) {
    const uint64_t before = cache->stats().hit_count;
    RunPass(store, *cache, Experts(0, {expert}));
    return cache->stats().hit_count - before;
  };
  EXPECT_EQ(hits(0) + hits(1) + hits(2), 0u);
  EXPECT_EQ(hits(0), 1u);  // now 1 is the oldest
  EXPECT_EQ(hits(3), 0u);  // takes the place of 1
  EXPECT_EQ(hits(0) + hits(2) + hits(3), 3u);
  EXPECT_EQ(hits(1), 0u);  // takes the place of 0
  EXPECT_EQ(hits(2) + hits(3) + hits(1), 3u);
  EXPECT_EQ(hits(0), 0u);
}

TEST(ExpertCache, FewerSlotsKeepTheExpertsOfMostWorthAndGiveTheMemoryBack) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 6);
  for (uint32_t i = 0; i < 6; ++i) RunPass(store, *cache, Experts(0, {i}));
  RunPass(store, *cache, Experts(0, {1}));  // now 0, 2 and 3 are the oldest
  ASSERT_TRUE(cache->SetSlotLimit(3));
  EXPECT_EQ(cache->slot_count(), 3u);
  EXPECT_EQ(cache->slot_capacity(), 6u);
  EXPECT_EQ(cache->Audit().resident, 3u);
  const uint64_t before = cache->stats().hit_count;
  for (const uint32_t i : {1u, 4u, 5u}) {
    const auto experts = RunPass(store, *cache, Experts(0, {i}));
    EXPECT_LT(experts.at(0).slot, 3u);
  }
  EXPECT_EQ(cache->stats().hit_count - before, 3u);
  RunPass(store, *cache, Experts(0, {2}));  // takes the place of 1
  RunPass(store, *cache, Experts(0, {1}));
  EXPECT_EQ(cache->stats().hit_count - before, 3u);

  ASSERT_TRUE(cache->SetSlotLimit(100));  // no more than there were
  EXPECT_EQ(cache->slot_count(), 6u);
  RunPass(store, *cache, Experts(0, {0, 1, 2, 3, 4, 5}));
  RunPass(store, *cache, Experts(0, {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(cache->Audit().resident, 6u);
  ASSERT_TRUE(cache->SetSlotLimit(0));  // one is the least
  EXPECT_EQ(cache->slot_count(), 1u);
  EXPECT_EQ(RunPass(store, *cache, Experts(0, {0, 1, 2})).size(), 3u);
}

TEST(ExpertCache, SlotsBehindTheFirstLimitComeWhenAllowed) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = ExpertCache::Create(store, *queue, {.slot_count = 2, .slot_capacity = 5}).value();
  EXPECT_EQ(cache->slot_count(), 2u);
  EXPECT_EQ(cache->slot_capacity(), 5u);
  RunPass(store, *cache, Experts(0, {0, 1, 2}));
  EXPECT_EQ(cache->Audit().resident, 2u);
  ASSERT_TRUE(cache->SetSlotLimit(4));
  RunPass(store, *cache, Experts(0, {0, 1, 2, 3}));
  EXPECT_EQ(cache->Audit().resident, 4u);
  ASSERT_TRUE(cache->SetSlotLimit(9));
  EXPECT_EQ(cache->slot_count(), 5u);
}

// 0 was wanted ten times, the others once and later.
TEST(ExpertCache, FrequencyKeepsWhatIsOftenWanted) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 2, Eviction::kFrequency);
  for (int i = 0; i < 10; ++i) RunPass(store, *cache, Experts(0, {0}));
  for (uint32_t i = 1; i < 5; ++i) RunPass(store, *cache, Experts(0, {i}));
  const uint64_t before = cache->stats().hit_count;
  RunPass(store, *cache, Experts(0, {0}));
  EXPECT_EQ(cache->stats().hit_count - before, 1u);
  EXPECT_GT(cache->Worth({0, 0}), cache->Worth({0, 1}));
  EXPECT_EQ(cache->Worth({0, 7}), 0.0);
}

// The gauge has room for all eight: only their first reads would be left.
TEST(ExpertCache, GaugeCountsWhatOneMoreGibibyteWouldLeave) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 2);
  EXPECT_EQ(cache->gauge_slot_count(), 8u);
  for (int i = 0; i < 5; ++i) RunPass(store, *cache, Experts(0, {0, 1, 2, 3}));
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.gauge_miss_count, 4u);
  EXPECT_GT(stats.miss_count, 4u);
  EXPECT_EQ(stats.gauge_saved_bytes, (stats.miss_count - 4) * store.slot_bytes());
}

// Runs a pass, and then what was foreseen in it.
std::vector<ReadyExpert> RunPassThatForesees(TestStore& store, ExpertCache& cache,
                                             const std::vector<ExpertId>& wanted,
                                             const std::vector<ExpertId>& likely) {
  std::vector<ReadyExpert> experts;
  cache.Begin(wanted);
  cache.Prefetch(likely, false);
  while (auto next = cache.Next().value()) {
    EXPECT_FALSE(next->error.has_value());
    if (!next->error) {
      EXPECT_TRUE(Same(next->weights.up.data, store.Weights(next->id).up.data));
      cache.Release(*next);
    }
    experts.push_back(*next);
  }
  return experts;
}

TEST(ExpertCache, WhatWasForeseenNeedsNoRead) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 8);
  EXPECT_EQ(RunPassThatForesees(store, *cache, Experts(0, {0, 1}), Experts(1, {2, 3, 4})).size(),
            2u);
  RunPass(store, *cache, Experts(1, {2, 3}));
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.prefetch_count, 3u);
  EXPECT_EQ(stats.prefetch_used_count, 2u);
  EXPECT_EQ(stats.prefetch_wasted_count, 1u);
  EXPECT_EQ(stats.hit_count, 0u);  // true residents only
  EXPECT_EQ(stats.read_bytes, 5 * 3 * 8 * 8 * sizeof(float));
  RunPass(store, *cache, Experts(1, {2, 3, 4}));
  EXPECT_EQ(cache->stats().hit_count, 3u);
  EXPECT_EQ(cache->Audit().resident, 5u);
}

// The drive gets what the pass wants before what is foreseen, though that was known first.
TEST(ExpertCache, DemandIsReadBeforeWhatIsForeseen) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  std::vector<uint64_t> offsets;
  auto queue = io::MakeFakeReadQueue({.depth = 2, .fault = [&](const io::ReadRequest& request) {
                                        offsets.push_back(request.offset / store.slot_bytes());
                                        return 0;
                                      }});
  auto cache = CreateCache(store, *queue, 16);
  RunPassThatForesees(store, *cache, Experts(0, {0, 1, 2, 3, 4}), Experts(1, {0, 1}));
  EXPECT_TRUE(cache->Abandon().has_value());
  EXPECT_EQ(offsets, (std::vector<uint64_t>{0, 1, 2, 3, 4, 8, 9}));
}

TEST(ExpertCache, WhatIsForeseenTakesHalfOfTheSlotsAtMostAndStaysUntilTheNextPass) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 4);
  RunPassThatForesees(store, *cache, Experts(0, {0, 1, 2, 3}), Experts(1, {0, 1, 2, 3}));
  EXPECT_EQ(cache->stats().prefetch_count, 2u);
  // Room for 2 and 3 is made by the experts of layer 0.
  RunPass(store, *cache, Experts(1, {0, 1, 2, 3}));
  EXPECT_EQ(cache->stats().prefetch_used_count, 2u);
  EXPECT_EQ(cache->stats().miss_count, 4u + 2u);
  RunPass(store, *cache, Experts(1, {0, 1, 2, 3}));
  EXPECT_EQ(cache->stats().hit_count, 4u);
}

TEST(ExpertCache, AFailedForeseenReadIsTriedAgainOnDemand) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  int failures_left = 1;
  auto queue = io::MakeFakeReadQueue({.fault = [&](const io::ReadRequest& request) {
    const bool fails = request.offset >= 8 * store.slot_bytes() && failures_left-- > 0;
    return fails ? EIO : 0;
  }});
  auto cache = CreateCache(store, *queue, 8);
  RunPassThatForesees(store, *cache, Experts(0, {0}), Experts(1, {5}));
  ASSERT_TRUE(cache->Abandon().has_value());
  EXPECT_EQ(cache->Audit().free, 7u);
  const auto experts = RunPass(store, *cache, Experts(1, {5}));
  ASSERT_EQ(experts.size(), 1u);
  EXPECT_FALSE(experts[0].error.has_value());
  EXPECT_EQ(cache->stats().failed_count, 0u);
  EXPECT_EQ(cache->stats().prefetch_wasted_count, 1u);
}

// The queue still writes into the slab when the pass is over.
TEST(ExpertCache, ACacheMayGoWhileForeseenReadsAreUnderWay) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 16);
  RunPassThatForesees(store, *cache, Experts(0, {0}), Experts(1, {0, 1, 2, 3, 4, 5}));
  EXPECT_LT(queue->free_count(), 64u);
  cache.reset();
  EXPECT_EQ(queue->free_count(), 64u);
}

TEST(ExpertCache, WantedExpertIsNotEvictedBeforeItIsHandedOut) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 2);
  RunPass(store, *cache, Experts(0, {6, 7}));
  // 6 is the oldest, and the reads of the others wait for slots.
  RunPass(store, *cache, Experts(0, {0, 1, 2, 6}));
  EXPECT_EQ(cache->stats().hit_count, 1u);
  EXPECT_EQ(cache->stats().miss_count, 5u);
}

TEST(ExpertCache, HeldExpertsStayWhereTheyAreWhileOthersPassThrough) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({.seed = 5});
  auto cache = CreateCache(store, *queue, 3);
  cache->Begin(Experts(0, {0, 1, 2, 3, 4, 5, 6, 7}));
  const ReadyExpert first = std::move(*cache->Next().value());
  const ReadyExpert second = std::move(*cache->Next().value());
  for (int i = 0; i < 6; ++i) {
    const ReadyExpert other = std::move(*cache->Next().value());
    EXPECT_EQ(cache->Audit().pinned, 3u);
    EXPECT_TRUE(Same(first.weights.up.data, store.Weights(first.id).up.data));
    EXPECT_TRUE(Same(second.weights.up.data, store.Weights(second.id).up.data));
    EXPECT_TRUE(Same(other.weights.up.data, store.Weights(other.id).up.data));
    cache->Release(other);
  }
  EXPECT_FALSE(cache->Next().value().has_value());
  cache->Release(second);
  cache->Release(first);
  EXPECT_EQ(cache->Audit().resident, 3u);
}

TEST(ExpertCache, FailedReadIsThatExpertsErrorAndItsSlotIsFreeAgain) {
  TestStore store({.extent_count = 3});
  const uint64_t bad_offset = 3 * store.slot_bytes();
  io::FakeReadOptions options{.seed = 7};
  options.fault = [&](const io::ReadRequest& request) {
    return request.offset >= bad_offset && request.offset < bad_offset + 4096 ? EIO : 0;
  };
  auto queue = io::MakeFakeReadQueue(options);
  auto cache = CreateCache(store, *queue, 2);
  for (int round = 1; round <= 20; ++round) {
    int failed_count = 0;
    for (const ReadyExpert& expert : RunPass(store, *cache, Experts(0, {0, 3, 1, 2}))) {
      if (!expert.error) continue;
      ++failed_count;
      EXPECT_EQ(expert.id.expert_index, 3u);
      EXPECT_EQ(expert.error->code(), ErrorCode::kIo);
      const std::string& message = expert.error->message();
      EXPECT_EQ(message.find(store.path() + ": layer 0, expert 3: reading 256 bytes at offset "),
                0u)
          << message;
      EXPECT_NE(message.find("Input/output error"), std::string::npos) << message;
    }
    EXPECT_EQ(failed_count, 1);
    EXPECT_EQ(cache->stats().failed_count, static_cast<uint64_t>(round));
    const SlotCounts counts = cache->Audit();
    EXPECT_EQ(counts.free + counts.resident, 2u);
  }
}

TEST(ExpertCache, FileThatWasCutShortNamesWantedAndGot) {
  TestStore store({});
  const uint64_t size = store.Content({0, 0}).size();
  const uint64_t offset = 5 * store.slot_bytes();
  ASSERT_EQ(truncate(store.path().c_str(), static_cast<off_t>(offset + 100)), 0);
  auto queue = std::move(*io::ReadQueue::OpenThreaded({.depth = 4, .thread_count = 2}));
  auto cache = CreateCache(store, *queue, 4);
  const std::vector<ReadyExpert> experts = RunPass(store, *cache, Experts(0, {5}));
  ASSERT_EQ(experts.size(), 1u);
  ASSERT_TRUE(experts[0].error.has_value());
  EXPECT_EQ(experts[0].error->code(), ErrorCode::kCorrupt);
  EXPECT_EQ(
      experts[0].error->message(),
      fmt::format("{}: layer 0, expert 5: wanted {} bytes at offset {}, got 100: the file ends "
                  "at {} (truncated?)",
                  store.path(), size, offset, offset + 100));
}

TEST(ExpertCache, FlippedBitIsCaughtByAdmissionAndReadAgainNextTime) {
  TestStore store({});
  bool is_damaging = true;
  io::FakeReadOptions options;
  options.damage = [&](const io::ReadRequest& request) {
    if (is_damaging) request.into[request.into.size() - 1] ^= std::byte{0x10};
  };
  auto queue = io::MakeFakeReadQueue(options);
  auto cache = CreateCache(store, *queue, 2);
  const std::vector<ReadyExpert> damaged = RunPass(store, *cache, Experts(0, {2}));
  ASSERT_TRUE(damaged.at(0).error.has_value());
  EXPECT_EQ(damaged[0].error->code(), ErrorCode::kCorrupt);
  is_damaging = false;
  EXPECT_FALSE(RunPass(store, *cache, Experts(0, {2})).at(0).error.has_value());
  EXPECT_EQ(cache->stats().hit_count, 0u);
}

TEST(ExpertCache, ReadThatIsWrongOnceIsReadAgainAndCounted) {
  TestStore store({.extent_count = 3});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    int damage_count = 0;
    int read_count = 0;
    io::FakeReadOptions options{.seed = seed, .depth = 2};
    options.damage = [&](const io::ReadRequest& request) {
      ++read_count;
      const bool is_wanted = request.offset / store.slot_bytes() == 2;
      if (is_wanted && damage_count++ == 0) request.into[0] ^= std::byte{0x10};
    };
    auto queue = io::MakeFakeReadQueue(options);
    auto cache = CreateCache(store, *queue, 2);
    const std::vector<ReadyExpert> experts = RunPass(store, *cache, Experts(0, {0, 1, 2, 3}));
    ASSERT_EQ(experts.size(), 4u);
    for (const ReadyExpert& expert : experts) EXPECT_FALSE(expert.error.has_value());
    EXPECT_EQ(read_count, 5 * 3);  // all extents of one expert twice
    EXPECT_EQ(cache->stats().reread_count, 1u);
    EXPECT_EQ(cache->stats().failed_count, 0u);
    EXPECT_EQ(cache->Audit().loading, 0u);
  }
}

TEST(ExpertCache, ReadThatIsWrongTwiceFailsByNameAndIsReadNoThirdTime) {
  TestStore store({});
  int read_count = 0;
  io::FakeReadOptions options{.seed = 3};
  options.damage = [&](const io::ReadRequest& request) {
    ++read_count;
    request.into[0] ^= std::byte{0x10};
  };
  auto queue = io::MakeFakeReadQueue(options);
  auto cache = CreateCache(store, *queue, 2);
  const std::vector<ReadyExpert> experts = RunPass(store, *cache, Experts(0, {2}));
  ASSERT_TRUE(experts.at(0).error.has_value());
  EXPECT_EQ(experts[0].error->code(), ErrorCode::kCorrupt);
  EXPECT_NE(experts[0].error->message().find("layer 0, expert 2"), std::string::npos);
  EXPECT_EQ(read_count, 2);
  EXPECT_EQ(cache->stats().reread_count, 0u);
  EXPECT_EQ(cache->stats().failed_count, 1u);
}

TEST(ExpertCache, WrongReadThatNobodyWantsYetIsReadAgainToo) {
  TestStore store({});
  int read_count = 0;
  io::FakeReadOptions options{.seed = 5};
  options.damage = [&](const io::ReadRequest& request) {
    if (read_count++ == 0) request.into[0] ^= std::byte{0x10};
  };
  auto queue = io::MakeFakeReadQueue(options);
  auto cache = CreateCache(store, *queue, 2);
  cache->ReadWhenIdle(Experts(0, {1}));
  const std::vector<ReadyExpert> experts = RunPass(store, *cache, Experts(0, {1}));
  EXPECT_FALSE(experts.at(0).error.has_value());
  EXPECT_EQ(read_count, 2);
  EXPECT_EQ(cache->stats().reread_count, 1u);
}

TEST(ReadDamage, SaysWhichPagesDifferAndWhichAreZeros) {
  std::vector<std::byte> right(4 * 4096 + 100, std::byte{7});
  std::vector<std::byte> wrong = right;
  EXPECT_EQ(ReadDamageText(wrong, right), "the bytes were the same");
  std::fill(wrong.begin() + 4096, wrong.begin() + 8192, std::byte{0});
  wrong[4 * 4096] = std::byte{6};
  EXPECT_EQ(ReadDamageText(wrong, right),
            "2 of 5 pages differed, bytes 4096 to 16484, 1 of them read as zeros");
}

TEST(ExpertCache, DirectReadsRefusedInMidRunGoOnBuffered) {
  TestStore store({.layers = {{0, 40}}, .extent_count = 3, .direct_io = true});
  int direct_count = 0;
  io::FakeReadOptions options{.seed = 9};
  options.fault = [&](const io::ReadRequest& request) {
    return request.fd == store.direct_fd() && ++direct_count >= 50 ? EINVAL : 0;
  };
  auto queue = io::MakeFakeReadQueue(options);
  auto cache = CreateCache(store, *queue, 12);
  std::vector<ExpertId> wanted;
  for (uint32_t expert = 0; expert < 40; ++expert) wanted.push_back({0, expert});
  const std::vector<ReadyExpert> experts = RunPass(store, *cache, wanted);
  EXPECT_EQ(experts.size(), 40u);
  for (const ReadyExpert& expert : experts) EXPECT_FALSE(expert.error.has_value());
  EXPECT_EQ(store.fallback_count(), 1);
  EXPECT_EQ(cache->stats().failed_count, 0u);
  EXPECT_EQ(cache->stats().miss_count, 40u);
}

TEST(ExpertCache, InvalidArgumentFromBufferedReadsIsAnErrorAndNotRetriedForEver) {
  TestStore store({.direct_io = true});
  io::FakeReadOptions options;
  options.fault = [](const io::ReadRequest&) { return EINVAL; };
  auto queue = io::MakeFakeReadQueue(options);
  auto cache = CreateCache(store, *queue, 2);
  for (const ReadyExpert& expert : RunPass(store, *cache, Experts(0, {0, 1, 2}))) {
    EXPECT_TRUE(expert.error.has_value());
  }
  EXPECT_EQ(cache->stats().failed_count, 3u);
}

TEST(ExpertCache, AbandonKeepsWhatArrivedAndNothingIsInFlightAfterIt) {
  TestStore store({.extent_count = 3});
  auto queue = io::MakeFakeReadQueue({.seed = 4, .depth = 4});
  auto cache = CreateCache(store, *queue, 4);
  cache->Begin(Experts(0, {0, 1, 2, 3, 4, 5}));
  const ReadyExpert first = std::move(*cache->Next().value());
  ASSERT_TRUE(cache->Abandon().has_value());
  EXPECT_EQ(queue->free_count(), 4u);
  EXPECT_EQ(cache->Audit().loading, 0u);
  cache->Release(first);
  EXPECT_FALSE(cache->Next().value().has_value());
  const std::vector<ReadyExpert> again = RunPass(store, *cache, {first.id});
  EXPECT_FALSE(again.at(0).error.has_value());
  EXPECT_EQ(cache->stats().hit_count, 1u);
}

// A ring that the kernel has taken away.
class BrokenQueue final : public io::ReadQueue {
 public:
  const char* name() const override { return "broken"; }
  uint32_t free_count() const override { return 4; }
  void Push(const io::ReadRequest&) override {}
  Status Submit() override { return Ok(); }
  Result<size_t> Reap(std::span<io::ReadDone>, size_t) override { return Io("ring: gone"); }
};

TEST(ExpertCache, BrokenQueueEndsEveryPassWithItsReason) {
  TestStore store({});
  BrokenQueue queue;
  auto cache = CreateCache(store, queue, 4);
  for (int round = 0; round < 3; ++round) {
    cache->Begin(Experts(0, {1, 2}));
    const auto next = cache->Next();
    ASSERT_FALSE(next.has_value());
    EXPECT_EQ(next.error().message(), "ring: gone");
    EXPECT_FALSE(cache->TryNext().has_value());
    EXPECT_FALSE(cache->Abandon().has_value());
  }
}

TEST(ExpertCache, BrokenQueueThatPollMeetsEndsTheNextPassWithItsReason) {
  TestStore store({});
  BrokenQueue queue;
  auto cache = CreateCache(store, queue, 4);
  cache->Poll();  // no read is under way: the queue is not asked
  cache->Prefetch(Experts(0, {1}), false);
  cache->Poll();
  cache->Poll();
  cache->Begin(Experts(0, {2}));
  const auto next = cache->Next();
  ASSERT_FALSE(next.has_value());
  EXPECT_EQ(next.error().message(), "ring: gone");
}

TEST(ExpertCache, PassesAllocateNothing) {
  TestStore store({.layers = {{0, 30}}, .extent_count = 3});
  auto queue = io::MakeFakeReadQueue({.seed = 2, .depth = 8});
  auto cache = CreateCache(store, *queue, 5);
  std::vector<ExpertId> wanted;
  for (uint32_t expert = 0; expert < 30; ++expert) wanted.push_back({0, expert});
  const uint64_t before = AllocationCount();
  uint64_t delivered_count = 0;
  for (int pass = 0; pass < 3; ++pass) {
    cache->Begin(wanted);
    for (auto next = cache->Next(); next.has_value() && next->has_value(); next = cache->Next()) {
      cache->Release(**next);
      ++delivered_count;
    }
  }
  EXPECT_EQ(AllocationCount(), before);
  EXPECT_EQ(delivered_count, 90u);
}

TEST(ExpertCache, ImpossibleSizesAreRefusedWithNumbers) {
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  const auto none = ExpertCache::Create(store, *queue, {.slot_count = 0});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalid);
}

TEST(ExpertCache, MisuseIsABug) {
  // A fork, not a new process: that would leave its store's file behind.
  GTEST_FLAG_SET(death_test_style, "fast");
  TestStore store({});
  auto queue = io::MakeFakeReadQueue({});
  auto cache = CreateCache(store, *queue, 2);
  EXPECT_DEATH(cache->Begin(Experts(0, {1, 1})), "");
  EXPECT_DEATH(cache->Begin(Experts(0, {8})), "ordinal");
  cache->Begin(Experts(0, {1, 2, 3}));
  const ReadyExpert first = std::move(*cache->Next().value());
  EXPECT_DEATH(cache->Begin(Experts(0, {1})), "is_in_pass_");
  const ReadyExpert second = std::move(*cache->Next().value());
  EXPECT_DEATH(static_cast<void>(cache->Next()), "in_flight_count_");
  cache->Release(first);
  EXPECT_DEATH(cache->Release(first), "kPinned");
  cache->Release(second);
}

}  // namespace
}  // namespace smoe::experts
