// Requests on the bundled model: together as alone, resumed as cold, and failing one by one.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/engine_for_test.h"
#include "io/fake_read_queue.h"

namespace smoe::engine {
namespace {

using testing::HasSubstr;

constexpr uint32_t kEndToken = 2043;  // <|im_end|>

Result<std::unique_ptr<Engine>> OpenTiny(EngineOptions options) {
  const std::string path = std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe";
  SMOE_TRY_ASSIGN(store::ModelFiles files, store::OpenModelFiles(path, {}));
  return Engine::Open(std::move(files), options);
}

std::vector<uint32_t> Prompt(uint32_t number, size_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = (i * 37 + number * 411 + 5) % 2041;
  return tokens;
}

Request MakeRequest(std::vector<uint32_t> prompt, size_t count) {
  Request request;
  request.prompt = std::move(prompt);
  request.token_count_max = count;
  return request;
}

TEST(Engine, RequestsTogetherGetTheTokensOfRequestsAlone) {
  EngineOptions options;
  options.chunk_tokens = 16;
  options.cache_experts = 7;
  options.batch_max = 5;
  auto engine = OpenTiny(options).value();
  std::map<uint64_t, std::vector<uint32_t>> expected;
  std::vector<std::vector<uint32_t>> alone;
  for (uint32_t i = 0; i < 5; ++i) {
    Request request = MakeRequest(Prompt(i, 5 + 20 * i), 12);
    request.sampling.temperature = 0.5 * i;
    request.sampling.seed = i;
    alone.push_back(RunAlone(*engine, request).tokens);
    EXPECT_EQ(alone.back().size(), 12u);
  }
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i < 5; ++i) {
    Request request = MakeRequest(Prompt(i, 5 + 20 * i), 12);
    request.sampling.temperature = 0.5 * i;
    request.sampling.seed = i;
    ids.push_back(engine->Submit(std::move(request)).value());
  }
  EXPECT_FALSE(engine->Submit(MakeRequest({1}, 1))) << "a sixth one does not fit";
  auto together = Finish(*engine);
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(together[ids[i]].tokens, alone[i]) << i;
}

// The address sanitizer's own memory counts too, and grows by about 1 MiB from call to call. The
// thread sanitizer's is within what the program is given in any case, so that room for growth would
// be room for all 64 experts.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kGrowthBytes = uint64_t{4} << 20;
#else
constexpr uint64_t kGrowthBytes = 0;
#endif

// With the smallest --memory that works, by the message that refuses less.
std::unique_ptr<Engine> OpenSmallest(EngineOptions options) {
  options.memory_bytes = 1;
  const std::string refusal = OpenTiny(options).error().message();
  const std::string before_size = "the smallest that works is ";
  EXPECT_THAT(refusal, HasSubstr(before_size));
  const std::string size = refusal.substr(refusal.find(before_size) + before_size.size());
  options.memory_bytes = (uint64_t{std::stoul(size)} << 20) + kGrowthBytes;
  return OpenTiny(options).value();
}

// The smallest memory that works has no room for more than top_k + 1 = 5 experts beside a chunk's
// activations at their largest, and for all 64 beside those of an answer.
TEST(Engine, AnAnswerGivesTheMemoryOfItsPromptBackToTheCache) {
  EngineOptions options;
  options.chunk_tokens = 2500;
  options.context_tokens = 1024;
  const auto engine = OpenSmallest(options);
  const auto slots = [&] { return engine->stats().guard.slot_count; };
  EXPECT_EQ(slots(), 64u);
  ASSERT_TRUE(engine->Submit(MakeRequest(Prompt(1, 900), 24)));
  ASSERT_TRUE(engine->Step());
  const uint32_t beside_prompt = slots();
  EXPECT_LT(beside_prompt, 64u);
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(engine->Step());
    EXPECT_EQ(slots(), beside_prompt);
  }
  ASSERT_TRUE(engine->Step());
  EXPECT_EQ(slots(), 64u);
  Finish(*engine);
  // The next prompt finds its memory again, and the same tokens.
  const auto tokens = RunAlone(*engine, MakeRequest(Prompt(2, 900), 24)).tokens;
  EngineOptions resident;
  resident.context_tokens = 1024;
  EXPECT_EQ(tokens, RunAlone(*OpenTiny(resident).value(), MakeRequest(Prompt(2, 900), 24)).tokens);
}

// Evaluate touches all activations; a prompt of few tokens is no more than an answer.
TEST(Engine, AnAnswerBehindEvaluateGetsItsMemoryToo) {
  EngineOptions options;
  options.chunk_tokens = 2500;
  options.context_tokens = 1024;
  options.evaluate = true;
  const auto engine = OpenSmallest(options);
  RunAlone(*engine, MakeRequest(Prompt(1, 5), 12));
  EXPECT_EQ(engine->stats().guard.slot_count, 64u);
  ASSERT_TRUE(engine->Evaluate(Prompt(2, 900), {}, [](size_t, auto, const auto&) { return Ok(); }));
  EXPECT_LT(engine->stats().guard.slot_count, 64u);
  RunAlone(*engine, MakeRequest(Prompt(3, 5), 12));
  EXPECT_EQ(engine->stats().guard.slot_count, 64u);
}

TEST(Engine, EndsAtAStopIdWithoutDeliveringIt) {
  auto engine = OpenTiny({}).value();
  const Outcome free = RunAlone(*engine, MakeRequest(Prompt(3, 9), 20));
  ASSERT_EQ(free.tokens.size(), 20u);
  Request request = MakeRequest(Prompt(3, 9), 20);
  request.stop_ids = {kEndToken, free.tokens[5]};
  const Outcome stopped = RunAlone(*engine, request);
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  size_t first = 0;
  while (free.tokens[first] != free.tokens[5]) ++first;
  EXPECT_EQ(stopped.tokens,
            std::vector<uint32_t>(free.tokens.begin(),
                                  free.tokens.begin() + static_cast<ptrdiff_t>(first)));
}

// Too long is refused with both numbers; the end of the context ends it.
TEST(Engine, TheContextIsALimitWithBothNumbers) {
  EngineOptions options;
  options.context_tokens = 64;
  auto engine = OpenTiny(options).value();
  const Outcome too_long = RunAlone(*engine, MakeRequest(Prompt(0, 65), 1));
  EXPECT_THAT(too_long.error, HasSubstr("65 tokens, the context holds 64"));
  // tiny-moe has 4096 positions: --context would not help.
  const Outcome too_long_ever = RunAlone(*engine, MakeRequest(Prompt(0, 4097), 1));
  EXPECT_THAT(too_long_ever.error, HasSubstr("4097 tokens, the model was made for 4096"));
  EXPECT_EQ(RunAlone(*engine, MakeRequest(Prompt(0, 64), 10)).tokens.size(), 1u);
  const Outcome filled = RunAlone(*engine, MakeRequest(Prompt(0, 60), 100));
  EXPECT_EQ(filled.reason, FinishReason::kLength);
  EXPECT_EQ(filled.tokens.size(), 5u) << "the token at the end of the context is still delivered";
}

// Three requests that fill the context together: each may waste most of a page.
TEST(Engine, TheContextHoldsItsTokensOverSeveralRequests) {
  EngineOptions options;
  options.context_tokens = 66;
  options.batch_max = 3;
  auto engine = OpenTiny(options).value();
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(engine->Submit(MakeRequest(Prompt(i, 20), 2)));
  for (const auto& [id, outcome] : Finish(*engine)) {
    EXPECT_EQ(outcome.reason, FinishReason::kLength) << outcome.error;
  }
}

TEST(Engine, RefusesWhatItCannotRun) {
  auto engine = OpenTiny({}).value();
  EXPECT_THAT(RunAlone(*engine, MakeRequest({}, 1)).error, HasSubstr("0 tokens"));
  EXPECT_THAT(RunAlone(*engine, MakeRequest({1, 2048}, 1)).error,
              HasSubstr("token 2048 at position 1, the vocabulary has 2048"));
  Request hot = MakeRequest({1}, 1);
  hot.sampling.temperature = -1;
  EXPECT_THAT(RunAlone(*engine, hot).error, HasSubstr("temperature"));
}

TEST(Engine, CancelEndsOneRequestAndNotTheOthers) {
  auto engine = OpenTiny({}).value();
  const Outcome alone = RunAlone(*engine, MakeRequest(Prompt(2, 10), 6));
  const uint64_t cancelled = engine->Submit(MakeRequest(Prompt(1, 10), 50)).value();
  const uint64_t kept = engine->Submit(MakeRequest(Prompt(2, 10), 6)).value();
  ASSERT_TRUE(engine->Step());
  engine->Cancel(cancelled);
  auto outcomes = Finish(*engine);
  EXPECT_EQ(outcomes[cancelled].reason, FinishReason::kCancelled);
  // The first token came with the step before Finish.
  EXPECT_EQ(outcomes[kept].tokens.size() + 1, alone.tokens.size());
  EXPECT_TRUE(std::equal(outcomes[kept].tokens.begin(), outcomes[kept].tokens.end(),
                         alone.tokens.begin() + 1));
}

// Until somebody stops it, and how far it came: tiny-moe has four layers.
struct Layers {
  uint32_t count = 0;
  uint32_t stop_at = 0;
  std::function<bool()> Question() {
    return [this] { return count >= stop_at; };
  }
  model::Model::LayerSink Sink() {
    return [this](uint32_t, uint32_t) { ++count; };
  }
};

TEST(Engine, ACancelledPromptEndsAfterTheLayerItIsAtAndLeavesNothing) {
  EngineOptions options;
  options.chunk_tokens = 64;
  options.cache_experts = 7;
  const auto engine = OpenTiny(options).value();
  const Request request = MakeRequest(Prompt(1, 100), 6);
  const Outcome whole = RunAlone(*OpenTiny(options).value(), request);
  // In the first chunk, in the second one, and twice in that one alone: the first is kept.
  for (const uint32_t stop_at : {1u, 2u, 6u, 3u, 4u}) {
    Layers layers{.count = 0, .stop_at = stop_at};
    engine->OnLayer(layers.Sink());
    Request stopped = request;
    stopped.is_cancelled = layers.Question();
    const Outcome outcome = RunAlone(*engine, stopped);
    EXPECT_EQ(outcome.reason, FinishReason::kCancelled) << stop_at;
    EXPECT_TRUE(outcome.tokens.empty());
    EXPECT_EQ(layers.count, stop_at) << stop_at;
    EXPECT_EQ(engine->stats().kv.running_count, 0u) << stop_at;
    engine->OnLayer({});
  }
  // What the whole chunks left is still right.
  EXPECT_GT(engine->stats().kv.kept_count, 0u);
  EXPECT_EQ(RunAlone(*engine, request).tokens, whole.tokens);
  EXPECT_GT(engine->stats().reused_token_count, 0u);
}

TEST(Engine, AStepGoesOnForRequestsThatAreNotCancelled) {
  EngineOptions options;
  options.chunk_tokens = 64;
  const auto engine = OpenTiny(options).value();
  const Outcome alone = RunAlone(*OpenTiny(options).value(), MakeRequest(Prompt(2, 40), 6));
  Layers layers{.count = 0, .stop_at = 6};
  engine->OnLayer(layers.Sink());
  // The first decodes in the step that brings the prompt of the second.
  const uint64_t kept = engine->Submit(MakeRequest(Prompt(2, 40), 6)).value();
  ASSERT_TRUE(engine->Step());
  Request other = MakeRequest(Prompt(1, 50), 6);
  other.is_cancelled = layers.Question();
  const uint64_t cancelled = engine->Submit(other).value();
  auto outcomes = Finish(*engine);
  EXPECT_EQ(layers.count % 4, 0u) << "no step was cut short";
  EXPECT_EQ(outcomes[cancelled].reason, FinishReason::kCancelled);
  EXPECT_TRUE(std::equal(outcomes[kept].tokens.begin(), outcomes[kept].tokens.end(),
                         alone.tokens.begin() + 1, alone.tokens.end()));
  EXPECT_EQ(engine->stats().kv.running_count, 0u);
}

// Asked before the step, after its first layer, and never again.
TEST(Engine, ARequestThatSaidItIsCancelledInAStepWithOthersEndsWithIt) {
  const auto engine = OpenTiny({}).value();
  Request once = MakeRequest(Prompt(1, 20), 6);
  int asked = 0;
  once.is_cancelled = [&] { return ++asked == 2; };
  const uint64_t cancelled = engine->Submit(once).value();
  const uint64_t kept = engine->Submit(MakeRequest(Prompt(2, 20), 6)).value();
  auto outcomes = Finish(*engine);
  EXPECT_EQ(outcomes[cancelled].reason, FinishReason::kCancelled);
  EXPECT_EQ(outcomes[kept].tokens.size(), 6u);
  EXPECT_EQ(asked, 2);
}

TEST(Engine, AWarmStartReadsOnWhileNoRequestRuns) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("smoe_idle_{}", getpid());
  EngineOptions options;
  const Request request = MakeRequest(Prompt(1, 20), 24);
  EXPECT_EQ(OpenTiny(options).value()->ReadWhileIdle().value_or(true), false) << "no warm start";
  options.hot_set_path = (folder / "hot.json").string();
  const std::vector<uint32_t> tokens = RunAlone(*OpenTiny(options).value(), request).tokens;
  {
    const auto engine = OpenTiny(options).value();
    EXPECT_EQ(engine->stats().cache.idle_count, 1u) << "one at a time";
    for (;;) {
      const auto more = engine->ReadWhileIdle();
      ASSERT_TRUE(more);
      if (!*more) break;
    }
    const experts::CacheStats before = engine->stats().cache;
    EXPECT_GT(before.idle_count, 4u);
    EXPECT_EQ(RunAlone(*engine, request).tokens, tokens);
    EXPECT_GT(engine->stats().cache.idle_used_count, 4u);
    EXPECT_FALSE(engine->ReadWhileIdle().value_or(true));
  }
  std::filesystem::remove_all(folder);
}

// A read that fails or brings wrong bytes ends the requests that need the expert, by name.
TEST(Engine, AFailedReadEndsItsRequestAndTheEngineLivesOn) {
  int reads_until_fault = 40;
  EngineOptions options;
  options.cache_experts = 5;
  options.make_queue = [&]() -> Result<std::unique_ptr<io::ReadQueue>> {
    io::FakeReadOptions fake;
    fake.fault = [&](const io::ReadRequest&) { return --reads_until_fault == 0 ? EIO : 0; };
    return io::MakeFakeReadQueue(fake);
  };
  auto engine = OpenTiny(options).value();
  const Outcome failed = RunAlone(*engine, MakeRequest(Prompt(0, 40), 20));
  EXPECT_EQ(failed.reason, FinishReason::kFailed);
  EXPECT_THAT(failed.error, HasSubstr("expert"));
  EXPECT_THAT(failed.error, HasSubstr("Input/output"));
  const Outcome after = RunAlone(*engine, MakeRequest(Prompt(0, 40), 20));
  EXPECT_EQ(after.reason, FinishReason::kLength);
  EXPECT_EQ(after.tokens, RunAlone(*OpenTiny({}).value(), MakeRequest(Prompt(0, 40), 20)).tokens);
}

TEST(Engine, FlippedBitsAreFoundByTheChecksum) {
  EngineOptions options;
  options.make_queue = []() -> Result<std::unique_ptr<io::ReadQueue>> {
    io::FakeReadOptions fake;
    fake.damage = [](const io::ReadRequest& read) { read.into[100] ^= std::byte{4}; };
    return io::MakeFakeReadQueue(fake);
  };
  auto engine = OpenTiny(options).value();
  const Outcome failed = RunAlone(*engine, MakeRequest(Prompt(0, 4), 2));
  EXPECT_EQ(failed.reason, FinishReason::kFailed);
  EXPECT_THAT(failed.error, HasSubstr("checksum"));
}

}  // namespace
}  // namespace smoe::engine
