// smoe trace and smoe replay as a user meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/console_for_test.h"
#include "convert/files_for_test.h"

namespace smoe::cli {
namespace {

namespace fs = std::filesystem;

using convert::ReadText;
using convert::TestFolder;
using convert::WriteText;
using testing::HasSubstr;
using testing::Not;

const std::string kModel = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
constexpr char kHeader[] = "# smoe trace 1\n# experts 4 top_k 1 expert_bytes 100 model m\n";

std::string TraceFile(const TestFolder& folder, const std::string& content) {
  const std::string path = folder.Path("some.trace");
  WriteText(path, content);
  return path;
}

TEST(Trace, IsReplayed) {
  const TestFolder folder;
  const std::string out = folder.Path("some.trace");
  ASSERT_EQ(RunForTest({"trace", kModel, "--random", "5", "--out", out}).code, 0);
  const ProgramOutput output = RunForTest({"replay", out, "--slots", "3,9"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("5 tokens, 4 layers, 4 of 16 experts"));
}

// With --force too: a model that is gone is not worth any trace.
TEST(Trace, NeverReplacesWhatItReads) {
  const TestFolder folder;
  const std::string model = folder.Path("model");
  fs::create_directory(model);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    fs::copy_file(fs::path(kModel) / name, fs::path(model) / name);
  }
  const std::string text = folder.Path("text.txt");
  WriteText(text, "Once");
  const auto refusal = [&](const char* command, const std::string& out) {
    std::vector<std::string> arguments = {command, model, "--force", "--out", out};
    if (std::string(command) == "trace") {
      arguments.insert(arguments.end(), {"--text", text});
    } else {
      arguments.insert(arguments.end(), {"--tokens", "1,2"});
    }
    const ProgramOutput output = RunForTest(arguments);
    EXPECT_EQ(output.code, 2) << command << out;
    return output.err;
  };
  for (const char* command : {"trace", "logits"}) {
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
      const std::string out = model + "/" + name;
      const uint64_t bytes = fs::file_size(out);
      EXPECT_THAT(refusal(command, out), HasSubstr("name another file to write"));
      EXPECT_EQ(fs::file_size(out), bytes);
    }
  }
  EXPECT_THAT(refusal("trace", text), HasSubstr("which is being read"));
  EXPECT_EQ(ReadText(text), "Once");
  EXPECT_EQ(RunForTest({"trace", model, "--tokens", "1", "--out", model + "/new.trace"}).code, 0);
}

TEST(Trace, RandomTokensHaveALimit) {
  const TestFolder folder;
  const ProgramOutput output =
      RunForTest({"trace", kModel, "--random", "4294967295", "--out", folder.Path("x")});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("--random: 4294967295, expected at most 16777216"));
}

TEST(Replay, SlotsAreNumbersAboveZero) {
  const TestFolder folder;
  const std::string path = TraceFile(folder, std::string(kHeader) + "0 1\n");
  for (const char* slots : {"0", "1,0", "-1", "abc", "1,,2", "1,", ",", "4294967296", "1.5"}) {
    const ProgramOutput output = RunForTest({"replay", path, "--slots", slots});
    EXPECT_EQ(output.code, 2) << slots;
    EXPECT_THAT(output.err, HasSubstr("--slots: \"" + std::string(slots) + "\", expected"));
  }
  std::string many = "1";
  for (int i = 1; i < 64; ++i) many += ",1";
  EXPECT_EQ(RunForTest({"replay", path, "--slots", many}).code, 0);
  EXPECT_EQ(RunForTest({"replay", path, "--slots", many + ",1"}).code, 2);
  EXPECT_EQ(RunForTest({"replay", path, "--slots", "4294967295"}).code, 0);
}

TEST(Replay, ATraceWithoutTokensIsDamaged) {
  const TestFolder folder;
  const std::string path = TraceFile(folder, kHeader);
  const ProgramOutput output = RunForTest({"replay", path});
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err, HasSubstr(path + ": line 3: a layer"));
}

TEST(Replay, NamesFromTheFileCannotSteerTheTerminal) {
  const TestFolder folder;
  const std::string path = TraceFile(
      folder, "# smoe trace 1\n# experts 4 top_k 1 expert_bytes 100 model \x1b[31m\n0 1\n");
  const ProgramOutput output = RunForTest({"replay", path});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace smoe::cli
