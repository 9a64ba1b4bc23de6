#include "convert/give_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/files_for_test.h"

namespace smoe::convert {
namespace {

struct Left {
  std::string message;
  ErrorCode code;
  bool is_partial_kept = false;
  bool is_journal_there = false;
};

Left GiveUpWith(bool is_resume, Status&& status, bool is_force = false) {
  const TestFolder folder;
  const std::string journal = folder.Path("out.journal");
  WriteText(journal, "x");
  bool is_kept = false;
  const Unexpected given = GiveUp(
      {"out", journal, is_resume, is_force}, [&] { is_kept = true; }, std::move(status));
  return {given.value().message(), given.value().code(), is_kept, std::filesystem::exists(journal)};
}

TEST(GiveUp, AFullDriveAndAFailingOneLeaveWhatAResumeTakes) {
  for (const bool is_full : {true, false}) {
    const Left left = GiveUpWith(false, is_full ? Exhausted("no space") : Io("no drive"));
    EXPECT_EQ(left.code, is_full ? ErrorCode::kExhausted : ErrorCode::kIo);
    EXPECT_THAT(left.message, testing::StartsWith("writing out: no "));
    EXPECT_THAT(left.message, testing::EndsWith("; --resume goes on from here"));
    EXPECT_TRUE(left.is_partial_kept);
    EXPECT_TRUE(left.is_journal_there);
  }
}

TEST(GiveUp, WhatReplacesAnotherGoesOnByBothOptions) {
  const Left left = GiveUpWith(false, Exhausted("no space"), true);
  EXPECT_EQ(left.message, "writing out: no space; --force --resume goes on from here");
}

TEST(RemoveFinishedJournal, TakesAJournalOnlyWhereNothingIsUnfinished) {
  const TestFolder folder;
  const std::string out = folder.Path("out");
  const std::string journal = folder.Path("out.journal");
  WriteText(journal, "x");
  EXPECT_FALSE(RemoveFinishedJournal(out, journal));
  WriteText(out, "x");
  WriteText(out + ".partial", "x");
  EXPECT_FALSE(RemoveFinishedJournal(out, journal));
  EXPECT_TRUE(std::filesystem::exists(journal));
  std::filesystem::remove(out + ".partial");
  EXPECT_TRUE(RemoveFinishedJournal(out, journal));
  EXPECT_FALSE(std::filesystem::exists(journal));
}

TEST(GiveUp, ASourceThatCannotBeConvertedLeavesNothing) {
  const Left left = GiveUpWith(false, Corrupt("weight 3 is NaN"));
  EXPECT_EQ(left.code, ErrorCode::kCorrupt);
  EXPECT_EQ(left.message, "writing out: weight 3 is NaN");
  EXPECT_FALSE(left.is_partial_kept);
  EXPECT_FALSE(left.is_journal_there);
}

TEST(GiveUp, AResumeLosesNothingOfTheRunBefore) {
  const Left left = GiveUpWith(true, Corrupt("weight 3 is NaN"));
  EXPECT_TRUE(left.is_partial_kept);
  EXPECT_TRUE(left.is_journal_there);
}

}  // namespace
}  // namespace smoe::convert
