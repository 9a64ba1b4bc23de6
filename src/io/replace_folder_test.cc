#include "io/replace_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace smoe::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

class ReplaceFolderTest : public testing::Test {
 protected:
  ReplaceFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "smoe_replace_XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    for (const char* name : {"old", "new"}) fs::create_directory(Path(name));
  }
  ~ReplaceFolderTest() override { fs::remove_all(root_); }

  std::string Path(const std::string& name) const { return (fs::path(root_) / name).string(); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
  }
  std::map<std::string, std::string> FilesOf(const std::string& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(Path(folder))) {
      std::ifstream file(entry.path());
      files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return files;
  }

  std::string root_;
};

TEST_F(ReplaceFolderTest, TheNewerTakesTheNameAndTheRestOfTheOlderMovesOver) {
  Write("old/a", "old a");
  Write("old/both", "old both");
  Write("old/notes", "notes");
  Write("new/b", "new b");
  Write("new/both", "new both");
  fs::permissions(Path("old"), fs::perms(0750));
  ASSERT_TRUE(
      ReplaceFolder(Path("new"), Path("old"), [](const std::string& name) { return name == "a"; }));
  EXPECT_THAT(FilesOf("old"), UnorderedElementsAre(Pair("b", "new b"), Pair("both", "new both"),
                                                   Pair("notes", "notes")));
  EXPECT_FALSE(fs::exists(Path("new")));
  EXPECT_EQ(fs::status(Path("old")).permissions(), fs::perms(0750));
}

TEST_F(ReplaceFolderTest, WithoutTheNewerOneTheOlderStays) {
  Write("old/a", "old a");
  const Status status =
      ReplaceFolder(Path("absent"), Path("old"), [](const std::string&) { return true; });
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr(Path("old")));
  EXPECT_THAT(FilesOf("old"), UnorderedElementsAre(Pair("a", "old a")));
}

TEST_F(ReplaceFolderTest, WhatCannotBeRemovedIsLeftAndTold) {
  fs::create_directories(Path("old/a/kept"));  // is_replaced names it, but it is no file
  Write("old/b", "old b");
  Write("new/b", "new b");
  testing::internal::CaptureStderr();
  const Status replaced =
      ReplaceFolder(Path("new"), Path("old"), [](const std::string&) { return true; });
  const std::string told = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(replaced);
  EXPECT_THAT(FilesOf("old"), UnorderedElementsAre(Pair("b", "new b")));
  EXPECT_TRUE(fs::exists(Path("new/a/kept")));
  EXPECT_FALSE(fs::exists(Path("new/b")));
  EXPECT_THAT(told, HasSubstr(Path("new") + ": of what was in " + Path("old") + " before"));
}

TEST_F(ReplaceFolderTest, MountPointsAndTheWorkingFolderAreRefusedBeforehand) {
  EXPECT_TRUE(CheckReplaceableFolder(Path("old")));
  for (const char* mount : {"/", "/proc"}) {
    const Status refused = CheckReplaceableFolder(mount);
    ASSERT_FALSE(refused) << mount;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
    EXPECT_THAT(refused.error().message(), HasSubstr("mount point"));
  }
  const Status here = CheckReplaceableFolder(".");
  ASSERT_FALSE(here);
  EXPECT_THAT(here.error().message(), HasSubstr("started in"));
}

}  // namespace
}  // namespace smoe::io
