// What the drive does to the cache: stalls, files that shrink, limits. Real queues where they show
// more than the fake one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/store_for_test.h"
#include "io/bad_sector_for_test.h"
#include "io/fake_read_queue.h"
#include "io/file.h"

namespace smoe::experts {
namespace {

constexpr uint32_t kExperts = 16;

std::vector<store::ExpertId> AllExperts() {
  std::vector<store::ExpertId> ids;
  for (uint32_t i = 0; i < kExperts; ++i) ids.push_back({0, i});
  return ids;
}

std::unique_ptr<ExpertCache> CreateCache(TestStore& store, io::ReadQueue& queue, uint32_t slots) {
  auto cache = ExpertCache::Create(store, queue, {.slot_count = slots});
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

void ExpectNothingLeaked(const ExpertCache& cache) {
  const SlotCounts counts = cache.Audit();
  EXPECT_EQ(counts.loading + counts.ready + counts.pinned, 0u);
  EXPECT_EQ(counts.free + counts.resident, cache.slot_count());
}

// Experts in the order in which they came; those with an error are told apart.
struct Pass {
  std::vector<uint32_t> order;
  std::vector<std::string> errors;
};

Pass RunPass(TestStore& store, ExpertCache& cache) {
  Pass pass;
  cache.Begin(AllExperts());
  while (true) {
    auto next = cache.Next();
    if (!next) {
      ADD_FAILURE() << next.error().message();
      return pass;
    }
    if (!*next) return pass;
    if ((*next)->error) {
      pass.errors.push_back((*next)->error->message());
      continue;
    }
    const Bytes got = (*next)->weights.up.data;
    const Bytes expected = store.Weights((*next)->id).up.data;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()));
    pass.order.push_back((*next)->id.expert_index);
    cache.Release(**next);
  }
}

TEST(ReadFault, StalledReadIsHandedOutLastAndHoldsUpNoOther) {
  TestStore store({.layers = {{0, kExperts}}});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto queue =
        io::MakeFakeReadQueue({.seed = seed, .stall = [&](const io::ReadRequest& request) {
                                 return request.offset == 3 * store.slot_bytes() ? 1000u : 0u;
                               }});
    auto cache = CreateCache(store, *queue, 8);
    const Pass pass = RunPass(store, *cache);
    ASSERT_EQ(pass.order.size(), kExperts);
    EXPECT_EQ(pass.order.back(), 3u) << "seed " << seed;
    EXPECT_TRUE(pass.errors.empty());
    ExpectNothingLeaked(*cache);
  }
}

TEST(ReadFault, DriveThatStallsAndThenFailsCostsThoseExpertsAndNoSlot) {
  TestStore store({.layers = {{0, kExperts}}});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    io::FakeReadOptions options{.seed = seed, .depth = 4};
    options.stall = [&](const io::ReadRequest& request) {
      return request.offset / store.slot_bytes() % 3 == 0 ? 7u : 0u;
    };
    options.fault = [&](const io::ReadRequest& request) {
      return request.offset / store.slot_bytes() % 6 == 0 ? EIO : 0;
    };
    auto queue = io::MakeFakeReadQueue(options);
    auto cache = CreateCache(store, *queue, 5);
    const Pass pass = RunPass(store, *cache);
    EXPECT_EQ(pass.order.size(), 13u);  // 0, 6 and 12 are lost
    ASSERT_EQ(pass.errors.size(), 3u);
    for (const std::string& error : pass.errors) {
      EXPECT_NE(error.find("expert "), std::string::npos) << error;
      EXPECT_NE(error.find("Input/output error"), std::string::npos) << error;
    }
    EXPECT_EQ(cache->stats().failed_count, 3u);
    ExpectNothingLeaked(*cache);
  }
}

// Each of the real queues, whole and in pieces.
class RealReadFault : public testing::TestWithParam<std::string> {
 protected:
  Result<std::unique_ptr<io::ReadQueue>> Open() const {
    const std::string& name = GetParam();
    io::ReadQueue::Options options{.depth = 4, .thread_count = 2};
    if (name.ends_with("split")) options.piece_bytes = io::kDirectAlignment;
    return name.starts_with("uring") ? io::ReadQueue::OpenUring(options)
                                     : io::ReadQueue::OpenThreaded(options);
  }
};

TEST_P(RealReadFault, FileThatShrinksInUseFailsWhatIsGoneByNameAndRecovers) {
  // 3 * 64 * 64 * 4 = 49152 bytes an expert: twelve pieces where reads are split.
  TestStore store({.layers = {{0, kExperts}}, .hidden_size = 64, .intermediate_size = 64});
  auto queue = Open();
  if (!queue) GTEST_SKIP() << queue.error().message();
  auto cache = CreateCache(store, **queue, 3);
  EXPECT_EQ(RunPass(store, *cache).order.size(), kExperts);
  // In the middle of expert 10: it and those behind it are gone.
  const uint64_t kept_bytes = 10 * store.slot_bytes() + 20'000;
  ASSERT_EQ(truncate(store.path().c_str(), static_cast<off_t>(kept_bytes)), 0);
  const Pass cut = RunPass(store, *cache);
  // Up to three of the lost ones were in memory, and are served from there.
  EXPECT_GE(cut.order.size(), 10u);
  EXPECT_LE(cut.order.size(), 13u);
  EXPECT_EQ(cut.order.size() + cut.errors.size(), kExperts);
  for (const std::string& error : cut.errors) {
    EXPECT_NE(error.find(store.path()), std::string::npos) << error;
    EXPECT_NE(error.find("expert 1"), std::string::npos) << error;  // 10 to 15
  }
  ExpectNothingLeaked(*cache);
  store.RestoreFile();
  const Pass whole = RunPass(store, *cache);
  EXPECT_EQ(whole.order.size(), kExperts);
  EXPECT_TRUE(whole.errors.empty());
  ExpectNothingLeaked(*cache);
}

TEST_P(RealReadFault, ErrorOfTheKernelFailsThatExpertByNameAndNoOther) {
  TestStore store({.layers = {{0, kExperts}}, .hidden_size = 64, .intermediate_size = 64});
  auto real = Open();
  if (!real) GTEST_SKIP() << real.error().message();
  bool is_broken = true;
  io::BadSectorQueue queue(std::move(*real), [&](const io::ReadRequest& request) {
    return is_broken && request.offset == 5 * store.slot_bytes();
  });
  auto cache = CreateCache(store, queue, 3);
  for (uint64_t round = 1; round <= 10; ++round) {
    const Pass pass = RunPass(store, *cache);
    EXPECT_EQ(pass.order.size(), kExperts - 1);
    ASSERT_EQ(pass.errors.size(), 1u);
    EXPECT_NE(pass.errors[0].find("expert 5"), std::string::npos) << pass.errors[0];
    EXPECT_NE(pass.errors[0].find("Input/output error"), std::string::npos) << pass.errors[0];
    EXPECT_EQ(cache->stats().failed_count, round);
    ExpectNothingLeaked(*cache);
  }
  is_broken = false;
  EXPECT_EQ(RunPass(store, *cache).order.size(), kExperts);
}

INSTANTIATE_TEST_SUITE_P(Queues, RealReadFault,
                         testing::Values("uring", "threads", "uring_split", "threads_split"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace smoe::experts
