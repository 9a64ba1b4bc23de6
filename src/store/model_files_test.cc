#include "store/model_files.h"

#include <cstring>

#include "store/checkpoint_store.h"
#include "store/vault/vault.h"
#include "store/vault/vault_files_for_test.h"
#include "store/vault/writer.h"
#include "store/verify_model.h"

namespace smoe::store {
namespace {

using vault::LoadDamagedFiles;
using vault::ReadFile;
using vault::ReadJson;
using vault::ReferencePath;
using vault::TempFolder;
using vault::WriteFile;

bool HasSentence(const std::vector<std::string>& sentences, const std::string& part) {
  for (const std::string& sentence : sentences) {
    if (sentence.find(part) != std::string::npos) return true;
  }
  return false;
}

std::string VaultPath(const std::string& name) { return ReferencePath("vaults/" + name); }
std::string FolderPath(const std::string& name) { return ReferencePath("checkpoints/" + name); }

TEST(OpenModelFiles, OpensEveryVaultOfThePlainFamiliesWithItsTrunkAndConfig) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const Json list = ReadJson(VaultPath("vaults.json"));
  size_t count = 0;
  for (const auto& [name, item] : *list.Find("vaults")->AsObject()) {
    SCOPED_TRACE(name);
    const Json* checkpoint = item.Find("checkpoint");
    const Json* trunk = item.Find("scout");
    if (checkpoint == nullptr || trunk == nullptr) continue;
    const std::string path = VaultPath(*item.Find("file")->AsString());
    if (!std::filesystem::exists(path) || name == "qwen3_moe.partial") continue;
    ++count;
    const auto files = OpenModelFiles(path, {.trunk = VaultPath(*trunk->AsString()),
                                             .config = FolderPath(*checkpoint->AsString())});
    ASSERT_TRUE(files) << files.error().message();
    const Json* header = item.Find("header");
    EXPECT_EQ(files->config.num_experts, *header->Find("max_experts_per_layer")->AsUint());
    EXPECT_EQ(files->experts->hidden_size(), files->config.hidden_size);
    size_t sparse = 0;
    for (const bool is_sparse : files->facts.layer_is_sparse) sparse += is_sparse ? 1 : 0;
    EXPECT_EQ(files->experts->layers().size(), sparse);
    // What the original stores wrong (docs/formats/vault.md) is said.
    if (name == "qwen3_moe_v5cfg") {
      EXPECT_TRUE(HasSentence(files->warnings, "arch.rope_theta is 10000"));
    } else if (name == "qwen2_moe") {
      EXPECT_TRUE(HasSentence(files->warnings, "arch.shared_expert_ffn_dim is 0"));
    } else if (name == "qwen3_moe" || name == "qwen3_moe_dense") {
      EXPECT_TRUE(files->warnings.empty()) << files->warnings[0];
    }
  }
  EXPECT_GE(count, 28u);
}

TEST(OpenModelFiles, MakesTheConfigFromTheArchBlockWhereThereIsNone) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name :
       {"qwen3_moe", "qwen3_moe_dense", "qwen3_moe_tied", "olmoe", "qwen2_moe", "qwen3_moe_odd"}) {
    SCOPED_TRACE(name);
    const auto made = OpenModelFiles(VaultPath(std::string(name) + ".smoe"), {});
    ASSERT_TRUE(made) << made.error().message();
    const auto given =
        OpenModelFiles(VaultPath(std::string(name) + ".smoe"), {.config = FolderPath(name)});
    ASSERT_TRUE(given) << given.error().message();
    EXPECT_TRUE(HasSentence(made->decisions, "config: from the vault's arch block"));
    EXPECT_EQ(made->config.family, given->config.family);
    EXPECT_EQ(made->config.vocab_size, given->config.vocab_size);
    EXPECT_EQ(made->config.num_attention_heads, given->config.num_attention_heads);
    EXPECT_EQ(made->config.num_key_value_heads, given->config.num_key_value_heads);
    EXPECT_EQ(made->config.head_dim, given->config.head_dim);
    EXPECT_EQ(made->config.rope.theta, given->config.rope.theta);
    EXPECT_EQ(made->config.num_experts_per_tok, given->config.num_experts_per_tok);
    EXPECT_EQ(made->config.norm_topk_prob, given->config.norm_topk_prob);
    EXPECT_EQ(made->config.layer_is_sparse, given->config.layer_is_sparse);
    EXPECT_EQ(made->config.shared_expert_intermediate_size,
              given->config.shared_expert_intermediate_size);
    EXPECT_EQ(made->config.tie_word_embeddings, given->config.tie_word_embeddings);
    EXPECT_EQ(made->facts.layer_is_sparse, given->facts.layer_is_sparse);
    EXPECT_EQ(static_cast<float>(made->config.rms_norm_eps),
              static_cast<float>(given->config.rms_norm_eps));
  }
  const auto latent = OpenModelFiles(VaultPath("deepseek_v3.smoe"), {});
  ASSERT_FALSE(latent);
  EXPECT_NE(latent.error().message().find("--config"), std::string::npos);
}

// A damaged vault with the good trunk under the name that belongs to it.
Result<ModelFiles> OpenDamaged(const TempFolder& folder, const vault::DamagedFile& damaged) {
  const std::string path = folder.File(damaged.name);
  WriteFile(path, damaged.content);
  return OpenModelFiles(path, {.trunk = VaultPath("qwen3_moe_micro.scout.safetensors")});
}

TEST(OpenModelFiles, GivesEveryDamagedVaultTheRightAnswer) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  for (const vault::DamagedFile& damaged : LoadDamagedFiles(".smoe")) {
    SCOPED_TRACE(damaged.name + " (" + damaged.kind + ")");
    const auto files = OpenDamaged(folder, damaged);
    const std::string message = files ? "" : files.error().message();
    if (damaged.kind == "accept" || damaged.kind == "report") {
      EXPECT_TRUE(files) << message;
    } else if (damaged.kind == "either") {
      EXPECT_TRUE(files || message.find(folder.File(damaged.name)) != std::string::npos);
    } else {
      ASSERT_FALSE(files);
      EXPECT_NE(message.find(folder.File(damaged.name)), std::string::npos) << message;
    }
    if (damaged.name == "vocab_lies.smoe" || damaged.name == "arch_heads_vs_trunk.smoe") {
      EXPECT_EQ(files.error().code(), ErrorCode::kCorrupt) << message;
    }
    if (damaged.kind == "v1") {
      EXPECT_NE(message.find("head_dim 128"), std::string::npos) << message;
      EXPECT_NE(message.find("top_k 8"), std::string::npos) << message;
      EXPECT_NE(message.find("smoe upgrade"), std::string::npos) << message;
    }
    if (damaged.kind == "partial") {
      EXPECT_NE(message.find("partial"), std::string::npos);
    }
  }
}

TEST(OpenModelFiles, RunsAVersion1VaultWithAConfig) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto files = OpenModelFiles(VaultPath("v1_first.smoe"),
                                    {.trunk = VaultPath("qwen3_moe_micro.scout.safetensors"),
                                     .config = FolderPath("qwen3_moe_micro") + "/config.json"});
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->config.num_experts_per_tok, 1u);
  EXPECT_TRUE(HasSentence(files->decisions, "bits: 0"));
}

TEST(OpenModelFiles, RefusesDamagedTrunks) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  size_t count = 0;
  for (const vault::DamagedFile& damaged : LoadDamagedFiles(".scout.safetensors")) {
    SCOPED_TRACE(damaged.name);
    ++count;
    WriteFile(folder.File("m.scout.safetensors"), damaged.content);
    WriteFile(folder.File("m.smoe"), ReadFile(VaultPath("qwen3_moe_micro.smoe")));
    const auto files = OpenModelFiles(folder.File("m.smoe"), {});
    EXPECT_EQ(files.has_value(), damaged.kind == "report");
    const auto report = VerifyModel(folder.File("m.smoe"), {});
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_FALSE(report->ok());
  }
  EXPECT_EQ(count, 11u);
}

TEST(OpenModelFiles, SaysWhichPartIsMissingAndWhichOptionNamesIt) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string path = folder.File("alone.smoe");
  WriteFile(path, ReadFile(VaultPath("qwen3_moe_micro.smoe")));
  const auto alone = OpenModelFiles(path, {});
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(alone.error().message().find("--trunk"), std::string::npos);
  EXPECT_NE(alone.error().message().find("alone.scout.safetensors"), std::string::npos);
  const auto report = VerifyModel(path, {});
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->ok());
  const auto vault_only = VerifyModel(path, {.files = {}, .blobs = {}, .vault_only = true});
  ASSERT_TRUE(vault_only);
  EXPECT_TRUE(vault_only->ok());

  const auto absent = OpenModelFiles(folder.File("absent"), {});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kInvalid);
  const auto other =
      OpenModelFiles(VaultPath("qwen3_moe.smoe"), {.config = FolderPath("qwen3_moe_odd")});
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("another model"), std::string::npos);
}

// qwen3_moe with its trunk, config and a tokenizer in an annex.
std::string MakeWholeVault(const TempFolder& folder) {
  const auto source = vault::OpenVault(VaultPath("qwen3_moe.smoe"));
  EXPECT_TRUE(source);
  vault::VaultSpec spec;
  for (const vault::ExpertRecord& record : source->records) spec.experts.push_back(record.id);
  spec.hidden_size = source->hidden_size;
  spec.intermediate_size = source->intermediate_size;
  spec.num_moe_layers = source->header.num_moe_layers;
  spec.max_experts_per_layer = source->header.max_experts_per_layer;
  spec.vocab_size = source->header.vocab_size;
  spec.ffn_dim = source->header.ffn_dim;
  spec.arch = *source->arch;
  std::string path = folder.File("whole.smoe");
  const auto file = io::File::Create(path);
  EXPECT_TRUE(file);
  const auto writer = vault::VaultWriter::Create(*file, *vault::VaultPlan::Create(spec));
  EXPECT_TRUE(writer);
  for (size_t i = 0; i < source->records.size(); ++i) {
    std::vector<std::byte> raw(source->records[i].raw_size);
    EXPECT_TRUE(source->file.ReadAt(source->records[i].byte_offset, raw));
    EXPECT_TRUE((*writer)->WriteBlob(i, raw));
  }
  const std::string trunk = ReadFile(VaultPath("qwen3_moe.scout.safetensors"));
  EXPECT_TRUE((*writer)->AddSection(vault::kSectionTrunk, AsBytes(trunk)));
  for (const std::string_view name : {vault::kSectionConfig, vault::kSectionTokenizer}) {
    const std::string text = ReadFile(FolderPath("qwen3_moe") + "/" + std::string(name));
    EXPECT_TRUE((*writer)->AddSection(name, AsBytes(text)));
  }
  EXPECT_TRUE((*writer)->Finish());
  return path;
}

TEST(OpenModelFiles, NeedsNothingBesideAVaultWithAnAnnex) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  TempFolder folder;
  const std::string path = MakeWholeVault(folder);
  const auto files = OpenModelFiles(path, {});
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_TRUE(HasSentence(files->decisions, "trunk: from the annex"));
  EXPECT_TRUE(HasSentence(files->decisions, "config.json: from the annex"));
  EXPECT_TRUE(files->warnings.empty());
  EXPECT_EQ(files->side_files.tokenizer, ReadFile(FolderPath("qwen3_moe") + "/tokenizer.json"));
  EXPECT_EQ(files->config.vocab_size, 384u);
  const auto idle = OpenModelFiles(path, {.config = FolderPath("qwen3_moe")});
  ASSERT_TRUE(idle);
  EXPECT_TRUE(HasSentence(idle->warnings, "--config"));
  const auto report = VerifyModel(path, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->ok()) << report->problems[0];
  EXPECT_TRUE(report->has_checksums);
  EXPECT_EQ(report->tensor_count, files->trunk.tensors().size());
}

TEST(OpenModelFiles, ReadsExpertsOfAFolderInPlace) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"qwen3_moe", "qwen3_moe_sharded", "qwen3_moe_f16", "qwen3_moe_f32",
                           "mixtral", "qwen2_moe", "olmoe", "deepseek_v3_mtp"}) {
    SCOPED_TRACE(name);
    const auto files = OpenModelFiles(FolderPath(name), {});
    ASSERT_TRUE(files) << files.error().message();
    const ExpertStore& store = *files->experts;
    EXPECT_EQ(store.slot_bytes() % 4096, 0u);
    const StoreLayer layer = store.layers().back();
    EXPECT_EQ(store.expert_count(), layer.first_ordinal + layer.expert_count);
    EXPECT_LT(layer.layer_index, files->config.num_hidden_layers);
    const ExpertId id{layer.layer_index, layer.expert_count - 1};
    std::vector<std::byte> slot(store.slot_bytes());
    const ExpertLocation location = store.Locate(id);
    for (uint32_t i = 0; i < location.extent_count; ++i) {
      const ExpertExtent& extent = location.extents[i];
      ASSERT_EQ(::pread(extent.fd, slot.data() + extent.slot_offset, extent.size,
                        static_cast<off_t>(extent.offset)),
                static_cast<ssize_t>(extent.size));
    }
    ASSERT_TRUE(store.Admit(id, slot));
    const tensor::ExpertWeights weights = store.View(id, slot);
    EXPECT_EQ(weights.down.rows, store.hidden_size());
    EXPECT_EQ(weights.down.cols, store.intermediate_size());
    // The same expert through the layout's own reader.
    const auto checkpoint = checkpoint::OpenCheckpoint(FolderPath(name));
    ASSERT_TRUE(checkpoint);
    std::vector<float> wanted(uint64_t{weights.up.rows} * weights.up.cols);
    ASSERT_TRUE(checkpoint::ReadExpertMatrix(checkpoint->files, checkpoint->experts, id.layer_index,
                                             id.expert_index, checkpoint::Proj::kUp, false,
                                             wanted));
    for (uint32_t row = 0; row < weights.up.rows; ++row) {
      for (uint32_t col = 0; col < weights.up.cols; ++col) {
        ASSERT_EQ(tensor::WeightAt(weights.up, row, col),
                  wanted[uint64_t{row} * weights.up.cols + col]);
      }
    }
  }
}

TEST(OpenModelFiles, NamesTheSculptorForExpertsThatCannotBeReadInPlace) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"gpt_oss_mxfp4", "deepseek_v3_fp8"}) {
    const auto files = OpenModelFiles(FolderPath(name), {});
    ASSERT_FALSE(files) << name;
    EXPECT_EQ(files.error().code(), ErrorCode::kUnsupported) << files.error().message();
    EXPECT_NE(files.error().message().find("smoe shatter"), std::string::npos);
  }
}

}  // namespace
}  // namespace smoe::store
