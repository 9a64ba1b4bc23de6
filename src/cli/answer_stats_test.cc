// --stats and --json of smoe run, and /stats of smoe chat.
#include "cli/answer_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/console_for_test.h"
#include "cli/json_for_test.h"

namespace smoe::cli {
namespace {

using testing::HasSubstr;

const std::string kModel = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";

// Four prompt tokens in 2 s, of which the drive was waited for 1 s; then two tokens in 4 s.
TEST(AnswerStats, PhasesAreToldApartByHand) {
  engine::EngineSetup setup;
  setup.slot_count = 10;
  setup.expert_count = 20;
  setup.reads = "uring, direct";
  engine::EngineStats before, after;
  Answer answer{.tokens = {1, 2, 3}, .first_token_seconds = 2, .decode_seconds = 4};
  engine::EngineStats& middle = answer.at_first_token;
  middle.prompt_token_count = after.prompt_token_count = 4;
  middle.cache.hit_count = 1;
  middle.cache.miss_count = 3;
  middle.cache.read_bytes = 8'000'000'000;
  middle.cache.wait_ns = 1'000'000'000;
  middle.cache.prefetch_count = 5;
  after.cache = middle.cache;
  after.cache.hit_count += 6;
  after.cache.prefetch_hit_count = 2;
  after.cache.miss_count += 2;
  after.cache.read_bytes += 2'000'000'000;
  after.cache.wait_ns += 3'000'000'000;
  after.cache.prefetch_count += 7;
  after.cache.prefetch_used_count = 4;
  after.cache.idle_count = 11;
  after.cache.idle_used_count = 8;
  after.cache.idle_wasted_count = 2;
  after.cache.gauge_saved_bytes = 6 << 20;
  after.guard = {.shrink_count = 2, .grow_count = 1, .slot_count = 9, .slot_count_min = 8};

  const Json json = StatsJson(setup, before, after, answer);
  EXPECT_DOUBLE_EQ(Number(json, {"prefill", "tokens_per_second"}), 2);
  EXPECT_DOUBLE_EQ(Number(json, {"prefill", "hit_share"}), 0.25);
  EXPECT_DOUBLE_EQ(Number(json, {"prefill", "read_bytes_per_second"}), 4e9);
  EXPECT_DOUBLE_EQ(Number(json, {"prefill", "wait_share"}), 0.5);
  EXPECT_DOUBLE_EQ(Number(json, {"decode", "tokens_per_second"}), 0.5);
  EXPECT_DOUBLE_EQ(Number(json, {"decode", "hit_share"}), 0.6);
  EXPECT_DOUBLE_EQ(Number(json, {"decode", "read_ahead_share"}), 0.2);
  EXPECT_DOUBLE_EQ(Number(json, {"decode", "read_bytes_per_token"}), 1e9);
  EXPECT_DOUBLE_EQ(Number(json, {"decode", "wait_share"}), 0.75);
  EXPECT_DOUBLE_EQ(Number(json, {"one_gib_more_saves_bytes_per_token"}), 3 << 20);
  EXPECT_DOUBLE_EQ(Number(json, {"expert_read_idle"}), 11);
  EXPECT_DOUBLE_EQ(Number(json, {"expert_read_idle_wanted"}), 8);
  EXPECT_DOUBLE_EQ(Number(json, {"expert_read_idle_wasted"}), 2);
  const std::string text = StatsText(setup, before, after, answer);
  EXPECT_THAT(text, HasSubstr("12 read ahead (5 foreseen for the prompt, 7 guessed), 4 of them"));
  EXPECT_THAT(text, HasSubstr("50.0 % in memory by themselves, 14.3 % read in time"));
  EXPECT_THAT(text, HasSubstr("the answer's 60.0 and 20.0 %"));
  EXPECT_THAT(text, HasSubstr("cache of 10 of 20 experts, now 9, shrunk 2 and grown 1 times"));
  EXPECT_THAT(text, HasSubstr("with 1.0 GiB more: 3.0 MiB a token fewer"));
  EXPECT_THAT(text, HasSubstr("reads     uring, direct\n"));
  EXPECT_THAT(text, HasSubstr("4.00 GB/s, 50 % of the time waiting"));
}

TEST(AnswerStats, WithoutATokenAllOfItIsThePrompts) {
  engine::EngineStats before, after;
  after.cache.read_bytes = 100;
  after.prompt_token_count = 10;
  Answer answer;
  answer.reason = engine::FinishReason::kCancelled;
  answer.first_token_seconds = 5;
  const Json json = StatsJson({}, before, after, answer);
  EXPECT_EQ(Number(json, {"prefill", "read_bytes"}), 100);
  EXPECT_EQ(Number(json, {"prefill", "tokens_per_second"}), 2);
  EXPECT_EQ(Number(json, {"decode", "read_bytes"}), 0);
  EXPECT_THAT(json.Dump(), HasSubstr("\"first_token_seconds\": null"));
  EXPECT_THAT(StatsText({}, before, after, answer), HasSubstr("no token after 5.00 s (2.0 tok/s)"));
}

TEST(AnswerStats, RunAndChatSayTheSame) {
  const ProgramOutput run = RunForTest(
      {"run", kModel, "--tokens", "1,2,3", "-n", "3", "--stats", "--cache-experts", "9"});
  const ProgramOutput chat =
      RunForTest({"chat", kModel, "-n", "3", "--stats", "--cache-experts", "9"}, "hello\n/stats\n");
  for (const ProgramOutput& output : {run, chat}) {
    ASSERT_EQ(output.code, 0) << output.err;
    for (const char* text : {"\nanswer    3 tokens", "\nexperts   ", "\nmemory    ", "\nreads     ",
                             "GB/s", "with 1.0 GiB more: "}) {
      EXPECT_THAT(output.err, HasSubstr(text));
    }
  }
}

}  // namespace
}  // namespace smoe::cli
