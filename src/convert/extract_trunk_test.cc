#include "convert/extract_trunk.h"

#include <gtest/gtest.h>

#include "convert/files_for_test.h"
#include "convert/sculptor.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

NoProgress g_no_progress;

TEST(ExtractTrunk, GivesTheFileThatSplitWouldHaveWritten) {
  const TestFolder folder;
  ShatterOptions options;
  ASSERT_TRUE(Shatter(TinyMoe(), folder.Path("one.smoe"), options, g_no_progress));
  options.split = true;
  ASSERT_TRUE(Shatter(TinyMoe(), folder.Path("two.smoe"), options, g_no_progress));
  const std::string out = folder.Path("trunk.safetensors");
  const auto report = ExtractTrunk(folder.Path("one.smoe"), out, false, g_no_progress);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->bytes, std::filesystem::file_size(out));
  EXPECT_GT(report->tensor_count, 20U);
  EXPECT_TRUE(ReadText(out) == ReadText(folder.Path("two.scout.safetensors")));
  // Once there, it is not replaced.
  const auto again = ExtractTrunk(folder.Path("one.smoe"), out, false, g_no_progress);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kInvalid);
  EXPECT_TRUE(ExtractTrunk(folder.Path("one.smoe"), out, true, g_no_progress));
  // A vault without a trunk says where it is.
  const auto none = ExtractTrunk(folder.Path("two.smoe"), folder.Path("x"), false, g_no_progress);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("two.scout.safetensors"), std::string::npos);
}

TEST(ExtractTrunk, NeverReplacesTheVaultItReads) {
  const TestFolder folder;
  const std::string path = folder.Path("o.smoe");
  ASSERT_TRUE(Shatter(TinyMoe(), path, {}, g_no_progress));
  const std::string before = ReadText(path);
  const auto report = ExtractTrunk(path, path, true, g_no_progress);
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message().find("which is being read"), std::string::npos);
  EXPECT_TRUE(ReadText(path) == before);
}

TEST(ExtractTrunk, LeavesNoFileWhenTheTrunkIsDamaged) {
  const TestFolder folder;
  const std::string path = folder.Path("o.smoe");
  ASSERT_TRUE(Shatter(TinyMoe(), path, {}, g_no_progress));
  std::string file = ReadText(path);
  {
    const auto vault = store::vault::OpenVault(path).value();
    const auto* trunk = vault.annex->Find(store::vault::kSectionTrunk);
    const size_t at = trunk->offset + trunk->size - 10;
    file[at] = static_cast<char>(file[at] ^ 1);
  }
  WriteText(path, file);
  const std::string out = folder.Path("trunk.safetensors");
  const auto report = ExtractTrunk(path, out, false, g_no_progress);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

}  // namespace
}  // namespace smoe::convert
