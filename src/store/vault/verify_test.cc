#include "store/vault/verify.h"

#include <map>

#include "store/vault/vault_files_for_test.h"

namespace smoe::store::vault {
namespace {

VerifyReport Verify(const std::string& path, const VerifyOptions& options = {}) {
  VerifyReport report;
  const Result<Vault> vault = OpenVault(path);
  EXPECT_TRUE(vault) << vault.error().message();
  EXPECT_TRUE(vault && VerifyBlobs(*vault, options, &report));
  return report;
}

TEST(VerifyBlobs, FindsNothingInGoodVaultsAndReadsEachByteOnce) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"qwen3_moe", "qwen3_moe_odd.q2g32", "v1_first", "qwen3_moe_noroom"}) {
    const std::string path = ReferencePath(std::string("vaults/") + name + ".smoe");
    uint64_t last_done = 0;
    uint64_t total_seen = 0;
    VerifyOptions options;
    options.progress = [&](uint64_t done, uint64_t total) {
      EXPECT_GT(done, last_done);
      last_done = done;
      total_seen = total;
    };
    const VerifyReport report = Verify(path, options);
    EXPECT_TRUE(report.ok()) << report.problems[0];
    EXPECT_TRUE(report.warnings.empty());
    EXPECT_FALSE(report.has_checksums);
    const Result<Vault> vault = OpenVault(path);
    EXPECT_EQ(report.expert_count, vault->records.size());
    EXPECT_EQ(report.checked_bytes, vault->blobs_end - vault->header.data_offset);
    EXPECT_EQ(last_done, report.checked_bytes);
    EXPECT_EQ(total_seen, report.checked_bytes);
  }
}

TEST(VerifyBlobs, NamesBadScalesAndWarnsOfOddPadding) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::map<std::string, std::string> places = {{"scale_nan.smoe", "layer 0, expert 1, down"},
                                                     {"scale_inf.smoe", "layer 1, expert 1, up"}};
  for (const DamagedFile& damaged : LoadDamagedFiles(".smoe")) {
    if (damaged.kind != "report" && damaged.name != "padding_not_zero.smoe") continue;
    WriteFile(folder.File(damaged.name), damaged.content);
    const VerifyReport report = Verify(folder.File(damaged.name));
    if (damaged.kind != "report") {
      EXPECT_TRUE(report.ok());
      ASSERT_EQ(report.warnings.size(), 1u);
      EXPECT_NE(report.warnings[0].find("padding of 1 experts"), std::string::npos);
      continue;
    }
    EXPECT_EQ(report.problem_count, 1u) << damaged.name;
    const auto place = places.find(damaged.name);
    if (place == places.end()) continue;
    EXPECT_NE(report.problems[0].find(place->second), std::string::npos) << report.problems[0];
  }
}

TEST(VerifyBlobs, KeepsAHundredProblemsAndCountsTheRest) {
  VerifyReport report;
  for (size_t i = 0; i <= kProblemsKept; ++i) report.AddProblem("one");
  EXPECT_EQ(report.problems.size(), kProblemsKept);
  EXPECT_EQ(report.problem_count, kProblemsKept + 1);
}

TEST(VerifyTensors, NamesTheTensorAndTheElement) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  for (const DamagedFile& damaged : LoadDamagedFiles("trunk_nan.scout.safetensors")) {
    const std::string path = folder.File(damaged.name);
    WriteFile(path, damaged.content);
    const auto files = checkpoint::TensorFiles::Open(path);
    ASSERT_TRUE(files) << files.error().message();
    VerifyReport report;
    VerifyTensors(*files, &report);
    ASSERT_EQ(report.problem_count, 1u);
    EXPECT_NE(report.problems[0].find("model.norm.weight: element 0 is nan"), std::string::npos)
        << report.problems[0];
    EXPECT_NE(report.problems[0].find(path), std::string::npos);
  }
}

}  // namespace
}  // namespace smoe::store::vault
