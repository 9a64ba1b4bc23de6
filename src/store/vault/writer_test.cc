#include "store/vault/writer.h"

#include <cstring>

#include "store/vault/blob_check.h"
#include "store/vault/vault.h"
#include "store/vault/vault_files_for_test.h"
#include "store/vault/vault_store.h"

namespace smoe::store::vault {
namespace {

VaultSpec SpecOf(const Vault& vault) {
  VaultSpec spec;
  for (const ExpertRecord& record : vault.records) spec.experts.push_back(record.id);
  spec.hidden_size = vault.hidden_size;
  spec.intermediate_size = vault.intermediate_size;
  spec.bits = vault.bits;
  spec.group_size = vault.group_size;
  spec.num_moe_layers = vault.header.num_moe_layers;
  spec.max_experts_per_layer = vault.header.max_experts_per_layer;
  spec.vocab_size = vault.header.vocab_size;
  spec.ffn_dim = vault.header.ffn_dim;
  spec.arch = *vault.arch;
  return spec;
}

std::vector<std::byte> ReadBlob(const Vault& vault, const ExpertRecord& record) {
  std::vector<std::byte> raw(record.raw_size);
  EXPECT_TRUE(vault.file.ReadAt(record.byte_offset, raw));
  return raw;
}

// Copies a vault through plan and writer, blobs last to first, with these sections.
void Rewrite(const std::string& source, const std::string& target,
             const std::vector<std::pair<std::string, std::string>>& sections) {
  const Result<Vault> vault = OpenVault(source);
  ASSERT_TRUE(vault) << vault.error().message();
  const Result<VaultPlan> plan = VaultPlan::Create(SpecOf(*vault));
  ASSERT_TRUE(plan) << plan.error().message();
  const Result<io::File> file = io::File::Create(target);
  ASSERT_TRUE(file) << file.error().message();
  const auto writer = VaultWriter::Create(*file, *plan);
  ASSERT_TRUE(writer) << writer.error().message();
  for (size_t i = vault->records.size(); i-- > 0;) {
    ASSERT_TRUE((*writer)->WriteBlob(i, ReadBlob(*vault, vault->records[i])));
    const Result<Vault> unfinished = OpenVault(target);
    ASSERT_FALSE(unfinished);
    ASSERT_NE(unfinished.error().message().find("interrupted"), std::string::npos);
  }
  for (const auto& [name, content] : sections) {
    ASSERT_TRUE((*writer)->AddSection(name, AsBytes(content)));
  }
  ASSERT_TRUE((*writer)->Finish());
  std::vector<uint64_t> sizes;
  for (const auto& section : sections) sizes.push_back(section.second.size());
  EXPECT_EQ(*file->Size(), sections.empty() ? plan->blobs_end() : plan->FileBytesWithAnnex(sizes));
}

// The original counts num_groups in 64s whatever the group size is; we write the true number.
void ClearGroupCounts(std::string* content) {
  const auto header = LoadStruct<SmoeHeader>(AsBytes(*content));
  for (uint32_t i = 0; i < header.total_experts; ++i) {
    content->replace(kTableOffset + i * sizeof(ExpertEntry) + offsetof(ExpertEntry, num_groups), 8,
                     8, '\0');
  }
}

TEST(VaultWriter, GivesTheBytesOfTheOriginalConverter) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  size_t count = 0;
  for (const auto& item : std::filesystem::directory_iterator(ReferencePath("vaults"))) {
    if (item.path().extension() != ".smoe") continue;
    const Result<Vault> vault = OpenVault(item.path());
    if (!vault || vault->header.version != kVersion2 || vault->header.bits == 0 ||
        vault->header.d_model == 0) {
      continue;
    }
    SCOPED_TRACE(item.path());
    ++count;
    Rewrite(item.path(), folder.File("copy.smoe"), {});
    std::string wanted = ReadFile(item.path());
    std::string found = ReadFile(folder.File("copy.smoe"));
    if (vault->group_size != 64) {
      ClearGroupCounts(&wanted);
      ClearGroupCounts(&found);
    }
    EXPECT_TRUE(wanted == found);
  }
  EXPECT_GE(count, 20u);
}

// Source: docs/formats/vault.md, sizes of published models.
TEST(VaultPlan, HasTheSizesOfPublishedModels) {
  struct Case {
    uint32_t hidden, ffn, experts, layers;
    tensor::SmoeBits bits;
    uint64_t blob, data_offset, file;
  };
  for (const Case& c :
       {Case{4096, 1536, 128, 94, tensor::SmoeBits::kQ4, 10027008, 2179072, 120647139328},
        Case{2048, 768, 128, 48, tensor::SmoeBits::kQ4, 2506752, 1114112, 15402598400},
        Case{2048, 768, 128, 48, tensor::SmoeBits::kQ2, 1327104, 1114112, 8154841088}}) {
    VaultSpec spec;
    spec.hidden_size = c.hidden;
    spec.intermediate_size = c.ffn;
    spec.bits = c.bits;
    spec.num_moe_layers = c.layers;
    spec.max_experts_per_layer = c.experts;
    for (uint32_t layer = 0; layer < c.layers; ++layer) {
      for (uint32_t expert = 0; expert < c.experts; ++expert)
        spec.experts.push_back({layer, expert});
    }
    const Result<VaultPlan> plan = VaultPlan::Create(spec);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->raw_size(), c.blob);
    EXPECT_EQ(plan->padded_size(), c.blob);
    EXPECT_EQ(plan->data_offset(), c.data_offset);
    EXPECT_EQ(plan->blobs_end(), c.file);
  }
}

TEST(VaultPlan, RefusesListsThatNoTableHolds) {
  VaultSpec good;
  good.hidden_size = 64;
  good.intermediate_size = 32;
  good.num_moe_layers = 2;
  good.max_experts_per_layer = 2;
  good.experts = {{0, 0}, {0, 1}, {1, 0}};
  EXPECT_TRUE(VaultPlan::Create(good));
  VaultSpec spec = good;
  spec.experts = {};
  EXPECT_FALSE(VaultPlan::Create(spec));
  spec.experts = {{0, 1}, {0, 0}};
  EXPECT_FALSE(VaultPlan::Create(spec));
  spec.experts = {{0, 0}, {0, 0}};
  EXPECT_FALSE(VaultPlan::Create(spec));
  spec = good;
  spec.num_moe_layers = 1;
  EXPECT_FALSE(VaultPlan::Create(spec));
  spec = good;
  spec.hidden_size = 0;
  EXPECT_FALSE(VaultPlan::Create(spec));
  spec = good;
  spec.hidden_size = spec.intermediate_size = UINT32_MAX;
  EXPECT_FALSE(VaultPlan::Create(spec));
}

class AnnexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SMOE_SKIP_WITHOUT_REFERENCE();
    path_ = folder_.File("annex.smoe");
    Rewrite(ReferencePath("vaults/qwen3_moe_micro.smoe"), path_,
            {{"trunk", std::string(20000, 't')},
             {"config.json", "{\"a\": 1}"},
             {"empty", ""},
             {"of_a_later_version", "?"}});
    content_ = ReadFile(path_);
  }

  // First complaint of opening, of any expert, or of any section; empty: all is well.
  std::string Complaint() const {
    const Result<Vault> vault = OpenVault(path_);
    if (!vault) return vault.error().message();
    if (!vault->annex) return "no annex";
    for (const ExpertRecord& record : vault->records) {
      const Status status = CheckBlob(*vault, record, ReadBlob(*vault, record));
      if (!status) return status.error().message();
    }
    for (const AnnexSection& section : vault->annex->sections) {
      const auto text = ReadAnnexSection(vault->file, section);
      if (!text) return text.error().message();
    }
    return "";
  }

  TempFolder folder_;
  std::string path_;
  std::string content_;
};

TEST_F(AnnexTest, GivesBackItsSectionsAndLeavesTheVaultAsItWas) {
  const Result<Vault> vault = OpenVault(path_);
  ASSERT_TRUE(vault) << vault.error().message();
  ASSERT_TRUE(vault->annex);
  EXPECT_TRUE(vault->warnings.empty());
  ASSERT_EQ(vault->annex->sections.size(), 5u);
  EXPECT_EQ(vault->annex->sections[0].name, "checksums");
  const AnnexSection* config = vault->annex->Find(kSectionConfig);
  ASSERT_NE(config, nullptr);
  EXPECT_EQ(*ReadAnnexSection(vault->file, *config), "{\"a\": 1}");
  EXPECT_EQ(*ReadAnnexSection(vault->file, *vault->annex->Find(kSectionTrunk)),
            std::string(20000, 't'));
  EXPECT_EQ(vault->annex->Find("absent"), nullptr);
  EXPECT_EQ(content_.size() % kBlobAlignment, 0u);
  const std::string original = ReadFile(ReferencePath("vaults/qwen3_moe_micro.smoe"));
  EXPECT_TRUE(content_.starts_with(original));
  EXPECT_EQ(Complaint(), "");
}

TEST_F(AnnexTest, FindsEveryFlippedBit) {
  const Result<Vault> vault = OpenVault(path_);
  ASSERT_TRUE(vault) << vault.error().message();
  // Every byte that means something; padding between parts does not.
  std::vector<std::pair<uint64_t, uint64_t>> ranges = {{0, vault->header.data_offset}};
  for (const ExpertRecord& record : vault->records) {
    ranges.push_back({record.byte_offset, record.raw_size});
  }
  for (const AnnexSection& section : vault->annex->sections) {
    ranges.push_back({section.offset, section.size});
  }
  const uint64_t directory = content_.size() - kBlobAlignment;
  ranges.push_back({directory, 5 * sizeof(AnnexDirectoryEntry)});
  ranges.push_back({content_.size() - sizeof(AnnexFooter), sizeof(AnnexFooter)});
  const Result<io::File> file = io::File::OpenReadWrite(path_);
  ASSERT_TRUE(file);
  for (const auto& [offset, size] : ranges) {
    const uint64_t step = size > 4096 ? 97 : 1;
    for (uint64_t at = offset; at < offset + size; at += step) {
      const char flipped = static_cast<char>(content_[at] ^ (1 << (at % 8)));
      ASSERT_TRUE(file->WriteAt(at, AsBytes(std::string_view(&flipped, 1))));
      ASSERT_NE(Complaint(), "") << "byte " << at;
      ASSERT_TRUE(file->WriteAt(at, AsBytes(std::string_view(content_).substr(at, 1))));
    }
  }
  EXPECT_EQ(Complaint(), "");
}

TEST_F(AnnexTest, RefusesAFileWhoseEndWasCutOff) {
  const Result<Vault> vault = OpenVault(path_);
  ASSERT_TRUE(vault) << vault.error().message();
  const Result<io::File> file = io::File::OpenReadWrite(path_);
  ASSERT_TRUE(file);
  for (uint64_t size = content_.size() - 1; size >= vault->blobs_end + 8; size -= 1001) {
    ASSERT_TRUE(file->Truncate(size));
    const Result<Vault> cut = OpenVault(path_);
    ASSERT_FALSE(cut) << size;
    EXPECT_NE(cut.error().message().find("truncated"), std::string::npos);
  }
}

TEST_F(AnnexTest, RestoresBlobsOfAnInterruptedRunAndWritesDamagedOnesAgain) {
  const Result<Vault> source = OpenVault(ReferencePath("vaults/qwen3_moe_micro.smoe"));
  ASSERT_TRUE(source);
  const Result<VaultPlan> plan = VaultPlan::Create(SpecOf(*source));
  ASSERT_TRUE(plan);
  const std::string path = folder_.File("resumed.smoe");
  const Result<io::File> file = io::File::Create(path);
  ASSERT_TRUE(file);
  std::vector<uint64_t> sums;
  {
    const auto writer = VaultWriter::Create(*file, *plan);
    ASSERT_TRUE(writer);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE((*writer)->WriteBlob(i, ReadBlob(*source, source->records[i])));
      sums.push_back((*writer)->blob_checksum(i));
    }
  }
  ASSERT_TRUE(file->WriteAt(plan->blob_offset(1) + 5, AsBytes(std::string_view("?"))));
  const Result<io::File> again = io::File::OpenReadWrite(path);
  ASSERT_TRUE(again);
  const auto writer = VaultWriter::Create(*again, *plan);
  ASSERT_TRUE(writer);
  std::vector<std::byte> scratch(plan->raw_size());
  EXPECT_TRUE(*(*writer)->RestoreBlob(0, sums[0], scratch));
  EXPECT_FALSE(*(*writer)->RestoreBlob(1, sums[1], scratch));
  for (size_t i = 1; i < plan->expert_count(); ++i) {
    ASSERT_TRUE((*writer)->WriteBlob(i, ReadBlob(*source, source->records[i])));
  }
  ASSERT_TRUE((*writer)->Finish());
  EXPECT_TRUE(ReadFile(path) == ReadFile(source->path));
}

TEST_F(AnnexTest, AdmitsGoodSlotsAndNamesTheDamagedExpertEachTime) {
  Result<Vault> vault = OpenVault(path_);
  ASSERT_TRUE(vault);
  const uint64_t damaged_offset = vault->records[3].byte_offset + 7;
  const auto store = OpenVaultStore(std::move(*vault), {.direct_io = false});
  ASSERT_TRUE(store) << store.error().message();
  std::string content = content_;
  content[damaged_offset] = static_cast<char>(content[damaged_offset] ^ 4);
  WriteFile(path_, content);
  for (const uint32_t i : {0U, 1U, 2U, 3U, 3U}) {
    const ExpertId id{i / 2, i % 2};
    EXPECT_EQ(FindOrdinal(**store, id), i);
    EXPECT_EQ(AllExperts(**store)[i], id);
    const ExpertLocation location = (*store)->Locate(id);
    ASSERT_EQ(location.extent_count, 1u);
    std::string slot = content.substr(location.extents[0].offset, location.extents[0].size);
    const Status status = (*store)->Admit(id, std::as_writable_bytes(std::span(slot)));
    EXPECT_EQ(status.has_value(), i != 3);
    if (!status) {
      EXPECT_NE(status.error().message().find("layer 1, expert 1"), std::string::npos);
    }
  }
}

TEST(VaultStore, ShowsTheMatricesWhereTheDescriptorsSay) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  Result<Vault> vault = OpenVault(ReferencePath("vaults/qwen3_moe_odd.q2g32.smoe"));
  ASSERT_TRUE(vault);
  const ExpertRecord record = vault->records[7];
  const auto store = OpenVaultStore(std::move(*vault), {});
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_STREQ((*store)->format_name(), "smoe-q2 group 32");
  EXPECT_EQ((*store)->slot_bytes(), record.padded_size);
  EXPECT_EQ((*store)->hidden_size(), 80u);
  EXPECT_EQ((*store)->intermediate_size(), 48u);
  std::vector<std::byte> slot((*store)->slot_bytes());
  const tensor::ExpertWeights weights = (*store)->View(record.id, slot);
  EXPECT_EQ(weights.down.rows, 80u);
  EXPECT_EQ(weights.down.cols, 48u);
  EXPECT_EQ(weights.down.format, tensor::WeightFormat::kSmoeQ2);
  EXPECT_EQ(weights.down.group_size, 32u);
  EXPECT_EQ(weights.up.scales.data() - slot.data(),
            static_cast<ptrdiff_t>(record.tensors[1].scales_offset));
  EXPECT_EQ(weights.up.scales.size(), 80u * 48 / 32 * 2);
  EXPECT_EQ(FindOrdinal(**store, {3, 0}), std::nullopt);
  EXPECT_EQ(FindOrdinal(**store, {0, 5}), std::nullopt);
}

TEST(VaultStore, ReadsAnExpertBeyond4GiB) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string whole = ReadFile(ReferencePath("vaults/qwen3_moe_micro.smoe"));
  const std::string path = folder.File("sparse.smoe");
  WriteFile(path, whole);
  const uint64_t far_offset = (uint64_t{5} << 30) + kBlobAlignment;
  ExpertRecord record;
  {
    const Result<Vault> vault = OpenVault(path);
    ASSERT_TRUE(vault);
    record = vault->records[3];
    const Result<io::File> file = io::File::OpenReadWrite(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->WriteAt(far_offset, AsBytes(std::string_view(whole).substr(
                                              record.byte_offset, record.padded_size))));
    ASSERT_TRUE(
        file->WriteAt(kTableOffset + 3 * sizeof(ExpertEntry) + offsetof(ExpertEntry, byte_offset),
                      std::as_bytes(std::span(&far_offset, 1))));
  }
  Result<Vault> vault = OpenVault(path);
  ASSERT_TRUE(vault) << vault.error().message();
  EXPECT_EQ(vault->blobs_end, far_offset + record.padded_size);
  std::vector<std::byte> raw = ReadBlob(*vault, vault->records[3]);
  EXPECT_TRUE(CheckBlob(*vault, vault->records[3], raw));
  EXPECT_EQ(std::memcmp(raw.data(), whole.data() + record.byte_offset, raw.size()), 0);
  const auto store = OpenVaultStore(std::move(*vault), {});
  ASSERT_TRUE(store);
  EXPECT_EQ((*store)->Locate({1, 1}).extents[0].offset, far_offset);
}

TEST(VaultStore, FallsBackToBufferedReadsOnce) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  Result<Vault> vault = OpenVault(ReferencePath("vaults/qwen3_moe.smoe"));
  ASSERT_TRUE(vault);
  const auto store = OpenVaultStore(std::move(*vault), {});
  ASSERT_TRUE(store);
  const bool was_direct = (*store)->direct_io();
  const int fd_before = (*store)->Locate({0, 0}).extents[0].fd;
  EXPECT_EQ((*store)->FallBackToBuffered(), was_direct);
  EXPECT_FALSE((*store)->direct_io());
  EXPECT_FALSE((*store)->FallBackToBuffered());
  EXPECT_EQ((*store)->Locate({0, 0}).extents[0].fd != fd_before, was_direct);
}

TEST(VaultStore, RefusesAPartialVaultWithWhatIsMissing) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  Result<Vault> vault = OpenVault(ReferencePath("vaults/qwen3_moe.partial.smoe"));
  ASSERT_TRUE(vault);
  const auto store = OpenVaultStore(std::move(*vault), {});
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code(), ErrorCode::kInvalid);
  const std::string& message = store.error().message();
  EXPECT_NE(message.find("2 of 3 layers"), std::string::npos) << message;
  EXPECT_NE(message.find("layer 0 has 3 of 8 experts"), std::string::npos) << message;
}

TEST(VaultStore, LeavesOutMultiTokenPrediction) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  Result<Vault> vault = OpenVault(ReferencePath("vaults/glm4_moe_mtp.smoe"));
  ASSERT_TRUE(vault);
  const auto store = OpenVaultStore(std::move(*vault), {.num_hidden_layers = 3});
  ASSERT_TRUE(store);
  ASSERT_EQ((*store)->layers().size(), 2u);
  EXPECT_EQ((*store)->expert_count(), 16u);
  EXPECT_EQ((*store)->layers()[1].layer_index, 2u);
  EXPECT_EQ((*store)->layers()[1].first_ordinal, 8u);
}

}  // namespace
}  // namespace smoe::store::vault
