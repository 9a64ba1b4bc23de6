#include "store/vault/vault.h"

#include <cstring>
#include <map>
#include <random>

#include "store/vault/arch.h"
#include "store/vault/blob_check.h"
#include "store/vault/vault_files_for_test.h"

namespace smoe::store::vault {
namespace {

// Need the trunk beside them to be found out.
bool NeedsTrunk(const std::string& name) {
  return name == "vocab_lies.smoe" || name == "arch_heads_vs_trunk.smoe";
}

std::string FirstBadBlob(const Vault& vault) {
  for (const ExpertRecord& record : vault.records) {
    std::vector<std::byte> blob(record.padded_size);
    EXPECT_TRUE(vault.file.ReadAt(record.byte_offset, blob));
    if (Status status = CheckBlob(vault, record, blob); !status) return status.error().message();
  }
  return "";
}

TEST(OpenVault, GivesEveryDamagedFileTheRightAnswer) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  size_t count = 0;
  for (const DamagedFile& damaged : LoadDamagedFiles(".smoe")) {
    SCOPED_TRACE(damaged.name + " (" + damaged.kind + ")");
    ++count;
    const std::string path = folder.File(damaged.name);
    WriteFile(path, damaged.content);
    const Result<Vault> vault = OpenVault(path);
    const std::string message = vault ? "" : vault.error().message();
    if (damaged.kind == "refuse" && !NeedsTrunk(damaged.name)) {
      ASSERT_FALSE(vault);
      EXPECT_EQ(vault.error().code(), ErrorCode::kCorrupt);
      EXPECT_NE(message.find(path), std::string::npos) << message;
      if (damaged.name != "total_plus_1.smoe") {
        EXPECT_NE(message.find(damaged.field), std::string::npos) << message;
      }
    } else if (damaged.kind == "interrupted") {
      ASSERT_FALSE(vault);
      EXPECT_NE(message.find("interrupted"), std::string::npos) << message;
    } else if (damaged.kind == "either") {
      EXPECT_TRUE(vault || message.find(path) != std::string::npos);
    } else {
      ASSERT_TRUE(vault) << message;
      EXPECT_EQ(vault->is_partial(), damaged.kind == "partial") << vault->missing;
      EXPECT_EQ(FirstBadBlob(*vault).empty(), damaged.kind != "report");
      EXPECT_EQ(vault->arch.has_value(), damaged.kind != "v1");
    }
  }
  EXPECT_EQ(count, 111u);  // and 11 trunks
}

TEST(OpenVault, NamesThePlaceOfABadScale) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::map<std::string, std::vector<std::string>> wanted = {
      {"scale_nan.smoe", {"layer 0, expert 1, down", "NaN", "0x7e00"}},
      {"scale_inf.smoe", {"layer 1, expert 1, up", "infinity", "0x7c00"}},
      {"scale_minus_inf.smoe", {"layer 1, expert 1, gate", "minus infinity", "0xfc00"}},
      {"scale_negative.smoe", {"layer 0, expert 1, gate", "negative", "0xb800"}},
  };
  for (const DamagedFile& damaged : LoadDamagedFiles(".smoe")) {
    const auto words = wanted.find(damaged.name);
    if (words == wanted.end()) continue;
    WriteFile(folder.File(damaged.name), damaged.content);
    const Result<Vault> vault = OpenVault(folder.File(damaged.name));
    ASSERT_TRUE(vault) << vault.error().message();
    const std::string message = FirstBadBlob(*vault);
    for (const std::string& word : words->second) {
      EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }
}

TEST(OpenVault, WarnsWhereBytesAreOddButHarmless) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::map<std::string, std::string> wanted = {{"gap_not_zero.smoe", "gap"},
                                                     {"trailing_junk.smoe", "64 bytes after"},
                                                     {"trailing_page.smoe", "16384 bytes after"}};
  for (const DamagedFile& damaged : LoadDamagedFiles(".smoe")) {
    const auto word = wanted.find(damaged.name);
    if (word == wanted.end()) continue;
    WriteFile(folder.File(damaged.name), damaged.content);
    const Result<Vault> vault = OpenVault(folder.File(damaged.name));
    ASSERT_TRUE(vault) << vault.error().message();
    ASSERT_EQ(vault->warnings.size(), 1u) << damaged.name;
    EXPECT_NE(vault->warnings[0].find(word->second), std::string::npos) << vault->warnings[0];
  }
}

// Compares one object of vaults.json with what Describe says under the same keys.
void ExpectSameNumbers(const Json& wanted, const Json& found) {
  for (const auto& [key, value] : *wanted.AsObject()) {
    const Json* mine = found.Find(key);
    if (mine == nullptr) continue;  // magic and reserved, which OpenVault has compared
    if (value.is_string()) {
      EXPECT_EQ(*mine->AsString(), *value.AsString()) << key;
    } else {
      EXPECT_EQ(mine->AsDouble(), value.AsDouble()) << key;
    }
  }
}

TEST(OpenVault, ReadsEveryVaultOfTheOriginalConverter) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const Json list = ReadJson(ReferencePath("vaults/vaults.json"));
  size_t count = 0;
  for (const auto& [name, item] : *list.Find("vaults")->AsObject()) {
    SCOPED_TRACE(name);
    const Json* file = item.Find("file");
    if (file == nullptr || !std::filesystem::exists(ReferencePath("vaults/" + *file->AsString()))) {
      continue;
    }
    ++count;
    const Result<Vault> vault = OpenVault(ReferencePath("vaults/" + *file->AsString()));
    if (name == "interrupted") {
      ASSERT_FALSE(vault);
      EXPECT_NE(vault.error().message().find("interrupted"), std::string::npos);
      continue;
    }
    ASSERT_TRUE(vault) << vault.error().message();
    EXPECT_EQ(vault->is_partial(), name == "qwen3_moe.partial");
    EXPECT_TRUE(vault->warnings.empty()) << vault->warnings[0];
    EXPECT_FALSE(vault->annex);
    EXPECT_EQ(vault->blobs_end, vault->file_bytes);
    EXPECT_EQ(FirstBadBlob(*vault), "");
    const Json found = Describe(*vault, true);
    ExpectSameNumbers(*item.Find("header"), *found.Find("header"));
    const Json* arch = item.Find("arch");
    ASSERT_EQ(arch != nullptr, vault->arch.has_value());
    if (arch != nullptr) ExpectSameNumbers(*arch, *found.Find("arch"));
    if (const Json* entry = item.Find("first_entry")) {
      ExpectSameNumbers(*entry, (*found.Find("table")->AsArray())[0]);
      EXPECT_EQ(vault->records[0].id.layer_index, *entry->Find("layer_id")->AsUint());
    }
  }
  EXPECT_GE(count, 30u);
}

TEST(OpenVault, TakesBitsZeroAsTwo) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const Result<Vault> vault = OpenVault(ReferencePath("vaults/v1_first.smoe"));
  ASSERT_TRUE(vault) << vault.error().message();
  EXPECT_EQ(vault->bits, tensor::SmoeBits::kQ2);
  EXPECT_EQ(vault->hidden_size, 64u);
  EXPECT_EQ(vault->intermediate_size, 64u);
  EXPECT_FALSE(vault->arch);
}

TEST(OpenVault, ListsExpertsOfMultiTokenPrediction) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const Result<Vault> vault = OpenVault(ReferencePath("vaults/glm4_moe_mtp.smoe"));
  ASSERT_TRUE(vault) << vault.error().message();
  ASSERT_EQ(vault->layers.size(), 3u);
  EXPECT_EQ(vault->layers[2].layer_index, 3u);  // num_hidden_layers is 3
  EXPECT_FALSE(vault->is_partial());
}

TEST(OpenVault, RefusesATruncationAtEveryByteOfTheMetadata) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string whole = ReadFile(ReferencePath("vaults/qwen3_moe_micro.smoe"));
  const std::string path = folder.File("cut.smoe");
  WriteFile(path, whole);
  const Result<io::File> file = io::File::OpenReadWrite(path);
  ASSERT_TRUE(file);
  std::vector<uint64_t> sizes = {16384, 16385, whole.size() - 1};
  for (uint64_t size = 0; size < 1024; ++size) sizes.push_back(size);
  std::sort(sizes.rbegin(), sizes.rend());
  for (const uint64_t size : sizes) {
    ASSERT_TRUE(file->Truncate(size));
    EXPECT_FALSE(OpenVault(path)) << size;
  }
}

// Whatever the bytes say, opening answers; what it accepts can be read to the end.
TEST(OpenVault, SurvivesRandomDamage) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string whole = ReadFile(ReferencePath("vaults/qwen3_moe_micro.smoe"));
  const std::string path = folder.File("random.smoe");
  WriteFile(path, whole);
  const Result<io::File> file = io::File::OpenReadWrite(path);
  ASSERT_TRUE(file);
  std::mt19937 random(20260729);
  size_t accepted_count = 0;
  for (int round = 0; round < 4000; ++round) {
    const uint64_t at = random() % 960;  // the end of the arch block
    const uint64_t size = 1 + random() % 8;
    std::string bytes(size, '\0');
    for (char& byte : bytes) {
      const uint32_t choice = random() % 4;
      byte = choice == 0 ? '\xFF' : choice == 1 ? '\0' : static_cast<char>(random());
    }
    ASSERT_TRUE(file->WriteAt(at, AsBytes(bytes)));
    if (const Result<Vault> vault = OpenVault(path)) {
      ++accepted_count;
      FirstBadBlob(*vault);
      EXPECT_FALSE(Describe(*vault, true).Dump().empty());
    }
    ASSERT_TRUE(file->WriteAt(at, AsBytes(std::string_view(whole).substr(at, size))));
  }
  EXPECT_LT(accepted_count, 1000u);  // most bytes of the metadata mean something
}

TEST(FindBadScale, AnswersForAllF16Values) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const bool is_bad = bits >= 0x7C00;  // infinity, NaN, or the sign
    for (const size_t lane : {0u, 3u, 4u, 5u}) {
      uint16_t scales[6] = {0x3C00, 0x7BFF, 0, 1, 0x0400, 0x2E66};
      scales[lane] = static_cast<uint16_t>(bits);
      EXPECT_EQ(FindBadScale(std::as_bytes(std::span(scales))), is_bad ? lane : 6u) << bits;
    }
  }
}

TEST(CheckArchBlock, ReadsAModelTypeThatFillsAllItsBytes) {
  SmoeArchBlock arch = EmptyArchBlock();
  std::memset(arch.model_type, 'x', sizeof(arch.model_type));
  arch.reserved[0] = 'y';
  EXPECT_EQ(ArchModelType(arch), std::string(24, 'x'));
}

}  // namespace
}  // namespace smoe::store::vault
