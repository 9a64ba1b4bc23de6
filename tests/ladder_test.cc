// All sizes of the expert cache, from one slot more than a token's experts up to all of them, give
// the same bits: on the bundled model and on a record store, and on request on any other, as
//
//   SMOE_LADDER_MODEL=synth12.smoe cross_test --gtest_filter='*LadderOnRequest*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "model/streamed_model_for_test.h"

namespace smoe {
namespace {

struct Source {
  std::string path;
  store::ModelFilesOptions options = {};
  size_t prompt_tokens = 40;
  size_t step_tokens = 24;  // one by one, behind the prompt
};

// Where a rung's time went, for people.
struct Climbed {
  std::vector<float> logits;
  double seconds = 0;
  experts::CacheStats stats;
};

// What a hot set of another run might say, all of it wrong: any worth, any order.
void WarmUp(model::StreamedModel& streamed, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> worths(streamed.files.experts->expert_count());
  for (double& worth : worths) worth = static_cast<double>(random() % 1000) / 1000;
  std::vector<store::ExpertId> ids = store::AllExperts(*streamed.files.experts);
  std::shuffle(ids.begin(), ids.end(), random);
  streamed.cache->Recall(worths);
  streamed.cache->ReadWhenIdle(ids);
}

// Logits of the prompt's last token and of each token behind it.
Result<Climbed> Climb(const Source& source, uint32_t slots, bool is_warm) {
  model::StreamSetup setup;
  setup.arithmetic = experts::Arithmetic::kInt8;
  setup.slot_count = slots;
  SMOE_TRY_ASSIGN(const auto streamed, model::OpenStreamed(source.path, source.options, setup));
  if (is_warm) WarmUp(*streamed, slots);
  const uint32_t vocab = streamed->files.config.vocab_size;
  std::vector<uint32_t> tokens(source.prompt_tokens + source.step_tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<uint32_t>((i * i * 31 + i * 7 + 3) % vocab);
  }
  model::KvSequence kv = streamed->kv->NewSequence();
  Climbed climbed;
  const Stopwatch stopwatch;
  for (size_t first = 0; first < tokens.size();) {
    const size_t count = first == 0 ? source.prompt_tokens : 1;
    const model::SequenceRows rows = {&kv, std::span(tokens).subspan(first, count),
                                      model::SequenceRows::Logits::kLast};
    SMOE_TRY_ASSIGN(const model::StepResult result, streamed->model->Step({&rows, 1}, nullptr));
    if (!result.failures.empty()) return Unexpected(result.failures[0].error);
    climbed.logits.insert(climbed.logits.end(), result.logits.begin(), result.logits.end());
    first += count;
  }
  climbed.seconds = stopwatch.seconds();
  climbed.stats = streamed->cache->stats();
  return climbed;
}

std::vector<uint32_t> Rungs(uint32_t top_k, uint32_t expert_count) {
  std::vector<uint32_t> rungs = {top_k + 1, top_k + 2, top_k + 3};
  while (rungs.back() < expert_count) {
    rungs.push_back(std::min(expert_count, rungs.back() + rungs.back() / 2));
  }
  return rungs;
}

void ExpectTheSameOnEveryRung(const Source& source, bool tells) {
  const auto files = store::OpenModelFiles(source.path, source.options);
  ASSERT_TRUE(files) << files.error().message();
  const uint32_t expert_count = files->experts->expert_count();
  const auto expected = Climb(source, expert_count, false);
  ASSERT_TRUE(expected) << expected.error().message();
  ASSERT_FALSE(expected->logits.empty());
  for (const uint32_t slots : Rungs(files->config.num_experts_per_tok, expert_count)) {
    for (const bool is_warm : {false, true}) {
      const auto found = Climb(source, slots, is_warm);
      ASSERT_TRUE(found) << found.error().message();
      ASSERT_EQ(found->logits.size(), expected->logits.size());
      EXPECT_EQ(std::memcmp(found->logits.data(), expected->logits.data(),
                            expected->logits.size() * sizeof(float)),
                0)
          << slots << " slots, " << (is_warm ? "warm" : "cold");
      if (!tells) continue;
      fmt::print("{} of {} slots, {}: {:.2f} s, {} hits, {} misses, {} read at idle, {} used\n",
                 slots, expert_count, is_warm ? "warm" : "cold", found->seconds,
                 found->stats.hit_count, found->stats.miss_count, found->stats.idle_count,
                 found->stats.idle_used_count);
    }
  }
}

std::string Nvfp4Path(const std::string& name) {
  return std::string(SMOE_SHARED_DIR) + "/reference/nvfp4/" + name;
}

TEST(Ladder, EverySizeOfTheCacheGivesTheSameBits) {
  ExpectTheSameOnEveryRung({.path = std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe"},
                           false);
}

TEST(Ladder, EverySizeOfTheCacheGivesTheSameBitsFromARecordStore) {
  const std::string path = Nvfp4Path("a64x128-store");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "not there: " << path;
  ExpectTheSameOnEveryRung({.path = path, .options = {.trunk = Nvfp4Path("a64x128-modelopt")}},
                           false);
}

TEST(LadderOnRequest, EverySizeOfTheCacheGivesTheSameBits) {
  const char* const path = std::getenv("SMOE_LADDER_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SMOE_LADDER_MODEL names no model";
  ExpectTheSameOnEveryRung({.path = path, .prompt_tokens = 16, .step_tokens = 8}, true);
}

}  // namespace
}  // namespace smoe
