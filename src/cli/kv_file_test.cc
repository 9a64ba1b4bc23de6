// --kv-file as a user meets it.
#include "cli/kv_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "cli/console_for_test.h"
#include "convert/files_for_test.h"

namespace smoe::cli {
namespace {

using convert::ReadText;
using convert::TestFolder;
using convert::WriteText;
using testing::HasSubstr;
using testing::Not;

const std::string kModel = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";

std::vector<std::string> RunArguments(const std::string& prompt, const std::string& file) {
  std::vector<std::string> arguments = {"run", kModel,   "-p",        prompt, "-n",
                                        "12",  "--json", "--context", "512"};
  if (!file.empty()) arguments.insert(arguments.end(), {"--kv-file", file});
  return arguments;
}

struct JsonAnswer {
  std::string text;
  uint64_t reused_count = 0;
};

JsonAnswer Answer(const std::string& prompt, const std::string& file) {
  const ProgramOutput output = RunForTest(RunArguments(prompt, file));
  EXPECT_EQ(output.code, 0) << output.err;
  const auto json = Json::Parse(output.out, "answer");
  EXPECT_TRUE(json) << output.out;
  if (!json) return {};
  return {*json->Find("text")->AsString(), *json->Find("stats")->Find("reused_tokens")->AsUint()};
}

TEST(KvFile, ASecondRunComputesOnlyWhatIsNew) {
  const TestFolder folder;
  const std::string file = folder.Path("talk.kv");
  const std::string story =
      "Once upon a time there was a small dog who lived near the river and liked to swim.";
  const JsonAnswer cold = Answer(story, "");
  const JsonAnswer first = Answer(story, file);
  EXPECT_EQ(first.text, cold.text);
  EXPECT_EQ(first.reused_count, 0u);
  const JsonAnswer again = Answer(story, file);
  EXPECT_EQ(again.text, cold.text);
  EXPECT_GT(again.reused_count, 15u);
  // Another end: the beginning is taken over, the answer is that of a cold start.
  const std::string other = story + " One day it rained.";
  const JsonAnswer longer = Answer(other, file);
  EXPECT_EQ(longer.text, Answer(other, "").text);
  EXPECT_GE(longer.reused_count, again.reused_count);
}

TEST(KvFile, OtherSettingsAndOtherFilesAreRefusedAndStayAsTheyAre) {
  const TestFolder folder;
  const std::string file = folder.Path("talk.kv");
  Answer("A cat.", file);
  const std::string content = ReadText(file);
  auto arguments = RunArguments("A cat.", file);
  arguments.insert(arguments.end(), {"--kv", "int8"});
  ProgramOutput output = RunForTest(arguments);
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.err, HasSubstr("keys and values are f16, here they are int8"));
  arguments = RunArguments("A cat.", file);
  arguments.insert(arguments.end(), {"--trunk-format", "bf16"});
  output = RunForTest(arguments);
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.err, HasSubstr("trunk int8, this run has arithmetic int8, trunk bf16"));
  EXPECT_EQ(ReadText(file), content);

  const std::string text = folder.Path("notes.txt");
  WriteText(text, std::string(500, 'n'));
  output = RunForTest(RunArguments("A cat.", text));
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.err, HasSubstr("no file of keys and values"));
  EXPECT_EQ(ReadText(text), std::string(500, 'n'));
  output = RunForTest(RunArguments("A cat.", kModel + "/model.safetensors"));
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("model"));
  EXPECT_EQ(RunForTest({"run", kModel, "-p", "A", "--kv-file", ""}).code, 2);
}

TEST(KvFile, ALinkStaysAndItsTargetIsWritten) {
  namespace fs = std::filesystem;
  const TestFolder folder;
  fs::create_directory(folder.Path("drive"));
  const std::string link = folder.Path("talk.kv");
  fs::create_symlink("again.kv", link);
  fs::create_symlink("drive/talk.kv", folder.Path("again.kv"));  // which is not there yet
  Answer("A cat.", link);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_symlink(folder.Path("again.kv")));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder.Path("drive/talk.kv"))));
  EXPECT_GT(Answer("A cat.", link).reused_count, 0u);
  EXPECT_TRUE(fs::is_symlink(link));
  fs::remove(folder.Path("again.kv"));
  fs::create_symlink("talk.kv", folder.Path("again.kv"));
  const ProgramOutput loop = RunForTest(RunArguments("A cat.", link));
  EXPECT_EQ(loop.code, 2);
  EXPECT_THAT(loop.err, HasSubstr("more than 40 links"));
}

TEST(KvFile, APromptStoppedBeforeItsAnswerLeavesTheFileAsItIs) {
  const TestFolder folder;
  const std::string file = folder.Path("talk.kv");
  Arguments arguments;
  KvFile kv_file;
  kv_file.Define(arguments);
  *std::get<std::optional<std::string>*>(arguments.options().front().target) = file;
  ModelOptions options;
  options.model = kModel;
  options.context_tokens = 512;
  auto files = OpenFiles(options);
  ASSERT_TRUE(files) << files.error().message();
  const auto engine = OpenEngine(std::move(*files), options, 1, false);
  ASSERT_TRUE(engine) << engine.error().message();
  const struct Answer stopped = {.tokens = {}, .reason = engine::FinishReason::kCancelled};
  const Status none = kv_file.SaveAnswer(**engine, {1, 2, 3}, stopped);
  EXPECT_TRUE(none) << none.error().message();
  EXPECT_FALSE(std::filesystem::exists(file));
  // An answer that ended of itself and was not kept is an error.
  const struct Answer ended = {.tokens = {}, .reason = engine::FinishReason::kStop};
  EXPECT_FALSE(kv_file.SaveAnswer(**engine, {1, 2, 3}, ended));
}

TEST(KvFile, AFileInThePlaceOfItsFolderIsNamed) {
  const TestFolder folder;
  WriteText(folder.Path("notes"), "text");
  std::filesystem::permissions(folder.Path("notes"), std::filesystem::perms::owner_all);
  for (const char* name : {"notes/talk.kv", "notes/"}) {
    const ProgramOutput output = RunForTest(RunArguments("A cat.", folder.Path(name)));
    EXPECT_EQ(output.code, 2) << name;
    EXPECT_EQ(output.out, "");
    EXPECT_THAT(output.err, HasSubstr("notes is a file, expected a folder"));
  }
}

TEST(KvFile, IsNobodyElsesToRead) {
  const TestFolder folder;
  const std::string file = folder.Path("talk.kv");
  WriteText(file + ".partial", "of a run that was killed");  // with everybody's permissions
  Answer("A cat.", file);
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(KvFile, AnAnswerIsPrintedThoughItsFileCannotBeWritten) {
  const TestFolder folder;
  const std::string file = folder.Path("talk.kv");
  std::filesystem::create_directory(file + ".partial");
  const ProgramOutput output = RunForTest(RunArguments("A cat.", file));
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("talk.kv.partial"));
  const auto json = Json::Parse(output.out, "answer");
  ASSERT_TRUE(json) << output.out;
  EXPECT_NE(json->Find("text"), nullptr);
}

TEST(KvFile, AChatGoesOnWhereItWas) {
  const TestFolder folder;
  const std::string file = folder.Path("talk.kv");
  const std::vector<std::string> arguments = {
      "chat",          kModel, "-n",        "8",  "--context", "512",
      "--temperature", "0",    "--kv-file", file, "--stats"};
  const ProgramOutput whole =
      RunForTest({"chat", kModel, "-n", "8", "--context", "512", "--temperature", "0"},
                 "Hello.\nTell me a story.\n");
  ASSERT_EQ(whole.code, 0) << whole.err;
  const ProgramOutput first = RunForTest(arguments, "Hello.\n");
  ASSERT_EQ(first.code, 0) << first.err;
  const ProgramOutput second = RunForTest(arguments, "Tell me a story.\n");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.out + second.out, whole.out);
  EXPECT_THAT(second.err, HasSubstr("goes on after 2 messages"));
  EXPECT_THAT(second.err, Not(HasSubstr(" 0 reused")));
  auto other = arguments;
  other.insert(other.end(), {"--system", "Be brief."});
  const ProgramOutput refused = RunForTest(other, "Hello.\n");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the conversation in --kv-file has none"));
}

}  // namespace
}  // namespace smoe::cli
