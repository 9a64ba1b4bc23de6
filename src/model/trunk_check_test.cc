#include "model/trunk_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

using testing::HasSubstr;

// A checkpoint taken for the trunk of a store, with the checksum that it has when it is opened.
class TrunkCheckTest : public testing::Test {
 protected:
  TrunkCheckTest() : folder_(EditableFolder(DeepseekFolder()).Write()) {
    path_ = folder_->path() + "/model.safetensors";
    text_ = ReadText(path_);
    checksum_ = Checksum(AsBytes(std::string_view(text_)));
  }

  // The last byte but `from_end` is another now, so little that every weight stays finite.
  void Damage(size_t from_end) {
    std::string text = text_;
    text[text.size() - from_end] = static_cast<char>(text[text.size() - from_end] ^ 1);
    std::ofstream(path_, std::ios::binary) << text;
  }

  Status Load(bool drops_page_cache, bool leaves_embedding) {
    store::ModelFiles files = OpenFolder(folder_->path());
    files.trunk_checksum = {0, text_.size(), checksum_};
    const auto model = LoadTestModel(
        std::move(files), 2, kernels::kScalarKernels,
        {.row_count_max = 4,
         .logit_row_max = 4,
         .trunk = {.leaves_embedding = leaves_embedding, .drops_page_cache = drops_page_cache}});
    if (!model) return Unexpected(model.error());
    return Ok();
  }

  std::unique_ptr<checkpoint::TestFolder> folder_;
  std::string path_;
  std::string text_;
  uint64_t checksum_ = 0;
};

TEST_F(TrunkCheckTest, ASoundTrunkLoadsAndADamagedOneIsNamed) {
  for (const bool drops : {false, true}) {
    for (const bool leaves : {false, true}) {
      std::ofstream(path_, std::ios::binary) << text_;
      const Status sound = Load(drops, leaves);
      EXPECT_TRUE(sound) << sound.error().message();
      for (const size_t from_end : {size_t{2}, text_.size() / 2 / 2 * 2}) {
        Damage(from_end);
        const Status damaged = Load(drops, leaves);
        ASSERT_FALSE(damaged) << drops << leaves << from_end;
        EXPECT_EQ(damaged.error().code(), ErrorCode::kCorrupt);
        EXPECT_THAT(damaged.error().message(), HasSubstr(path_ + ": trunk: checksum is "));
        EXPECT_THAT(damaged.error().message(),
                    HasSubstr(fmt::format("expected {:016x}", checksum_)));
      }
    }
  }
}

TEST_F(TrunkCheckTest, WithoutAChecksumThereIsNothingToCompare) {
  Damage(2);
  store::ModelFiles files = OpenFolder(folder_->path());
  TrunkCheck check(files, {{&files.trunk.files().front(), 0, 100}}, true);
  check.Done(0);
  EXPECT_TRUE(check.Finish());
}

TEST_F(TrunkCheckTest, NobodyWaitsForWhatNobodyWantsToKnow) {
  store::ModelFiles files = OpenFolder(folder_->path());
  files.trunk_checksum = {0, text_.size(), checksum_ + 1};
  const TrunkCheck check(files, {}, false);
}

TEST_F(TrunkCheckTest, AFileThatEndsEarlyIsSaidTo) {
  store::ModelFiles files = OpenFolder(folder_->path());
  files.trunk_checksum = {0, text_.size() + 1, checksum_};
  TrunkCheck check(files, {}, true);
  const Status truncated = check.Finish();
  ASSERT_FALSE(truncated);
  EXPECT_EQ(truncated.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(truncated.error().message(), HasSubstr(path_));
}

}  // namespace
}  // namespace smoe::model
