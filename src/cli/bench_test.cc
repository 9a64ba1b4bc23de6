// smoe bench and --profile, on the small model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "cli/bench_log.h"
#include "cli/console_for_test.h"
#include "cli/json_for_test.h"
#include "cli/profile_text.h"
#include "convert/files_for_test.h"
#include "io/file.h"

namespace smoe::cli {
namespace {

using convert::TestFolder;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kModel = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";

Json Parsed(const ProgramOutput& output) {
  EXPECT_EQ(output.code, 0) << output.err;
  auto json = Json::Parse(output.out, "output");
  EXPECT_TRUE(json) << output.out;
  return json ? *json : Json();
}

// By the sizes in models/tiny-moe/config.json: a layer has 196608 weights in attention, 4096 in the
// router and 4 active experts of 98304; the head has 524288. A prompt of 5 rows goes through
// 2 x 4 x (200704 + 393216) x 5 operations of layers, 2 x 524288 of the head for its last row, and
// 4 x 4 layers x 256 for each of the 15 pairs of row and key.
TEST(Bench, CountsTheBytesAndOperationsOfATokenByArithmetic) {
  const Json json =
      Parsed(RunForTest({"bench", kModel, "--read", "4MiB", "--prompt", "5", "--tokens", "4",
                         "--rounds", "2", "--threads", "1,2", "--json"}));
  ASSERT_NE(json.Find("runs"), nullptr);
  const Json::Array& runs = *json.Find("runs")->AsArray();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(Number(runs[0], {"threads"}), 1);
  EXPECT_EQ(Number(runs[1], {"threads"}), 2);
  for (const Json& run : runs) {
    EXPECT_TRUE(run.Find("resident")->AsBool().value_or(false));
    EXPECT_EQ(Number(run, {"expert_misses"}), 0);
    EXPECT_EQ(Number(run, {"read_bytes"}), 0);
    const double bytes = Number(run, {"decode", "bytes_per_token"});
    EXPECT_EQ(bytes, Number(run, {"decode", "trunk_bytes"}) +
                         Number(run, {"decode", "active_expert_bytes"}) +
                         Number(run, {"decode", "kv_bytes"}));
    // bf16, with up to a page more at either end of each of an expert's three matrices.
    EXPECT_GE(Number(run, {"decode", "active_expert_bytes"}), 16 * 98304 * 2);
    EXPECT_LE(Number(run, {"decode", "active_expert_bytes"}), 16 * (98304 * 2 + 6 * 4096));
    EXPECT_GT(Number(run, {"decode", "tokens_per_second", "median"}), 0);
    EXPECT_EQ(Number(run, {"prefill", "operations"}), 23756800 + 1048576 + 61440);
    EXPECT_GT(Number(run, {"prefill", "operations_per_second"}), 0);
    EXPECT_GT(Number(run, {"first_token_seconds", "min"}), 0);
    EXPECT_GT(Number(run, {"memory_bytes_per_second", "bound"}), 0);
    EXPECT_GE(Number(run, {"memory_bytes_per_second", "bound"}),
              Number(run, {"memory_bytes_per_second", "all_threads_small_pages", "median"}));
    EXPECT_EQ(run.Find("profile"), nullptr);
  }
  // What is counted does not depend on the threads.
  EXPECT_EQ(Number(runs[0], {"decode", "bytes_per_token"}),
            Number(runs[1], {"decode", "bytes_per_token"}));
  EXPECT_EQ(Number(runs[0], {"prefill", "operations"}), Number(runs[1], {"prefill", "operations"}));
}

TEST(Bench, TheTextNamesTheBoundBesideEachFigure) {
  const ProgramOutput output =
      RunForTest({"bench", kModel, "--read", "4MiB", "--prompt", "3", "--tokens", "2", "--rounds",
                  "1", "--threads", "2", "--profile"});
  ASSERT_EQ(output.code, 0) << output.err;
  for (const char* text : {"tok/s", "GB/s", "GFLOP/s", "small pages", "which would give",
                           "first token", "all ", "in memory", "idle", "projections", "waiting"}) {
    EXPECT_THAT(output.out, HasSubstr(text));
  }
}

TEST(Bench, ACacheThatIsTooSmallIsSaidAndItsReadsAreCounted) {
  const std::vector<std::string> arguments = {
      "bench",    kModel, "--read",          "4MiB", "--prompt",  "3", "--tokens", "4",
      "--rounds", "1",    "--cache-experts", "9",    "--threads", "1"};
  const ProgramOutput output = RunForTest(arguments);
  ASSERT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("so the drive is measured too"));
  EXPECT_THAT(output.out, HasSubstr("% in memory by themselves, "));
  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  const Json json = Parsed(RunForTest(as_json));
  const Json& run = json.Find("runs")->AsArray()->front();
  EXPECT_FALSE(run.Find("resident")->AsBool().value_or(true));
  EXPECT_GT(Number(run, {"expert_misses"}), 0);
  EXPECT_GT(Number(run, {"read_bytes"}), 0);
  // The three kinds are all that was wanted, and the shares are of that.
  const double hits = Number(run, {"expert_hits"});
  const double ahead = Number(run, {"expert_read_ahead_in_time"});
  const double wanted = hits + ahead + Number(run, {"expert_misses"});
  EXPECT_DOUBLE_EQ(Number(run, {"hit_share"}), hits / wanted);
  EXPECT_DOUBLE_EQ(Number(run, {"read_ahead_share"}), ahead / wanted);
}

TEST(Bench, TheLogCountsHitsAsStatsDo) {
  const TestFolder folder;
  engine::BenchReport report;
  report.setup.model_path = "model";
  report.setup.slot_count = 5;
  report.setup.expert_count = 10;
  report.cache.hit_count = 70;
  report.cache.prefetch_hit_count = 10;
  report.cache.miss_count = 20;
  auto log = BenchLog::Open(folder.Path("log.tsv"));
  ASSERT_TRUE(log);
  ASSERT_TRUE(log->Append(report, "commit", "machine"));
  EXPECT_THAT(io::ReadWholeFile(folder.Path("log.tsv"), 100000).value_or(""),
              HasSubstr("\t5 of 10 experts, 70.0 % hits, 10.0 % ahead\t"));
}

TEST(Bench, ValuesOutOfRangeAreNamedByTheirFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--prompt", "0"}, "--prompt: 0, expected"},
      {{"--tokens", "0"}, "--tokens: 0, expected"},
      {{"--rounds", "0"}, "--rounds: 0, expected"},
      {{"--prompt", "4294967295"}, "--prompt: 4294967295, expected 1 to 16777216"},
      {{"--tokens", "4294967295"}, "--tokens: 4294967295, expected 1 to 16777216"},
      {{"--read", "1000"}, "--read: 1000 bytes, expected at least 1.0 MiB"},
      {{"--threads", "0"}, "--threads: \"0\", expected"},
      {{"--threads", "1,"}, "--threads: \"1,\", expected"},
      {{"--threads", "1,x"}, "--threads: \"1,x\", expected"},
      {{"--memory", "1G,x"}, "--memory: \"x\", expected"},
      {{"--memory", "1G", "--threads", "1,2"}, "--threads: 2 numbers, with --memory one"},
      {{"--memory", "1G", "--profile"}, "--profile: goes without --memory"},
      {{"--threads", "1025"}, "threads: 1025, expected 1 to"},
      {{"--context", "8", "--prompt", "6", "--tokens", "2"}, "--context: 8 tokens, --prompt 6"},
  };
  for (const auto& [options, message] : cases) {
    std::vector<std::string> arguments = {"bench", kModel};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const ProgramOutput output = RunForTest(arguments);
    EXPECT_EQ(output.code, 2) << message;
    EXPECT_THAT(output.err, HasSubstr(message));
  }
}

// Four lines: the header, and two figures a run.
TEST(Bench, TheLogGrowsByARowForEachFigure) {
  const TestFolder folder;
  const std::string log = folder.Path("log.tsv");
  const std::vector<std::string> arguments = {
      "bench",    kModel, "--read",    "4MiB", "--prompt", "3", "--tokens", "2",
      "--rounds", "1",    "--threads", "1",    "--log",    log, "--json"};
  ASSERT_EQ(RunForTest(arguments).code, 0);
  ASSERT_EQ(RunForTest(arguments).code, 0);
  std::ifstream file(log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], StartsWith("date\tcommit\tmachine\t"));
  for (const std::string& line : lines) EXPECT_EQ(std::ranges::count(line, '\t'), 13) << line;
  EXPECT_THAT(lines[1], HasSubstr("decode: "));
  EXPECT_THAT(lines[2], HasSubstr("prompt: "));
  EXPECT_THAT(lines[3], HasSubstr("\tall experts\t1\t"));
  EXPECT_THAT(lines[1], HasSubstr("--prompt 3 --tokens 2 --rounds 1 --seed 1 --threads 1"));
}

TEST(Bench, AmountsOfMemoryStandBesideEachOther) {
  const TestFolder folder;
  const std::string log = folder.Path("log.tsv");
  const Json json = Parsed(
      RunForTest({"bench", kModel, "--memory", "all,1000,2GiB", "--read", "4MiB", "--prompt", "5",
                  "--tokens", "4", "--rounds", "2", "--threads", "1", "--log", log, "--json"}));
  const Json* runs = json.Find("runs");
  ASSERT_NE(runs, nullptr);
  EXPECT_GT(Number(*runs, {"drive_bytes_per_second", "min"}), 0);
  EXPECT_GT(Number(*runs, {"memory_bytes_per_second", "min"}), 0);
  const Json::Array& sizes = *runs->Find("sizes")->AsArray();
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(*sizes[0].Find("memory")->AsString(), "all");
  EXPECT_EQ(Number(sizes[0], {"decode", "hit_share"}), 1);
  EXPECT_EQ(Number(sizes[0], {"prefill", "read_bytes_per_token"}), 0);
  ASSERT_NE(sizes[1].Find("refused"), nullptr);
  EXPECT_THAT(*sizes[1].Find("refused")->AsString(), HasSubstr("the smallest that works is"));
  EXPECT_EQ(sizes[1].Find("decode"), nullptr);
  // From an empty cache: five rows want at least the four experts of a row in each layer.
  EXPECT_GE(Number(sizes[2], {"prefill", "read_bytes_per_token"}), 4 * 4 * 98304 * 2 / 5.0);
  for (const size_t i : {0u, 2u}) {
    EXPECT_GT(Number(sizes[i], {"decode", "tokens_per_second", "min"}), 0);
    EXPECT_GT(Number(sizes[i], {"decode", "share_of_bound", "min"}), 0);
    EXPECT_GT(Number(sizes[i], {"peak_bytes"}), 0);
    EXPECT_GT(Number(sizes[i], {"first_token_seconds", "min"}), 0);
    EXPECT_GT(Number(sizes[i], {"next_prefill", "share_of_bound", "min"}), 0);
  }
  // 2 GiB hold all that the second prompt wants of what the first one read.
  EXPECT_LT(Number(sizes[2], {"next_prefill", "read_bytes_per_token"}),
            Number(sizes[2], {"prefill", "read_bytes_per_token"}));
  std::ifstream file(log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 7u);
  for (const std::string& line : lines) EXPECT_EQ(std::ranges::count(line, '\t'), 13) << line;
  EXPECT_THAT(lines[1], HasSubstr("--memory all --prompt 5"));
  EXPECT_THAT(lines[5], HasSubstr("\tprompt: "));
  EXPECT_THAT(lines[6], HasSubstr("\tanother prompt: "));
}

TEST(Bench, WithoutAResidentAmountThePromptsBoundSaysWhatItLeavesOut) {
  const ProgramOutput output =
      RunForTest({"bench", kModel, "--memory", "1000,2GiB", "--read", "4MiB", "--prompt", "5",
                  "--tokens", "2", "--rounds", "1", "--threads", "1"});
  ASSERT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("refused: memory: 1000 bytes (--memory), the smallest"));
  EXPECT_THAT(output.out, HasSubstr("arithmetic is left out of the bound"));
  EXPECT_THAT(output.out, HasSubstr("page cache"));
}

TEST(Bench, NothingThatCouldBeMeasuredIsAFailureWithoutOutput) {
  const ProgramOutput none =
      RunForTest({"bench", kModel, "--memory", "1000,2000", "--rounds", "10000"});
  EXPECT_EQ(none.code, 5);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("smoe bench: memory: 1000 bytes (--memory), the smallest"));
  EXPECT_THAT(none.err, HasSubstr("; memory: 2.0 KiB (--memory), the smallest"));
  const ProgramOutput refused = RunForTest({"bench", kModel, "--cache", "1", "--rounds", "1"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
}

TEST(Bench, TheLogOfTheRepositoryHasTheSameColumns) {
  EXPECT_TRUE(BenchLog::Open(std::string(SMOE_SOURCE_DIR) + "/docs/bench/log.tsv"));
}

TEST(Bench, AFileThatIsNoLogIsLeftAlone) {
  const TestFolder folder;
  for (const char* content : {"my diary\n", "date\tcommit\n"}) {
    const std::string path = folder.Path("diary.txt");
    std::ofstream(path) << content;
    const ProgramOutput output = RunForTest({"bench", kModel, "--read", "4MiB", "--log", path});
    EXPECT_EQ(output.code, 2);
    EXPECT_THAT(output.err, HasSubstr(path));
    EXPECT_EQ(io::ReadWholeFile(path, 1000).value_or(""), content);
  }
}

// Before anything is measured, which may take minutes.
TEST(Bench, ALogThatCannotBeWrittenIsRefusedAtOnce) {
  const TestFolder folder;
  const std::string absent = folder.Path("absent/log.tsv");
  const ProgramOutput output = RunForTest({"bench", kModel, "--rounds", "10000", "--log", absent});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("--log: " + absent + ": there is no folder"));
}

TEST(Profile, ThePartsAddUpToTheWhole) {
  for (const char* command : {"bench", "run"}) {
    std::vector<std::string> arguments = {command, kModel, "--profile", "--json"};
    if (arguments[0] == "run") {
      arguments.insert(arguments.end(), {"--tokens", "1,2,3", "-n", "4"});
    } else {
      arguments.insert(arguments.end(),
                       {"--prompt", "3", "--tokens", "4", "--rounds", "1", "--read", "4MiB"});
    }
    const Json json = Parsed(RunForTest(arguments));
    const Json* profile = json.Find("profile");
    if (profile == nullptr) profile = json.Find("runs")->AsArray()->front().Find("profile");
    ASSERT_NE(profile, nullptr) << command;
    for (const char* kind : {"prefill", "decode"}) {
      const Json& times = *profile->Find(kind);
      double sum = 0;
      double shares = 0;
      for (const auto& [name, part] : *times.Find("parts")->AsObject()) {
        sum += Number(part, {"milliseconds"});
        shares += Number(part, {"share"});
      }
      const double whole = Number(times, {"milliseconds"});
      EXPECT_GT(whole, 0);
      EXPECT_NEAR(sum, whole, 1e-6 * whole);
      EXPECT_NEAR(shares, 1, 1e-6);
      EXPECT_GT(Number(times, {"parts", "head", "milliseconds"}), 0);
      EXPECT_GT(Number(times, {"parts", "attend", "milliseconds"}), 0);
      EXPECT_GT(Number(times, {"parts", "experts", "milliseconds"}), 0);
      EXPECT_GE(Number(times, {"idle_share_inside_loops"}), 0);
      EXPECT_LE(
          Number(times, {"idle_share_inside_loops"}) + Number(times, {"idle_share_between_loops"}),
          1);
    }
  }
}

// 10 ms of which 4 are the head's and 3 the routed experts', one of them waiting; two threads, 8 ms
// inside loops, busy for 12: idle are (16 - 12) / 20 inside and 2 / 20 between.
TEST(Profile, SharesAndIdleTimeByHand) {
  engine::StepTimes times;
  times.wall_ns = 10'000'000;
  times.profile.total_ns = 9'000'000;
  *times.profile.of(model::Phase::kHead) = 4'000'000;
  *times.profile.of(model::Phase::kExperts) = 3'000'000;
  times.wait_ns = 1'000'000;
  times.pool = {.loop_ns = 8'000'000, .busy_ns = 12'000'000, .loop_count = 50};
  const Json json = ProfileJson(times, 5, 2);
  EXPECT_DOUBLE_EQ(Number(json, {"milliseconds"}), 2);
  EXPECT_DOUBLE_EQ(Number(json, {"parts", "head", "share"}), 0.4);
  EXPECT_DOUBLE_EQ(Number(json, {"parts", "experts", "share"}), 0.2);
  EXPECT_DOUBLE_EQ(Number(json, {"parts", "waiting", "share"}), 0.1);
  EXPECT_DOUBLE_EQ(Number(json, {"parts", "rest", "share"}), 0.3);
  EXPECT_DOUBLE_EQ(Number(json, {"idle_share_inside_loops"}), 0.2);
  EXPECT_DOUBLE_EQ(Number(json, {"idle_share_between_loops"}), 0.1);
  EXPECT_DOUBLE_EQ(Number(json, {"loops"}), 10);
  const std::string text = ProfileText("a token", times, 5, 2);
  EXPECT_THAT(text, StartsWith("a token: 2.00 ms\n"));
  EXPECT_THAT(text, HasSubstr("############ "));
  EXPECT_THAT(text, HasSubstr("2 threads idle 30.0 % of their time: 20.0 % inside loops"));
  EXPECT_THAT(ProfileText("nothing", {}, 0, 1), HasSubstr("nothing: 0.00 ms"));
}

}  // namespace
}  // namespace smoe::cli
