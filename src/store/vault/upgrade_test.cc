#include "store/vault/upgrade.h"

#include <cstring>

#include "store/vault/arch.h"
#include "store/vault/vault.h"
#include "store/vault/vault_files_for_test.h"

namespace smoe::store::vault {
namespace {

std::string Checkpoint(const std::string& name) { return ReferencePath("checkpoints/" + name); }

// Upgrades a copy of a reference vault and returns its bytes.
std::string Upgraded(const TempFolder& folder, const std::string& vault,
                     const std::string& source) {
  const std::string path = folder.File("copy.smoe");
  WriteFile(path, ReadFile(ReferencePath("vaults/" + vault + ".smoe")));
  const auto report = UpgradeVault(path, {.source = source});
  EXPECT_TRUE(report) << report.error().message();
  return ReadFile(path);
}

TEST(UpgradeVault, GivesTheBytesOfTheOriginalTool) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  struct Case {
    const char* vault;
    const char* checkpoint;
    const char* wanted;
  };
  for (const Case& c : {Case{"v1_last", "qwen3_moe", "qwen3_moe"},
                        Case{"v1_last.q2", "qwen3_moe_odd", "qwen3_moe_odd.q2"},
                        Case{"v1_dense", "qwen3_moe_dense", "qwen3_moe_dense"},
                        Case{"v1_first", "qwen3_moe_micro", "v1_first.upgraded-dir"}}) {
    SCOPED_TRACE(c.vault);
    const std::string wanted = ReadFile(ReferencePath(std::string("vaults/") + c.wanted + ".smoe"));
    EXPECT_TRUE(Upgraded(folder, c.vault, Checkpoint(c.checkpoint)) == wanted);
  }
}

TEST(UpgradeVault, TakesABareConfig) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  EXPECT_TRUE(Upgraded(folder, "v1_mse4", Checkpoint("qwen3_moe_micro") + "/config.json") ==
              ReadFile(ReferencePath("vaults/v1_mse4.upgraded-config.smoe")));
  // The original tool does not see the dense first layer without tensors. We see it in the table,
  // so the result is the one with tensors.
  EXPECT_TRUE(Upgraded(folder, "v1_dense", Checkpoint("qwen3_moe_dense") + "/config.json") ==
              ReadFile(ReferencePath("vaults/qwen3_moe_dense.smoe")));
}

TEST(UpgradeVault, RefusesWithoutRoomAndLeavesTheFileAlone) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string before = ReadFile(ReferencePath("vaults/v1_noroom.smoe"));
  const std::string path = folder.File("noroom.smoe");
  WriteFile(path, before);
  const auto report = UpgradeVault(path, {.source = Checkpoint("qwen3_moe_noroom")});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(report.error().message().find("convert the checkpoint again"), std::string::npos);
  EXPECT_TRUE(ReadFile(path) == before);
}

TEST(UpgradeVault, RefusesTheConfigOfAnotherModel) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string before = ReadFile(ReferencePath("vaults/v1_last.smoe"));
  const std::string path = folder.File("copy.smoe");
  WriteFile(path, before);
  const auto report = UpgradeVault(path, {.source = Checkpoint("qwen3_moe_odd")});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(report.error().message().find("hidden_size is 80"), std::string::npos)
      << report.error().message();
  EXPECT_TRUE(ReadFile(path) == before);
}

TEST(UpgradeVault, StampsVersion2AnewOnlyWhenForced) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string good = ReadFile(ReferencePath("vaults/qwen3_moe.smoe"));
  const std::string path = folder.File("copy.smoe");
  std::string damaged = good;
  const auto header = LoadStruct<SmoeHeader>(AsBytes(good));
  damaged.replace(header.reserved_ext + offsetof(SmoeArchBlock, activation), 1, "\x07");
  WriteFile(path, damaged);
  EXPECT_FALSE(OpenVault(path));
  EXPECT_FALSE(UpgradeVault(path, {.source = Checkpoint("qwen3_moe")}));
  EXPECT_TRUE(ReadFile(path) == damaged);
  const auto report = UpgradeVault(path, {.source = Checkpoint("qwen3_moe"), .force = true});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(ReadFile(path) == good);
  WriteFile(path, good);
  const auto refused = UpgradeVault(path, {.source = Checkpoint("qwen3_moe")});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("--force"), std::string::npos);
}

// The steps on the drive are block, reserved_ext, version: every prefix is a version 1 vault.
TEST(UpgradeVault, IsAVersion1VaultAtEveryStop) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string before = ReadFile(ReferencePath("vaults/v1_last.smoe"));
  const std::string after = ReadFile(ReferencePath("vaults/qwen3_moe.smoe"));
  const auto header = LoadStruct<SmoeHeader>(AsBytes(after));
  std::string content = before;
  const std::string path = folder.File("stopped.smoe");
  for (uint32_t bytes = 0; bytes <= sizeof(SmoeArchBlock); bytes += 16) {
    content.replace(header.reserved_ext, bytes, after.substr(header.reserved_ext, bytes));
    WriteFile(path, content);
    const Result<Vault> vault = OpenVault(path);
    ASSERT_TRUE(vault) << vault.error().message();
    EXPECT_FALSE(vault->arch);
  }
  content.replace(60, 4, after.substr(60, 4));
  WriteFile(path, content);
  const Result<Vault> vault = OpenVault(path);
  ASSERT_TRUE(vault) << vault.error().message();
  EXPECT_FALSE(vault->arch);
  EXPECT_TRUE(vault->warnings.empty());
  EXPECT_TRUE(UpgradeVault(path, {.source = Checkpoint("qwen3_moe")}));
  EXPECT_TRUE(ReadFile(path) == after);
}

checkpoint::ModelConfig PlainConfig() {
  checkpoint::ModelConfig config;
  config.model_type = "qwen3_moe";
  config.hidden_act = "silu";
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 128;
  config.num_experts = 32;
  config.num_experts_per_tok = 8;
  config.moe_intermediate_size = 768;
  config.intermediate_size = 6144;
  return config;
}

TEST(BuildArchBlock, TakesEachLimitAndRefusesOnePast) {
  checkpoint::ModelConfig config = PlainConfig();
  config.num_experts_per_tok = kArchTopKMax;
  config.head_dim = kArchHeadDimMax;
  const Result<SmoeArchBlock> arch = BuildArchBlock(config, {});
  ASSERT_TRUE(arch);
  EXPECT_TRUE(CheckArchBlock(*arch, 32));
  EXPECT_FALSE(CheckArchBlock(*arch, 15));
  config.num_experts_per_tok = kArchTopKMax + 1;
  EXPECT_EQ(BuildArchBlock(config, {}).error().code(), ErrorCode::kUnsupported);
  config = PlainConfig();
  config.head_dim = kArchHeadDimMax + 1;
  EXPECT_EQ(BuildArchBlock(config, {}).error().code(), ErrorCode::kUnsupported);
  config = PlainConfig();
  config.hidden_act = "gelu";
  EXPECT_EQ(BuildArchBlock(config, {}).error().code(), ErrorCode::kUnsupported);
}

TEST(BuildArchBlock, CutsALongModelTypeAt24Bytes) {
  checkpoint::ModelConfig config = PlainConfig();
  config.model_type = "a_model_type_of_thirty_chars__";
  const Result<SmoeArchBlock> arch = BuildArchBlock(config, {});
  ASSERT_TRUE(arch);
  EXPECT_EQ(ArchModelType(*arch), "a_model_type_of_thirty_c");
  EXPECT_EQ(arch->reserved[0], 0);
}

TEST(HeaderFfnDim, IsDenseThenSharedThenExpertWidth) {
  checkpoint::ModelConfig config = PlainConfig();
  EXPECT_EQ(HeaderFfnDim(config, true, 768), 6144u);
  EXPECT_EQ(HeaderFfnDim(config, false, 768), 768u);
  config.shared_expert_intermediate_size = 5632;
  EXPECT_EQ(HeaderFfnDim(config, false, 768), 5632u);
  EXPECT_EQ(HeaderFfnDim(config, true, 768), 6144u);
}

}  // namespace
}  // namespace smoe::store::vault
