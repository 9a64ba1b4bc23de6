#include "io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace smoe::io {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("smoe_atomic_{}", ::getpid());
    fs::create_directories(folder_);
    path_ = (folder_ / "out").string();
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Content(const std::string& path) const {
    return ReadWholeFile(path, 1 << 20).value_or("absent");
  }
  Result<AtomicFile> OpenWith(const std::string& text, const AtomicFile::Options& options) const {
    auto file = AtomicFile::Open(path_, options);
    EXPECT_TRUE(!file || file->file().WriteAt(0, AsBytes(text)));
    return file;
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(AtomicFileTest, TheNameAppearsOnlyWithCommit) {
  auto file = OpenWith("abc", {});
  ASSERT_TRUE(file);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(fs::exists(path_ + ".partial"));
  ASSERT_TRUE(file->Commit());
  EXPECT_EQ(Content(path_), "abc");
  EXPECT_FALSE(fs::exists(path_ + ".partial"));
  EXPECT_FALSE(file->file().is_open());
}

TEST_F(AtomicFileTest, WithoutCommitNothingIsLeft) {
  { const auto file = OpenWith("abc", {}); }
  EXPECT_TRUE(fs::is_empty(folder_));
  {
    auto file = OpenWith("abc", {});
    file = AtomicFile::Open((folder_ / "other").string(), {});
    EXPECT_FALSE(fs::exists(path_ + ".partial"));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(AtomicFileTest, OnlyAFileOrALinkIsEverReplaced) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path : {std::string(), folder_.string(), folder_.string() + "/", path_}) {
    for (const bool overwrite : {false, true}) {
      const auto file = AtomicFile::Open(path, {.overwrite = overwrite});
      ASSERT_FALSE(file) << path;
      EXPECT_EQ(file.error().code(), ErrorCode::kInvalid) << path;
      EXPECT_THAT(file.error().message(), HasSubstr("expected a file to write")) << path;
    }
  }
  EXPECT_TRUE(fs::is_fifo(path_));
  const std::string link = (folder_ / "link").string();
  fs::create_symlink(path_, link);
  ASSERT_TRUE(WriteFileAtomically(link, AsBytes(std::string_view("abc")), true));
  EXPECT_EQ(Content(link), "abc");
  EXPECT_TRUE(fs::is_fifo(path_));
}

TEST_F(AtomicFileTest, AnInputIsKnownByAnyOfItsNames) {
  const std::string input = (folder_ / "in").string();
  ASSERT_TRUE(WriteFileAtomically(input, AsBytes(std::string_view("abc")), false));
  const std::vector<std::string> inputs = {(folder_ / "absent").string(), input};
  EXPECT_TRUE(CheckNoInput(path_, inputs));
  fs::create_symlink(input, path_);
  const std::string hard = (folder_ / "hard").string();
  fs::create_hard_link(input, hard);
  for (const std::string& name : {input, path_, hard, folder_.string() + "/./in"}) {
    const Status status = CheckNoInput(name, inputs);
    ASSERT_FALSE(status) << name;
    EXPECT_THAT(status.error().message(), HasSubstr("which is being read"));
  }
  // The file that an output is written as, before it has its name.
  const std::vector<std::string> partial = {path_ + ".partial"};
  fs::remove(path_);
  EXPECT_TRUE(CheckNoInput(path_, partial));
  fs::create_hard_link(input, partial[0]);
  const Status status = CheckNoInput(path_, partial);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr(partial[0] + ": is "));
}

TEST_F(AtomicFileTest, AKeptPartialIsResumedOrReplaced) {
  OpenWith("abcdef", {})->KeepPartial();
  EXPECT_EQ(Content(path_ + ".partial"), "abcdef");
  OpenWith("xy", {.resume = true})->KeepPartial();
  EXPECT_EQ(Content(path_ + ".partial"), "xycdef");
  OpenWith("z", {})->KeepPartial();
  EXPECT_EQ(Content(path_ + ".partial"), "z");
}

TEST_F(AtomicFileTest, APartialThatIsALinkIsNotWrittenThrough) {
  const std::string victim = path_ + ".victim";
  ASSERT_TRUE(WriteFileAtomically(victim, AsBytes(std::string_view("precious")), false));
  std::filesystem::create_symlink(victim, path_ + ".partial");
  for (const bool resume : {false, true}) {
    const auto file = AtomicFile::Open(path_, {.overwrite = true, .resume = resume});
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code(), ErrorCode::kInvalid);
    EXPECT_NE(file.error().message().find(".partial: is no regular file"), std::string::npos);
  }
  EXPECT_EQ(Content(victim), "precious");
}

TEST_F(AtomicFileTest, AnExistingFileIsReplacedOnlyIfAsked) {
  ASSERT_TRUE(WriteFileAtomically(path_, AsBytes(std::string_view("old")), false));
  const auto refused = WriteFileAtomically(path_, AsBytes(std::string_view("new")), false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(refused.error().message(), HasSubstr("exists; --force replaces it"));
  EXPECT_EQ(Content(path_), "old");
  ASSERT_TRUE(WriteFileAtomically(path_, AsBytes(std::string_view("new")), true));
  EXPECT_EQ(Content(path_), "new");
}

TEST_F(AtomicFileTest, AFileThatAppearsMeanwhileIsNotReplaced) {
  auto file = OpenWith("ours", {});
  ASSERT_TRUE(File::Create(path_));
  const auto refused = file->Commit();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
  EXPECT_EQ(Content(path_), "");
}

TEST_F(AtomicFileTest, TwoWritersDoNotShareAPartial) {
  const auto first = OpenWith("first", {});
  const auto second = AtomicFile::Open(path_, {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(second.error().message(), HasSubstr("another process is writing it"));
  EXPECT_EQ(Content(path_ + ".partial"), "first");
}

TEST_F(AtomicFileTest, AKilledWriterLeavesOnlyThePartialAndNoLock) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto file = AtomicFile::Open(path_, {});
    if (file) (void)file->file().WriteAt(0, AsBytes(std::string_view("half")));
    ::kill(::getpid(), SIGKILL);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_EQ(Content(path_ + ".partial"), "half");
  EXPECT_TRUE(AtomicFile::Open(path_, {.resume = true}));
}

TEST_F(AtomicFileTest, AFolderThatIsNotThereIsNamed) {
  const auto file = AtomicFile::Open((folder_ / "no" / "out").string(), {});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(file.error().message(), HasSubstr("there is no folder"));
}

}  // namespace
}  // namespace smoe::io
