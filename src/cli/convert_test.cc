// smoe convert as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "cli/console_for_test.h"
#include "convert/files_for_test.h"

namespace smoe::cli {
namespace {

using convert::TestFolder;
using convert::TinyMoe;
using testing::HasSubstr;
using testing::Not;

std::string MakeVault(const TestFolder& folder) {
  const std::string path = folder.Path("q4.smoe");
  EXPECT_EQ(RunForTest({"shatter", TinyMoe(), path}).code, 0);
  return path;
}

TEST(Convert, TheNameOfOutChoosesTheFormat) {
  const TestFolder folder;
  const std::string vault = MakeVault(folder);
  const ProgramOutput records = RunForTest({"convert", vault, folder.Path("records")});
  EXPECT_EQ(records.code, 0) << records.err;
  EXPECT_THAT(records.err, HasSubstr("(nvfp4 group 16)"));
  EXPECT_THAT(records.err, HasSubstr("what the conversion added"));
  const ProgramOutput back = RunForTest(
      {"convert", folder.Path("records"), folder.Path("back.smoe"), "--bits", "2", "--json"});
  EXPECT_EQ(back.code, 0) << back.err;
  const auto json = Json::Parse(back.out, "output");
  ASSERT_TRUE(json) << back.out;
  EXPECT_EQ(*json->Find("target_format")->AsString(), "smoe-q2 group 64");
  EXPECT_EQ(json->Find("added_errors")->Find("layers")->AsArray()->size(), 4u);
  EXPECT_EQ(json->Find("source_to_original"), nullptr);
  for (const std::string& name : {folder.Path("records"), folder.Path("back.smoe")}) {
    EXPECT_EQ(RunForTest({"verify", name}).code, 0) << name;
    const ProgramOutput answer = RunForTest({"run", name, "--tokens", "1,2,3", "-n", "2"});
    EXPECT_EQ(answer.code, 0) << answer.err;
  }
}

TEST(Convert, ADryRunSaysWhatItWouldWrite) {
  const TestFolder folder;
  const std::string vault = MakeVault(folder);
  const ProgramOutput output =
      RunForTest({"convert", vault, folder.Path("out.smoe"), "--group-size", "32", "--dry-run"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.err, HasSubstr("would write"));
  EXPECT_THAT(output.err, Not(HasSubstr("RMSE")));
  EXPECT_FALSE(std::filesystem::exists(folder.Path("out.smoe")));
}

TEST(Convert, WrongRequestsAreNamed) {
  const TestFolder folder;
  const std::string vault = MakeVault(folder);
  const std::string out = folder.Path("out");
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{vault, out, "--bits", "2"}, "--bits: a record store has 4 bits"},
      {{vault, out, "--group-size", "32"}, "--group-size: a record store"},
      {{vault, out, "--quantiser", "reference"}, "a record store has mse and amax"},
      {{vault, folder.Path("a.smoe"), "--quantiser", "amax"}, "a vault has mse and reference"},
      {{vault, out, "--to", "gguf"}, "--to"},
      {{vault, vault}, "which is being read"},
      {{vault, folder.Path("a.smoe"), "--group-size", "12"}, "12"},
      {{TinyMoe(), out}, "smoe pack"},
      {{"/no/such", out}, "/no/such: no such file or folder"},
  };
  for (const auto& [more, message] : cases) {
    std::vector<std::string> arguments = {"convert"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramOutput output = RunForTest(arguments);
    EXPECT_EQ(output.code, 2) << message << output.err;
    EXPECT_THAT(output.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  EXPECT_EQ(RunForTest({"verify", vault}).code, 0);
}

}  // namespace
}  // namespace smoe::cli
