// Requests that begin alike: each gets the tokens of an engine that never saw the others, and
// computes only what none of them has.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_for_test.h"

namespace smoe::engine {
namespace {

using Tokens = std::vector<uint32_t>;

std::unique_ptr<Engine> OpenTiny(const EngineOptions& options) {
  const std::string path = std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe";
  auto files = store::OpenModelFiles(path, {});
  EXPECT_TRUE(files) << files.error().message();
  auto engine = Engine::Open(std::move(*files), options);
  EXPECT_TRUE(engine) << engine.error().message();
  return std::move(*engine);
}

EngineOptions Small() {
  EngineOptions options;
  options.chunk_tokens = 64;
  options.context_tokens = 1024;
  options.batch_max = 3;
  return options;
}

Tokens Text(uint32_t number, size_t count) {
  Tokens tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = (i * 37 + number * 411 + 5) % 2041;
  return tokens;
}

Tokens Joined(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

Request MakeRequest(Tokens prompt, size_t count, bool shares_prefix = true) {
  Request request;
  request.prompt = std::move(prompt);
  request.token_count_max = count;
  request.shares_prefix = shares_prefix;
  return request;
}

// None of them fails.
std::map<uint64_t, Tokens> Answers(Engine& engine) {
  std::map<uint64_t, Tokens> answers;
  for (auto& [id, outcome] : Finish(engine)) {
    EXPECT_EQ(outcome.error, "");
    answers[id] = std::move(outcome.tokens);
  }
  return answers;
}

struct Answer {
  Tokens tokens;
  uint64_t reused_count = 0;
};

Answer Answered(Engine& engine, Request request) {
  const uint64_t before = engine.stats().reused_token_count;
  const auto id = engine.Submit(std::move(request));
  EXPECT_TRUE(id) << id.error().message();
  Tokens tokens = std::move(Answers(engine)[*id]);
  return {std::move(tokens), engine.stats().reused_token_count - before};
}

Tokens RunCold(const Tokens& prompt, size_t count) {
  return Answered(*OpenTiny(Small()), MakeRequest(prompt, count, false)).tokens;
}

// A: S + one, B: S + two, A again, a shorter beginning of A, A with an early change.
TEST(Prefix, EveryRequestGetsTheAnswerOfAColdEngine) {
  const auto engine = OpenTiny(Small());
  const Tokens system = Text(1, 300);
  Tokens changed = Joined(system, {10, 11, 12});
  changed[3] = 99;
  struct Case {
    Tokens prompt;
    uint64_t reused_count;
  };
  const Case cases[] = {{Joined(system, {10, 11, 12}), 0},
                        {Joined(system, {20, 21}), 300},
                        {Joined(system, {10, 11, 12}), 302},  // the last token runs again
                        {Text(1, 280), 279},
                        {changed, 3},
                        {Joined(system, {20, 21}), 301}};
  for (const Case& one : cases) {
    const Answer answer = Answered(*engine, MakeRequest(one.prompt, 8));
    EXPECT_EQ(answer.tokens, RunCold(one.prompt, 8));
    EXPECT_EQ(answer.reused_count, one.reused_count);
  }
}

// A chat of 1000 tokens, the front end's requests with heads of their own, the chat's next turn.
TEST(Prefix, HelperRequestsLeaveTheConversationWhereItIs) {
  EngineOptions options = Small();
  options.context_tokens = 2048;
  const auto engine = OpenTiny(options);
  const Tokens chat = Text(2, 1000);
  const Answer turn = Answered(*engine, MakeRequest(chat, 20));
  for (uint32_t helper = 0; helper < 3; ++helper) {
    const Tokens prompt = Text(10 + helper, 200);
    EXPECT_EQ(Answered(*engine, MakeRequest(prompt, 10)).tokens, RunCold(prompt, 10));
  }
  // The last token of an answer never went through the model.
  const Tokens next = Joined(Joined(chat, turn.tokens), Text(3, 30));
  const Answer second = Answered(*engine, MakeRequest(next, 8));
  EXPECT_EQ(second.reused_count, 1019u);
  options.context_tokens = 1200;
  EXPECT_EQ(second.tokens, Answered(*OpenTiny(options), MakeRequest(next, 8, false)).tokens);
}

TEST(Prefix, RequestsThatRunTogetherShareWhatTheFirstComputes) {
  const auto engine = OpenTiny(Small());
  const Tokens system = Text(4, 200);
  std::map<uint64_t, Tokens> prompts;
  for (uint32_t i = 0; i < 3; ++i) {
    const Tokens prompt = Joined(system, Text(20 + i, 9));
    prompts[engine->Submit(MakeRequest(prompt, 12)).value()] = prompt;
  }
  const auto answers = Answers(*engine);
  for (const auto& [id, prompt] : prompts) EXPECT_EQ(answers.at(id), RunCold(prompt, 12)) << id;
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_token_count + stats.reused_token_count, 3u * 209);
  EXPECT_GE(stats.reused_token_count, 2u * 150);
}

// Room for one long request: what was kept goes for it, and is computed again afterwards.
TEST(Prefix, KeptPagesNeverStandInTheWayOfARunningRequest) {
  EngineOptions options = Small();
  options.context_tokens = 320;
  options.batch_max = 1;
  const auto engine = OpenTiny(options);
  const Tokens first = Text(5, 150);
  EXPECT_EQ(Answered(*engine, MakeRequest(first, 10)).tokens, RunCold(first, 10));
  const Tokens large = Text(6, 300);
  const Answer answer = Answered(*engine, MakeRequest(large, 20));
  EXPECT_EQ(answer.tokens, RunCold(large, 20));
  EXPECT_GT(engine->stats().kv.forgotten_count, 0u);
  EXPECT_EQ(Answered(*engine, MakeRequest(first, 10)).tokens, RunCold(first, 10));
  EXPECT_EQ(engine->stats().kv.running_count, 0u);
}

TEST(Prefix, ACancelledRequestLeavesWhatItComputed) {
  const auto engine = OpenTiny(Small());
  const Tokens prompt = Text(7, 200);
  const uint64_t id = engine->Submit(MakeRequest(prompt, 50)).value();
  ASSERT_TRUE(engine->Step());  // one chunk of 64, and the rows left for decoding
  engine->Cancel(id);
  Answers(*engine);
  const Answer answer = Answered(*engine, MakeRequest(prompt, 10));
  EXPECT_GE(answer.reused_count, 64u);
  EXPECT_LT(answer.reused_count, 70u);
  EXPECT_EQ(answer.tokens, RunCold(prompt, 10));
}

TEST(Prefix, WhoMeasuresComputesEverything) {
  const auto engine = OpenTiny(Small());
  const Tokens prompt = Text(8, 100);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(Answered(*engine, MakeRequest(prompt, 4, false)).reused_count, 0u);
  }
  EXPECT_EQ(engine->stats().kv.kept_count, 0u);
}

}  // namespace
}  // namespace smoe::engine
