// smoe plan, as it is called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/console_for_test.h"

namespace smoe::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

double Number(const Json& json, const char* key) {
  const Json* found = json.Find(key);
  return found == nullptr ? -1 : found->AsDouble().value_or(-1);
}

Json PlanOf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  arguments.insert(arguments.end(), {"--dram-rate", "20", "--json"});
  const ProgramOutput output = RunForTest(arguments);
  EXPECT_EQ(output.code, 0) << output.err;
  auto json = Json::Parse(output.out, "output");
  EXPECT_TRUE(json) << output.out;
  return json ? *json : Json();
}

// 48 layers x 8 experts x 2,506,752 bytes: the table of the design.
TEST(Plan, OfAShapeThatFitsIsLimitedByMemory) {
  const Json json = PlanOf({"qwen3-30b-a3b", "--memory", "64GiB", "--drive-rate", "1"});
  EXPECT_EQ(Number(json, "slots"), 48 * 128);
  EXPECT_EQ(Number(json, "hit_share"), 1);
  EXPECT_EQ(Number(json, "token_drive_bytes"), 0);
  const double trunk = Number(json, "token_memory_bytes") - 48.0 * 8 * 2'506'752;
  // Codes of attention and head with a scale of 4 bytes for 64 of them; routers in
  // bf16, as the file will have them, norms in f32.
  const double codes = 48.0 * (4096 + 512 + 512 + 4096) * 2048 + 151'936.0 * 2048;
  const double routers = 48.0 * 128 * 2048;
  const double floats = 48.0 * (2 * 2048 + 2 * 128) + 2048;
  EXPECT_EQ(trunk, codes * 17 / 16 + routers * 2 + floats * 4);
  EXPECT_EQ(*json.Find("limit")->AsString(), "memory");
  EXPECT_NEAR(Number(json, "tokens_per_second_max") * Number(json, "token_memory_bytes"), 20e9,
              1e3);
}

TEST(Plan, OfLittleMemoryIsLimitedByTheDriveAndStaysWithin) {
  const Json json = PlanOf({"qwen3-30b-a3b", "--memory", "4GiB", "--drive-rate", "1"});
  EXPECT_EQ(*json.Find("limit")->AsString(), "drive");
  double sum = 0;
  for (const Json& part : *json.Find("parts")->AsArray()) sum += Number(part, "bytes");
  EXPECT_LE(sum, 4.0 * (1 << 30));
  EXPECT_GT(sum, 4.0 * (1 << 30) - 2.6e6);
  // A short prompt leaves more to the experts.
  const Json brief =
      PlanOf({"qwen3-30b-a3b", "--memory", "4GiB", "--drive-rate", "1", "--prompt", "16"});
  EXPECT_GT(Number(brief, "slots"), Number(json, "slots"));
  EXPECT_NEAR(Number(json, "tokens_per_second_max") * Number(json, "token_drive_bytes"), 1e9, 1e3);
  EXPECT_LT(Number(json, "tokens_per_second"), Number(json, "tokens_per_second_max"));
}

TEST(Plan, WithoutADriveSaysWhatIsMissing) {
  const ProgramOutput output =
      RunForTest({"plan", "olmoe-1b-7b", "--memory", "2GiB", "--dram-rate", "20"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("not measured: no file yet"));
  EXPECT_THAT(output.out, HasSubstr("unknown without the rate of the drive"));
  const ProgramOutput rows =
      RunForTest({"plan", "olmoe-1b-7b", "--memory", "2GiB,3GiB", "--dram-rate", "20"});
  EXPECT_EQ(rows.code, 0) << rows.err;
  EXPECT_THAT(rows.out, Not(HasSubstr(" 0.00 s")));
  EXPECT_THAT(rows.out, Not(HasSubstr(" 0.0  ")));
  EXPECT_THAT(rows.out, HasSubstr("unknown"));
}

TEST(Plan, OfAModelMeasuresItsDrive) {
  const Json json = PlanOf({std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe"});
  EXPECT_GT(Number(json, "drive_bytes_per_second"), 0);
  EXPECT_GT(Number(json, "first_token_seconds_min"), 0);
}

TEST(Plan, RefusesWhatDoesNotFitWithTheSizeThatDoes) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own memory counts too, and grows from call to call";
#endif
  const ProgramOutput refused =
      RunForTest({"plan", "qwen3-30b-a3b", "--memory", "1GiB", "--dram-rate", "20"});
  EXPECT_NE(refused.code, 0);
  constexpr char kBefore[] = "the smallest that works is ";
  const size_t at = refused.err.find(kBefore);
  ASSERT_NE(at, std::string::npos) << refused.err;
  const uint64_t size = std::stoull(refused.err.substr(at + sizeof(kBefore) - 1));
  const auto code = [](uint64_t mib) {
    return RunForTest({"plan", "qwen3-30b-a3b", "--memory", std::to_string(mib) + "MiB",
                       "--dram-rate", "20"})
        .code;
  };
  EXPECT_EQ(code(size), 0) << size;
  EXPECT_NE(code(size - 1), 0) << size;
}

TEST(Plan, SeveralAmountsAreRowsAndOneThatIsTooSmallSaysSo) {
  const std::vector<std::string> arguments = {
      "plan", "qwen3-30b-a3b", "--memory", "1GiB,4GiB,64GiB", "--drive-rate",
      "1",    "--dram-rate",   "20"};
  const ProgramOutput text = RunForTest(arguments);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("1.07 GB   refused: memory: 1.0 GiB (--memory), the smallest"));
  EXPECT_THAT(text.out, HasSubstr("\n4.29 GB "));
  const Json json = PlanOf({"qwen3-30b-a3b", "--memory", "1GiB,4GiB,64GiB", "--drive-rate", "1"});
  const Json::Array& plans = *json.Find("plans")->AsArray();
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_NE(plans[0].Find("refused"), nullptr);
  EXPECT_EQ(*plans[1].Find("limit")->AsString(), "drive");
  EXPECT_EQ(Number(plans[2], "hit_share"), 1);
  EXPECT_EQ(RunForTest({"plan", "qwen3-30b-a3b", "--memory", "4GiB,"}).code, 2);
}

TEST(Plan, SeveralAmountsThatAreAllTooSmallAreAnError) {
  const ProgramOutput output =
      RunForTest({"plan", "qwen3-30b-a3b", "--memory", "1,1GiB", "--dram-rate", "20"});
  EXPECT_EQ(output.code, 5);
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, HasSubstr("memory: 1 bytes (--memory), the smallest"));
  EXPECT_THAT(output.err, HasSubstr("memory: 1.0 GiB (--memory), the smallest"));
}

TEST(Plan, RefusesRatesAndPromptsThatAreNone) {
  EXPECT_NE(RunForTest({"plan", "olmoe-1b-7b", "--drive-rate", "0"}).code, 0);
  EXPECT_NE(RunForTest({"plan", "olmoe-1b-7b", "--prompt", "0"}).code, 0);
  EXPECT_NE(RunForTest({"plan", "no-such-model"}).code, 0);
}

}  // namespace
}  // namespace smoe::cli
