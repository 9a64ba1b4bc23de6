#include "convert/journal.h"

#include <gtest/gtest.h>

#include "convert/files_for_test.h"

namespace smoe::convert {
namespace {

Json Identity(uint32_t bits) {
  Json options;
  options.Set("bits", bits);
  options.Set("split", false);
  Json identity;
  identity.Set("source", "a");
  identity.Set("options", std::move(options));
  return identity;
}

ExpertDone Expert(uint64_t index) {
  ExpertDone expert;
  expert.index = index;
  expert.checksum = 0xFEDCBA9876543210U + index;
  expert.non_finite_count = 3;
  expert.errors[1] = {7, 0.1, 1e-300, 3.0};
  return expert;
}

TEST(Journal, GivesBackWhatWasAppendedToTheBit) {
  const TestFolder folder;
  const std::string path = folder.Path("j");
  {
    const auto journal = Journal::Create(path, Identity(4)).value();
    ASSERT_TRUE(journal->Append(Expert(5)));
    ASSERT_TRUE(journal->Append(Expert(2)));
  }
  std::vector<ExpertDone> done;
  ASSERT_TRUE(Journal::Resume(path, Identity(4), &done));
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].index, 2U);
  EXPECT_EQ(done[1].checksum, Expert(5).checksum);
  EXPECT_EQ(done[1].non_finite_count, 3U);
  EXPECT_EQ(done[1].errors[1].weight_count, 7U);
  EXPECT_EQ(done[1].errors[1].squared_error, 0.1);
  EXPECT_EQ(done[1].errors[1].squared_value, 1e-300);
}

TEST(Journal, LeavesOutTornAndDamagedLinesAtEveryByte) {
  const TestFolder folder;
  const std::string path = folder.Path("j");
  size_t first_line_end = 0;
  {
    const auto journal = Journal::Create(path, Identity(4)).value();
    ASSERT_TRUE(journal->Append(Expert(0)));
    first_line_end = ReadText(path).size();
    ASSERT_TRUE(journal->Append(Expert(1)));
  }
  const std::string whole = ReadText(path);
  for (size_t cut = first_line_end; cut < whole.size(); ++cut) {
    WriteText(path, whole.substr(0, cut));
    std::vector<ExpertDone> done;
    ASSERT_TRUE(Journal::Resume(path, Identity(4), &done));
    ASSERT_EQ(done.size(), 1U) << cut;
    std::string flipped = whole;
    flipped[cut] = static_cast<char>(flipped[cut] ^ 1);
    WriteText(path, flipped);
    ASSERT_TRUE(Journal::Resume(path, Identity(4), &done));
    ASSERT_EQ(done.size(), 1U) << cut;
  }
  for (size_t cut = 0; cut < whole.find('\n'); ++cut) {
    WriteText(path, whole.substr(0, cut));
    std::vector<ExpertDone> done;
    ASSERT_TRUE(Journal::Resume(path, Identity(4), &done));
    ASSERT_TRUE(done.empty()) << cut;
  }
}

TEST(Journal, RefusesAnotherIdentityAndNamesTheDifference) {
  const TestFolder folder;
  const std::string path = folder.Path("j");
  ASSERT_TRUE(Journal::Create(path, Identity(4)));
  std::vector<ExpertDone> done;
  const auto resumed = Journal::Resume(path, Identity(2), &done);
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(resumed.error().message().find("options.bits: then 4, now 2"), std::string::npos)
      << resumed.error().message();
}

TEST(Journal, BeginsWhereThereIsNone) {
  const TestFolder folder;
  std::vector<ExpertDone> done;
  const auto journal = Journal::Resume(folder.Path("j"), Identity(4), &done);
  ASSERT_TRUE(journal);
  EXPECT_TRUE(done.empty());
  ASSERT_TRUE((*journal)->Append(Expert(1)));
}

}  // namespace
}  // namespace smoe::convert
