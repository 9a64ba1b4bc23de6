#include "convert/recover.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "convert/files_for_test.h"
#include "convert/sculptor.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

NoProgress g_no_progress;

std::string MakeVault(const std::string& path, const ShatterOptions& options) {
  const auto report = Shatter(TinyMoe(), path, options, g_no_progress);
  EXPECT_TRUE(report) << report.error().message();
  return ReadText(path);
}

std::string WithZeros(std::string file, size_t begin, size_t end) {
  std::fill(file.begin() + static_cast<int64_t>(begin), file.begin() + static_cast<int64_t>(end),
            '\0');
  return file;
}

TEST(Recover, RebuildsHeaderTableAndBothToTheByte) {
  for (bool split : {false, true}) {
    for (tensor::SmoeBits bits : {tensor::SmoeBits::kQ4, tensor::SmoeBits::kQ2}) {
      for (auto quantiser : {tensor::Quantiser::kMse, tensor::Quantiser::kReference}) {
        if (split && bits == tensor::SmoeBits::kQ2) continue;
        SCOPED_TRACE(fmt::format("split {} bits {} quantiser {}", split, static_cast<int>(bits),
                                 static_cast<int>(quantiser)));
        const TestFolder folder;
        const std::string path = folder.Path("o.smoe");
        ShatterOptions options;
        options.split = split;
        options.bits = bits;
        options.quantiser = quantiser;
        options.group_size = bits == tensor::SmoeBits::kQ4 ? 32 : 64;
        const std::string whole = MakeVault(path, options);
        const size_t ranges[][2] = {{0, 64}, {64, 16384}, {0, 16384}};
        for (const auto& range : ranges) {
          WriteText(path, WithZeros(whole, range[0], range[1]));
          ASSERT_FALSE(store::vault::OpenVault(path));
          const auto report = Recover(TinyMoe(), path, {}, g_no_progress);
          ASSERT_TRUE(report) << report.error().message();
          EXPECT_EQ(report->bits, bits);
          EXPECT_EQ(report->group_size, options.group_size);
          EXPECT_EQ(report->quantiser, quantiser);
          EXPECT_EQ(report->expert_count, 64U);
          EXPECT_EQ(report->has_annex, !split);
          EXPECT_TRUE(report->warnings.empty());
          EXPECT_TRUE(ReadText(path) == whole);
        }
      }
    }
  }
}

TEST(Recover, RebuildsAPartialVaultWhileItsTableIsThere) {
  const TestFolder folder;
  const std::string path = folder.Path("o.smoe");
  ShatterOptions options;
  options.max_layers = 2;
  options.max_experts = 3;
  const std::string whole = MakeVault(path, options);
  WriteText(path, WithZeros(whole, 0, 64));
  const auto report = Recover(TinyMoe(), path, {}, g_no_progress);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(ReadText(path) == whole);
}

TEST(Recover, WritesNothingWhenOneExpertDiffers) {
  const TestFolder folder;
  const std::string path = folder.Path("o.smoe");
  std::string damaged = WithZeros(MakeVault(path, {}), 0, 16384);
  const size_t stride = 65536;  // 3 x 128 x 256 weights in Q4: 52,224 bytes, padded
  damaged[16384 + 17 * stride + 100] = static_cast<char>(damaged[16384 + 17 * stride + 100] ^ 1);
  WriteText(path, damaged);
  const auto report = Recover(TinyMoe(), path, {}, g_no_progress);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(report.error().message().find("1 of 64 experts differ"), std::string::npos)
      << report.error().message();
  EXPECT_NE(report.error().message().find("expert 1 of layer 1"), std::string::npos)
      << report.error().message();
  EXPECT_TRUE(ReadText(path) == damaged);
}

TEST(Recover, RefusesAnIntactVaultAndAnotherCheckpoint) {
  const TestFolder folder;
  const std::string path = folder.Path("o.smoe");
  const std::string whole = MakeVault(path, {});
  const auto intact = Recover(TinyMoe(), path, {}, g_no_progress);
  ASSERT_FALSE(intact);
  EXPECT_EQ(intact.error().code(), ErrorCode::kInvalid);
  if (!std::filesystem::exists(Reference(""))) GTEST_SKIP() << "no reference data";
  WriteText(path, WithZeros(whole, 0, 64));
  const auto other = Recover(Reference("checkpoints/qwen3_moe"), path, {}, g_no_progress);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kCorrupt);
}

TEST(Recover, RebuildsTheOriginalsInterruptedFile) {
  const std::string vault = Reference("vaults/interrupted.smoe");
  if (!std::filesystem::exists(vault)) GTEST_SKIP() << "no reference data at " << vault;
  const TestFolder folder;
  const std::string path = folder.Path("o.smoe");
  std::filesystem::copy(vault, path);
  const auto report = Recover(Reference("checkpoints/qwen3_moe_micro"), path, {}, g_no_progress);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(store::vault::OpenVault(path));
}

}  // namespace
}  // namespace smoe::convert
