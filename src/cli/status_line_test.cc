// What is drawn while a request runs: on a pseudo terminal, into files and into pipes.
#include "cli/status_line.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/console_for_test.h"
#include "cli/generation.h"
#include "store/model_files.h"

namespace smoe::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kModel = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";

// Both ends of a pseudo terminal. What was written to it is read back without blocking.
class Terminal {
 public:
  Terminal() {
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    EXPECT_GE(master_, 0);
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    slave_ = std::fopen(ptsname(master_), "r+");
    EXPECT_NE(slave_, nullptr);
  }
  ~Terminal() {
    std::fclose(slave_);
    close(master_);
  }
  std::FILE* file() const { return slave_; }
  std::string Text() const {
    std::fflush(slave_);
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(master_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int master_ = -1;
  std::FILE* slave_ = nullptr;
};

class StatusLineTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("TERM", "xterm", 1), 0);
    auto files = store::OpenModelFiles(kModel, {});
    ASSERT_TRUE(files) << files.error().message();
    engine::EngineOptions options;
    options.thread_count = 1;
    options.cache_experts = 9;
    auto engine = engine::Engine::Open(std::move(*files), options);
    ASSERT_TRUE(engine) << engine.error().message();
    engine_ = std::move(*engine);
  }

  // Six prompt tokens and four of the answer, without any wait between two drawings.
  void Run(std::FILE* out, std::FILE* err, StatusMode mode) {
    Console console{nullptr, out, err};
    constexpr std::chrono::milliseconds kNone{0};
    engine::Request request;
    request.prompt = {1, 2, 3, 4, 5, 6};
    request.token_count_max = 4;
    request.shares_prefix = false;
    StatusLine status(*engine_, request.prompt.size(), mode, console, {kNone, kNone, kNone});
    ASSERT_TRUE(engine_->Submit(std::move(request)));
    while (!engine_->idle()) {
      const auto events = engine_->Step();
      ASSERT_TRUE(events);
      for (const engine::TokenEvent& event : *events) {
        status.Token();
        if (event.token) console.Print("x");
      }
    }
  }

  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(StatusLineTest, WithTheTextInAFileALineIsRedrawnAndWiped) {
  const Terminal terminal;
  std::FILE* const out = std::tmpfile();
  Run(out, terminal.file(), StatusMode::kAuto);
  EXPECT_EQ(TakeText(out), "xxxx");
  const std::string text = terminal.Text();
  EXPECT_THAT(text, HasSubstr("\rprompt ["));
  EXPECT_THAT(text, HasSubstr("6 of 6 tokens"));
  EXPECT_THAT(text, HasSubstr("GB/s from the drive"));
  EXPECT_THAT(text, HasSubstr("% waiting\x1b[K"));
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << "wiped";
  EXPECT_THAT(text, Not(HasSubstr("\x1b]2;")));
}

TEST_F(StatusLineTest, WithTheTextOnTheTerminalOnlyTheTitleChanges) {
  const Terminal terminal;
  Run(terminal.file(), terminal.file(), StatusMode::kAuto);
  std::string text = terminal.Text();
  EXPECT_THAT(text, HasSubstr("\x1b]2;smoe: "));
  EXPECT_TRUE(text.ends_with("\x1b[23;2t")) << "the old title";
  // What a terminal shows below the bar: titles and keeping them draw nothing.
  std::string shown = text.substr(text.find('\n') + 1);
  for (size_t at = 0; (at = shown.find("\x1b]2;")) != std::string::npos;) {
    shown.erase(at, shown.find('\x07', at) + 1 - at);
  }
  for (const char* code : {"\x1b[22;2t", "\x1b[23;2t"}) {
    const size_t at = shown.find(code);
    ASSERT_NE(at, std::string::npos);
    shown.erase(at, std::string(code).size());
  }
  EXPECT_EQ(shown, "xxxx");
}

TEST_F(StatusLineTest, ATerminalWithoutTitlesGetsNone) {
  const Terminal terminal;
  ASSERT_EQ(setenv("TERM", "dumb", 1), 0);
  Run(terminal.file(), terminal.file(), StatusMode::kAuto);
  EXPECT_THAT(terminal.Text(), Not(HasSubstr("\x1b]2;")));
}

// The other end may be on the same terminal.
TEST_F(StatusLineTest, WithTheTextInAPipeNothingIsRedrawnBesideIt) {
  const Terminal terminal;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::FILE* const out = fdopen(ends[1], "w");
  Run(out, terminal.file(), StatusMode::kAuto);
  std::fclose(out);
  close(ends[0]);
  const std::string text = terminal.Text();
  EXPECT_THAT(text, HasSubstr("\x1b]2;smoe: "));
  EXPECT_THAT(text, Not(HasSubstr("% waiting\x1b[K"))) << "as a line ends";
}

TEST_F(StatusLineTest, WithoutATerminalNothingIsSaidUnlessAsked) {
  for (const StatusMode mode : {StatusMode::kAuto, StatusMode::kOn}) {
    std::FILE* const out = std::tmpfile();
    std::FILE* const err = std::tmpfile();
    Run(out, err, mode);
    EXPECT_EQ(TakeText(out), "xxxx");
    const std::string text = TakeText(err);
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
    EXPECT_THAT(text, Not(HasSubstr("\r")));
    EXPECT_EQ(text.find("answer: ") != std::string::npos, mode == StatusMode::kOn);
  }
}

TEST_F(StatusLineTest, OffIsSilentEvenOnATerminal) {
  const Terminal terminal;
  Run(terminal.file(), terminal.file(), StatusMode::kOff);
  EXPECT_EQ(terminal.Text(), "xxxx");
}

// 8 tokens in 2 s; three of four hits; 3 GB; half of the time waiting.
TEST(StatusText, ByHand) {
  engine::EngineStats before, after;
  before.cache.hit_count = 100;
  after.cache.hit_count = 103;
  after.cache.miss_count = 1;
  after.cache.read_bytes = 3'000'000'000;
  after.cache.wait_ns = 1'000'000'000;
  EXPECT_EQ(StatusText(before, after, 8, 2),
            "4.00 tok/s  75.0 % in memory  1.50 GB/s from the drive  50 % waiting");
}

}  // namespace
}  // namespace smoe::cli
