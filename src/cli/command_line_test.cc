#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "cli/console.h"
#include "cli/console_for_test.h"
#include "cli/line_reader.h"
#include "cli/progress_bar.h"
#include "cli/sampling_options.h"
#include "cli/token_ids.h"

namespace smoe::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CommandLine, EveryCommandHasHelpWithItsExample) {
  for (const Command& command : AllCommands()) {
    const ProgramOutput output = RunForTest({command.name, "--help"});
    EXPECT_EQ(output.code, 0) << command.name;
    EXPECT_THAT(output.out, HasSubstr("Example:")) << command.name;
    EXPECT_THAT(output.out, HasSubstr(std::string("smoe ") + command.name)) << command.name;
  }
}

TEST(CommandLine, WrongUsageIsExitCode2AndSaysWhereHelpIs) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"fly", "--high"},
      {"inspect"},
      {"run", "--no-such-option"},
      {"run", "--io", "carrier-pigeon", "-p", "x"},
      {"run", "--cache", "much", "-p", "x"},
      {"run", "-n", "-5", "-p", "x"},
  };
  for (const auto& arguments : cases) {
    const ProgramOutput output = RunForTest(arguments);
    EXPECT_EQ(output.code, 2) << testing::PrintToString(arguments);
    EXPECT_THAT(output.err, HasSubstr("--help")) << testing::PrintToString(arguments);
    EXPECT_EQ(output.out, "") << testing::PrintToString(arguments);
  }
}

// Without the model there is nothing to sample from, so this asks the function that the commands
// use.
TEST(Sampling, AValueOutOfRangeIsNamedByItsFlagOrByTheModelsFile) {
  SamplingOptions options;
  options.top_p = 3;
  const auto flag = ChooseSampling(options, std::nullopt);
  ASSERT_FALSE(flag);
  EXPECT_THAT(flag.error().message(), testing::StartsWith("--top-p: 3, expected"));
  options.top_p.reset();
  options.repetition_penalty = 0;
  EXPECT_THAT(ChooseSampling(options, std::nullopt).error().message(),
              testing::StartsWith("--repetition-penalty: 0, expected"));
  const auto file = ChooseSampling({}, R"({"do_sample": true, "top_p": 7})");
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message(), testing::StartsWith("generation_config.json: top_p: 7"));
  // Another type than a number is not taken for "not said"; null is.
  const auto text = ChooseSampling({}, R"({"do_sample": true, "temperature": "hot"})");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message(),
            "generation_config.json: temperature: \"hot\", expected a number");
  const auto negative = ChooseSampling({}, R"({"do_sample": true, "top_k": -1})");
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().message(),
            "generation_config.json: top_k: -1, expected 0 (off) or more");
  const auto null = ChooseSampling({}, R"({"do_sample": true, "temperature": null, "top_k": 7})");
  ASSERT_TRUE(null);
  EXPECT_EQ(null->temperature, 1);
  EXPECT_EQ(null->top_k, 7U);
}

TEST(Logits, AFileThatIsThereIsReplacedOnlyByForce) {
  const std::string out = (std::filesystem::temp_directory_path() /
                           ("smoe_logits_" + std::to_string(getpid()) + ".safetensors"))
                              .string();
  const std::string model = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  std::ofstream(out) << "mine";
  const std::vector<std::string> arguments = {"logits", model, "--tokens", "1,2", "--out", out};
  const ProgramOutput refused = RunForTest(arguments);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("exists; --force replaces it"));
  EXPECT_EQ(std::filesystem::file_size(out), 4u);
  std::vector<std::string> forced = arguments;
  forced.push_back("--force");
  EXPECT_EQ(RunForTest(forced).code, 0);
  EXPECT_GT(std::filesystem::file_size(out), 4u);
  std::filesystem::remove(out);
}

TEST(Shatter, AFolderThatIsMissingIsNamed) {
  const std::string model = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  const ProgramOutput output = RunForTest({"shatter", model, "/no/such/folder/x.smoe"});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("there is no folder /no/such/folder"));
}

TEST(CommandLine, AnUnknownCommandIsNamed) {
  EXPECT_THAT(RunForTest({"fly"}).err, HasSubstr("smoe: no command \"fly\""));
  EXPECT_THAT(RunForTest({}).err, HasSubstr("smoe: no command given"));
}

TEST(CommandLine, HelpNamesAPositionalOnceAndTheWordsOfAChoice) {
  const std::string help = RunForTest({"run", "--help"}).out;
  EXPECT_THAT(help, HasSubstr("--io auto|uring|threads"));
  EXPECT_THAT(help, HasSubstr("--cache SIZE "));
  EXPECT_THAT(help, Not(HasSubstr("MODEL MODEL")));
  EXPECT_THAT(help, Not(HasSubstr("\n\n\n")));
}

// A pipe without a reader is what `smoe ... | head` leaves.
TEST(CommandLine, AReaderThatIsGoneGetsAnExitCodeAndNoMessage) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  std::signal(SIGPIPE, SIG_IGN);
  Console console{std::tmpfile(), fdopen(ends[1], "w"), std::tmpfile()};
  EXPECT_EQ(RunProgram(std::vector<std::string>{"version"}, console), 4);
  EXPECT_EQ(TakeText(console.err), "");
  std::fclose(console.out);
  std::fclose(console.in);
}

TEST(CommandLine, NumbersAreNeitherWrappedNorCutNorMadeUp) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"--threads", {"", "-1", "4294967296", "18446744073709551616", "1.5", "0x10", "1e3", " 5"}},
      {"--context", {"", "-1", "18446744073709551616", "1GiB", "nan"}},
      {"--cache-experts", {"", "-1", "4294967296"}},
      {"--seed", {"", "-1", "18446744073709551616"}},
      {"--cache", {"", "-1", "18446744073709551616", "16384PiB", "GiB", "nan", "0.5", "1.3GiB"}},
      {"--temperature", {"", "nan", "inf", "-inf", "1e999", "0x10", "1,5"}},
      {"--top-p", {"", "nan"}},
  };
  for (const auto& [option, values] : cases) {
    for (const char* value : values) {
      const ProgramOutput output = RunForTest({"run", "x.smoe", "--tokens", "1", option, value});
      EXPECT_EQ(output.code, 2) << option << " \"" << value << '"';
      EXPECT_THAT(output.err, HasSubstr(option)) << value;
      EXPECT_THAT(output.err, HasSubstr("Try: smoe run --help")) << option << " " << value;
    }
  }
  EXPECT_THAT(RunForTest({"run", "x.smoe", "--memory", "1.5XB"}).err,
              HasSubstr("--memory: \"1.5XB\", expected a size such as 4GiB"));
  EXPECT_THAT(RunForTest({"run", "x.smoe", "--threads", "-1"}).err,
              HasSubstr("--threads: \"-1\", expected a whole number from 0 to 4294967295"));
}

TEST(CommandLine, ALoopOfLinksIsAnErrorOfTheFile) {
  const auto loop = std::filesystem::temp_directory_path() / fmt::format("smoe_loop_{}", getpid());
  std::filesystem::create_symlink(loop, loop);
  const std::string path = loop.string();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", path},
                                             {"verify", path},
                                             {"tokenize", path},
                                             {"upgrade", path, "--config", path},
                                             {"shatter", path, path}}) {
    const ProgramOutput output = RunForTest(arguments);
    EXPECT_NE(output.code, 0) << arguments[0];
    EXPECT_THAT(output.err, HasSubstr("smoe " + arguments[0] + ": " + path)) << arguments[0];
  }
  std::filesystem::remove(loop);
  EXPECT_THAT(RunForTest({"inspect", std::string(5000, 'a')}).err, HasSubstr("File name too long"));
}

// Input that is longer than what is read, without its bytes in memory or on the drive.
std::FILE* HugeInput(size_t size) {
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(ftruncate(fileno(file), static_cast<off_t>(size)), 0);
  return file;
}

TEST(CommandLine, EndlessInputIsRefused) {
  std::FILE* exact = HugeInput(100000);
  EXPECT_EQ(ReadAll(exact, 100000).value_or("").size(), 100000u);
  std::rewind(exact);
  const auto beyond = ReadAll(exact, 99999);
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message(), HasSubstr("more than 99999 bytes"));
  std::fclose(exact);

  Console console{HugeInput(kLineBytesMax + 1), stdout, stderr};
  std::string line;
  EXPECT_EQ(LineReader(console).Read("", &line), LineReader::Outcome::kTooLong);
  std::fclose(console.in);
  console.in = HugeInput(kLineBytesMax);
  EXPECT_EQ(LineReader(console).Read("", &line), LineReader::Outcome::kLine);
  EXPECT_EQ(line.size(), kLineBytesMax);
  std::fclose(console.in);

  std::FILE* folder = std::fopen("/", "r");
  EXPECT_EQ(ReadAll(folder).error().code(), ErrorCode::kIo);
  std::fclose(folder);
}

TEST(CommandLine, AClosedStreamIsNeverTakenOverByAFile) {
  const auto attempt = [] {
    close(0);
    close(1);
    HoldStandardStreams();
    char byte = 0;
    const bool is_held = open("/dev/zero", O_RDWR) > 2;
    std::_Exit(is_held && read(0, &byte, 1) < 0 && write(1, &byte, 1) < 0 ? 0 : 1);
  };
  EXPECT_EXIT(attempt(), testing::ExitedWithCode(0), "");
}

TEST(CommandLine, AMissingFileIsNamed) {
  for (const char* command : {"inspect", "verify", "chat"}) {
    const ProgramOutput output = RunForTest({command, "/no/such/model.smoe"});
    EXPECT_EQ(output.code, 2);
    EXPECT_THAT(output.err, HasSubstr("/no/such/model.smoe: no such file or folder"));
    EXPECT_THAT(output.err, HasSubstr(std::string("smoe ") + command + ":"));
  }
}

TEST(CommandLine, ExactlyOnePromptIsWanted) {
  EXPECT_EQ(RunForTest({"run", "x.smoe"}).code, 2);
  EXPECT_THAT(RunForTest({"run", "x.smoe", "-p", "a", "--tokens", "1"}).err,
              HasSubstr("2 given, expected one of them"));
}

// /dev/full takes no byte: what a script redirects to a full drive must not look like success.
TEST(CommandLine, AResultThatCannotBeWrittenIsExitCode4) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"version"}, {"man"}, {"--help"}, {"run", "--help"}}) {
    Console console{std::tmpfile(), std::fopen("/dev/full", "w"), std::tmpfile()};
    ASSERT_NE(console.out, nullptr);
    EXPECT_EQ(RunProgram(arguments, console), 4) << arguments[0];
    EXPECT_THAT(TakeText(console.err), HasSubstr("standard output: cannot be written"))
        << arguments[0];
    std::fclose(console.out);
    std::fclose(console.in);
  }
}

TEST(CommandLine, AMessageThatCannotBeWrittenEndsNothing) {
  Console console{std::tmpfile(), std::tmpfile(), std::fopen("/dev/full", "w")};
  ASSERT_NE(console.err, nullptr);
  std::setvbuf(console.err, nullptr, _IONBF, 0);
  EXPECT_EQ(RunProgram(std::vector<std::string>{"fly"}, console), 2);
  EXPECT_EQ(RunProgram(std::vector<std::string>{"version"}, console), 0);
  std::fclose(console.err);
  std::fclose(console.out);
  std::fclose(console.in);
}

TEST(ParseTokenIds, TakesCommasAndSpacesAndNamesWhatIsNoId) {
  EXPECT_EQ(ParseTokenIds("1,2, 3\n4").value(), (std::vector<uint32_t>{1, 2, 3, 4}));
  EXPECT_EQ(ParseTokenIds("[1,2]\n").value(), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(ParseTokenIds("4294967295").value(), (std::vector<uint32_t>{4294967295u}));
  for (const char* bad :
       {"", ",", "1,x", "-1", "1.5", "4294967296", "1e3", "1,,2", ",1", "1, ,2"}) {
    const auto tokens = ParseTokenIds(bad);
    ASSERT_FALSE(tokens) << bad;
    EXPECT_EQ(tokens.error().code(), ErrorCode::kInvalid);
  }
}

TEST(CommandLine, AFileNameThatIsNoUtf8IsShownInMessages) {
  const ProgramOutput output = RunForTest({"inspect", "/no/caf\xe9.smoe"});
  EXPECT_NE(output.code, 0);
  EXPECT_NE(output.err.find("/no/caf\\xe9.smoe"), std::string::npos) << output.err;
}

TEST(DurationText, CountsMinutesAndHours) {
  EXPECT_EQ(DurationText(7), "0:07");
  EXPECT_EQ(DurationText(127.4), "2:07");
  EXPECT_EQ(DurationText(5025), "1:23:45");
  EXPECT_EQ(DurationText(1e300), "?");
}

// The shell itself is the judge, where it is installed.
TEST(Completions, AreScriptsThatTheShellAccepts) {
  const ProgramOutput output = RunForTest({"completions", "bash"});
  ASSERT_EQ(output.code, 0);
  const std::string path = testing::TempDir() + "smoe_completions.bash";
  std::ofstream(path) << output.out;
  const std::string check = "bash -c '. " + path +
                            "; COMP_WORDS=(smoe run --io u); COMP_CWORD=3; _smoe; "
                            "[ \"${COMPREPLY[*]}\" = uring ]'";
  EXPECT_EQ(std::system(check.c_str()), 0) << output.out;
  for (const char* shell : {"zsh", "fish"}) {
    const ProgramOutput other = RunForTest({"completions", shell});
    EXPECT_EQ(other.code, 0);
    EXPECT_THAT(other.out, HasSubstr("cache-experts"));
  }
  EXPECT_EQ(RunForTest({"completions", "tcsh"}).code, 2);
}

TEST(Man, NamesEveryCommandAndEveryOption) {
  const std::string page = RunForTest({"man"}).out;
  for (const Command& command : AllCommands()) {
    Arguments arguments;
    command.define(arguments);
    for (const OptionInfo& option : arguments.options()) {
      std::string flags;
      for (const char c : option.flags) flags += c == '-' ? "\\-" : std::string(1, c);
      EXPECT_THAT(page, HasSubstr(flags)) << command.name;
    }
  }
}

TEST(Version, NamesTheLicencesOfAllLibraries) {
  const std::string licences = RunForTest({"version", "--licenses"}).out;
  for (const char* name : {"fmt", "CLI11", "liburing", "simdjson", "tokenizers", "minijinja"}) {
    EXPECT_THAT(licences, HasSubstr(name));
  }
}

}  // namespace
}  // namespace smoe::cli
