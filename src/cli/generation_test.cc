#include "cli/generation.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"

namespace smoe::cli {
namespace {

engine::Request RequestOf(const std::vector<uint32_t>& prompt) {
  engine::Request request;
  request.prompt = prompt;
  request.token_count_max = 4;
  request.sampling.temperature = 0;
  return request;
}

Result<std::unique_ptr<engine::Engine>> OpenTinyMoe() {
  ModelOptions options;
  options.model = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  options.context_tokens = 512;
  SMOE_TRY_ASSIGN(auto files, OpenFiles(options));
  return OpenEngine(std::move(files), options, 1, false);
}

TEST(Generate, AnAnswerThatCannotBeDeliveredLeavesTheEngineToTheNext) {
  const auto engine = OpenTinyMoe();
  ASSERT_TRUE(engine) << engine.error().message();
  Console console{stdin, stdout, stderr};
  const auto generate = [&](const std::function<Status(uint32_t)>& on_token) {
    return Generate(**engine, RequestOf({5, 6, 7}), console, StatusMode::kOff, on_token);
  };
  size_t call_count = 0;
  const auto refused = generate([&](uint32_t) -> Status {
    ++call_count;
    return Io("the reader is gone");
  });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "the reader is gone");
  EXPECT_EQ(call_count, 1u);
  EXPECT_TRUE((*engine)->idle());
  const auto answer = generate([](uint32_t) { return Ok(); });
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->tokens.size(), 4u);
}

// Ctrl-C behind the first layer of the prompt.
TEST(Generate, TheTimeOfAPromptThatIsStoppedIsThePrompts) {
  const auto engine = OpenTinyMoe();
  ASSERT_TRUE(engine) << engine.error().message();
  Console console{stdin, stdout, stderr};
  const InterruptGuard guard;
  (*engine)->OnLayer([](uint32_t, uint32_t) { std::raise(SIGINT); });
  const engine::EngineStats before = (*engine)->stats();
  const Stopwatch stopwatch;
  const auto answer = Generate(**engine, RequestOf({5, 6, 7}), console, StatusMode::kOff,
                               [](uint32_t) { return Ok(); });
  const double seconds = stopwatch.seconds();
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->reason, engine::FinishReason::kCancelled);
  EXPECT_TRUE(answer->tokens.empty());
  EXPECT_GT(answer->first_token_seconds, 0);
  EXPECT_LE(answer->first_token_seconds, seconds);
  EXPECT_EQ(answer->decode_seconds, 0);
  const engine::EngineStats after = (*engine)->stats();
  EXPECT_GT(after.prefill.wall_ns, before.prefill.wall_ns);
  EXPECT_GT(after.prefill.profile.total_ns, before.prefill.profile.total_ns);
  EXPECT_EQ(after.decode.wall_ns, before.decode.wall_ns);
}

}  // namespace
}  // namespace smoe::cli
