// Thousands of seeds of random passes over a drive that shuffles, fails, lies and changes its mind,
// compared with what a map of the store's bytes says must happen. A failure prints one seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "experts/expert_cache.h"
#include "experts/store_for_test.h"
#include "io/fake_read_queue.h"

namespace smoe::experts {
namespace {

bool Same(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

// What the drive did to one expert in this pass.
struct Mischief {
  bool read_failed = false;     // an errno that nothing mends
  bool direct_refused = false;  // EINVAL of a direct read, mended by buffered ones
  uint32_t damage_count = 0;    // reads with a flipped bit; one is mended by the second read
};

class Simulation {
 public:
  Simulation(TestStore& store, ThreadPool& pool, uint64_t seed) : store_(store), random_(seed) {
    store.ReturnToDirect();
    fault_one_in_ = Draw(3) == 0 ? 1 + Draw(30) : 0;
    damage_one_in_ = Draw(3) == 0 ? 1 + Draw(30) : 0;
    refuse_from_ = Draw(2) == 0 ? Draw(100) : UINT64_MAX;
    io::FakeReadOptions options;
    options.seed = random_();
    options.depth = queue_depth_ = static_cast<uint32_t>(1 + Draw(12));
    options.fault = [this](const io::ReadRequest& request) { return Fault(request); };
    options.damage = [this](const io::ReadRequest& request) { Damage(request); };
    queue_ = io::MakeFakeReadQueue(options);
    const uint32_t slots = static_cast<uint32_t>(1 + Draw(store.expert_count() + 2));
    const auto guess_depth = static_cast<uint32_t>(Draw(4));
    const uint32_t more = OneIn(2) ? static_cast<uint32_t>(Draw(5)) : 0;
    cache_ = std::move(*ExpertCache::Create(store, *queue_,
                                            {.slot_count = slots,
                                             .slot_capacity = slots + more,
                                             .guess_depth = guess_depth,
                                             .pool = OneIn(2) ? &pool : nullptr}));
    was_small_ = cache_->slot_count() < store.expert_count();
    if (OneIn(4)) cache_->TakePagesAhead(Draw(3) * store.slot_bytes());
  }
  // Reads under way call Fault and Damage until the cache has gone.
  ~Simulation() { cache_.reset(); }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  void Run() {
    const size_t pass_count = 1 + Draw(8);
    for (size_t pass = 0; pass < pass_count && !testing::Test::HasFailure(); ++pass) RunPass();
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }
  bool OneIn(uint64_t count) { return count != 0 && Draw(count) == 0; }
  Mischief& Of(const io::ReadRequest& request) {
    return mischief_[request.offset / store_.slot_bytes()];
  }

  int Fault(const io::ReadRequest& request) {
    if (request.fd == store_.direct_fd() && direct_count_++ >= refuse_from_) {
      Of(request).direct_refused = true;
      return EINVAL;
    }
    if (!OneIn(fault_one_in_)) return 0;
    Of(request).read_failed = true;
    return Draw(2) == 0 ? EIO : ENODATA;
  }

  void Damage(const io::ReadRequest& request) {
    if (!OneIn(damage_one_in_)) return;
    request.into[Draw(request.into.size())] ^= std::byte{1};
    ++Of(request).damage_count;
  }

  void RunPass() {
    // Reads that were foreseen in the last pass may be under way, with what befell them.
    if (cache_->Audit().loading == 0) {
      mischief_.assign(store_.expert_count(), {});
      has_foreseen_ = false;
    }
    // Between two passes, for the first one of a step.
    const bool foresaw = Draw(6) == 0;
    if (foresaw) Foresee();
    std::vector<uint32_t> ordinals(store_.expert_count());
    std::iota(ordinals.begin(), ordinals.end(), 0);
    std::shuffle(ordinals.begin(), ordinals.end(), random_);
    ordinals.resize(Draw(ordinals.size() + 1));
    wanted_.clear();
    for (const uint32_t ordinal : ordinals) wanted_.push_back(store_.IdOf(ordinal));

    const CacheStats before = cache_->stats();
    const uint32_t resident_count = cache_->Audit().resident;
    std::set<uint32_t> expected_hits;
    for (const uint32_t ordinal : ordinals) {
      if (resident_.count(ordinal) != 0) expected_hits.insert(ordinal);
    }
    cache_->Begin(wanted_);
    const bool foresees = Draw(4) == 0;
    if (foresees) Foresee();
    has_foreseen_ = has_foreseen_ || foresees || foresaw;
    const uint64_t hit_count = cache_->stats().hit_count - before.hit_count;
    EXPECT_LE(hit_count, resident_count);
    // What arrived unseen in an abandoned pass is resident, and the model does not know. With a
    // slot for every expert nothing is ever evicted, so the model knows all hits.
    if (!has_abandoned_) {
      EXPECT_LE(hit_count, expected_hits.size());
      if (cache_->slot_count() == store_.expert_count() && !was_small_) {
        EXPECT_EQ(hit_count, expected_hits.size());
      }
    }

    const bool abandons = Draw(12) == 0;
    size_t left = abandons ? Draw(wanted_.size() + 1) : wanted_.size() + 1;
    seen_.clear();
    while (left-- > 0 && Step()) {
    }
    if (abandons) {
      has_abandoned_ = true;
      EXPECT_TRUE(cache_->Abandon().has_value());
    } else {
      EXPECT_EQ(seen_.size(), wanted_.size());
    }
    while (!held_.empty()) ReleaseOne();
    // What was foreseen arrived unseen too, or is still under way.
    has_abandoned_ = has_abandoned_ || foresees || foresaw;
    if (foresees && Draw(2) == 0) {
      EXPECT_TRUE(cache_->Abandon().has_value());
    }
    const SlotCounts counts = cache_->Audit();
    EXPECT_EQ(counts.ready + counts.pinned, 0u);
    EXPECT_EQ(counts.free + counts.resident + counts.loading, cache_->slot_count());
    if (counts.loading == 0) {
      EXPECT_EQ(queue_->free_count(), queue_depth_);
    }
    if (Draw(4) == 0) Resize(counts);
  }

  void Resize(const SlotCounts& before) {
    const uint32_t limit = static_cast<uint32_t>(Draw(cache_->slot_capacity() + 2));
    was_small_ = was_small_ || limit < cache_->slot_count();
    EXPECT_TRUE(cache_->SetSlotLimit(limit).has_value());
    EXPECT_EQ(cache_->slot_count(), std::clamp(limit, 1U, cache_->slot_capacity()));
    const SlotCounts after = cache_->Audit();
    EXPECT_EQ(after.loading, 0u);
    EXPECT_EQ(after.free + after.resident, cache_->slot_count());
    EXPECT_GE(after.resident, std::min(before.resident, cache_->slot_count()));
    if (before.loading == 0) {
      EXPECT_EQ(after.resident, std::min(before.resident, cache_->slot_count()));
    } else {
      has_abandoned_ = true;  // what was under way arrived unseen
    }
  }

  // Experts of any layer, some of them wanted now.
  void Foresee() {
    std::vector<store::ExpertId> likely;
    for (uint32_t ordinal = 0; ordinal < store_.expert_count(); ++ordinal) {
      if (Draw(3) == 0) likely.push_back(store_.IdOf(ordinal));
    }
    cache_->Prefetch(likely, Draw(2) == 0);
  }

  // One expert of the pass; false after the last.
  bool Step() {
    while (held_.size() == cache_->slot_count() || (!held_.empty() && Draw(2) == 0)) ReleaseOne();
    Result<std::optional<ReadyExpert>> next =
        Draw(2) == 0 ? cache_->TryNext() : std::optional<ReadyExpert>();
    if (next && !*next) next = cache_->Next();
    if (!next || !*next) {
      EXPECT_TRUE(next.has_value());
      return false;
    }
    CheckExpert(**next);
    for (const ReadyExpert& held : held_) CheckBytes(held);
    cache_->Audit();
    return true;
  }

  void CheckExpert(const ReadyExpert& expert) {
    const uint32_t ordinal = *FindOrdinal(store_, expert.id);
    EXPECT_EQ(wanted_[expert.wanted_index], expert.id);
    EXPECT_TRUE(seen_.insert(ordinal).second) << "handed out twice";
    const Mischief& mischief = mischief_[ordinal];
    // An errno beside a refusal: which of the two landed first decides.
    // Two flipped bits may lie in two parts of the first read: then the second read is right.
    const bool may_fail = mischief.read_failed || mischief.damage_count >= 2;
    const bool must_fail = mischief.read_failed && !mischief.direct_refused;
    EXPECT_TRUE(may_fail || !expert.error) << expert.error->message();
    EXPECT_TRUE(!must_fail || has_foreseen_ || expert.error);
    if (expert.error) {
      resident_.erase(ordinal);
      return;
    }
    resident_.insert(ordinal);
    CheckBytes(expert);
    held_.push_back(expert);
  }

  void CheckBytes(const ReadyExpert& expert) {
    const tensor::ExpertWeights wanted = store_.Weights(expert.id);
    EXPECT_TRUE(Same(expert.weights.gate.data, wanted.gate.data));
    EXPECT_TRUE(Same(expert.weights.up.data, wanted.up.data));
    EXPECT_TRUE(Same(expert.weights.down.data, wanted.down.data));
  }

  void ReleaseOne() {
    std::swap(held_[Draw(held_.size())], held_.back());
    cache_->Release(held_.back());
    held_.pop_back();
  }

  TestStore& store_;
  std::mt19937_64 random_;
  uint64_t fault_one_in_ = 0;
  uint64_t damage_one_in_ = 0;
  uint64_t refuse_from_ = 0;
  uint64_t direct_count_ = 0;
  uint32_t queue_depth_ = 0;
  std::unique_ptr<io::ReadQueue> queue_;
  std::unique_ptr<ExpertCache> cache_;
  std::vector<store::ExpertId> wanted_;
  std::vector<Mischief> mischief_;  // by ordinal
  // Some of it may have befallen a foreseen read, which nobody hears of.
  bool has_foreseen_ = false;
  std::set<uint32_t> seen_;      // handed out in this pass
  std::set<uint32_t> resident_;  // delivered and not failed since
  std::vector<ReadyExpert> held_;
  bool has_abandoned_ = false;
  bool was_small_ = false;  // fewer slots than experts, at some time
};

// The thread sanitizer makes it fifty times slower.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeedStep = 10;
#else
constexpr uint64_t kSeedStep = 1;
#endif

void RunSeeds(uint32_t extent_count, bool direct_io, uint64_t seed_begin, uint64_t seed_end) {
  ThreadPool pool(3);
  TestStore store({.seed = seed_begin,
                   .layers = {{1, 7}, {2, 5}, {9, 3}},
                   .extent_count = extent_count,
                   .direct_io = direct_io});
  for (uint64_t seed = seed_begin; seed < seed_end; seed += kSeedStep) {
    Simulation(store, pool, seed).Run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

TEST(ExpertCacheSimulation, RandomPassesInOneReadEach) { RunSeeds(1, false, 0, 3000); }
TEST(ExpertCacheSimulation, RandomPassesInThreeReadsEach) { RunSeeds(3, false, 3000, 6000); }
TEST(ExpertCacheSimulation, RandomPassesWithDirectReads) { RunSeeds(1, true, 6000, 8000); }
TEST(ExpertCacheSimulation, RandomPassesWithThreeDirectReads) { RunSeeds(3, true, 8000, 10'000); }

}  // namespace
}  // namespace smoe::experts
