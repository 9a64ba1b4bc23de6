#include "store/vault/upgrade.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "store/vault/arch.h"
#include "store/vault/validate.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

namespace {

using checkpoint::Family;
using checkpoint::ModelConfig;

constexpr uint64_t kConfigBytesMax = uint64_t{16} << 20;

// Families that always have q/k norms, for when there are no tensors to ask.
// Source: transformers 5.24, modeling_*.py of each.
bool FamilyHasQkNorm(Family family) {
  switch (family) {
    case Family::kQwen3Moe:
    case Family::kQwen3Next:
    case Family::kQwen35Moe:
    case Family::kOlmoe:
    case Family::kDots1:
    case Family::kHunyuanV1Moe:
      return true;
    default:
      return false;
  }
}

// Whether the trunk's tensors have q norms; nullopt if `path` holds no readable tensors.
std::optional<bool> TensorsHaveQkNorm(const std::string& path) {
  const Result<checkpoint::TensorFiles> files = checkpoint::TensorFiles::Open(path);
  if (!files) return std::nullopt;
  for (const auto& item : files->tensors()) {
    if (item.first.ends_with(".q_norm.weight") || item.first.ends_with(".query_layernorm.weight")) {
      return true;
    }
  }
  return false;
}

Status CheckSameModel(const ModelConfig& config, const std::string& source, const Vault& vault) {
  struct Pair {
    const char* key;
    uint64_t config;
    uint64_t vault;
  };
  const uint32_t vocab_size = vault.header.vocab_size;
  for (const Pair& pair :
       {Pair{"hidden_size", config.hidden_size, vault.hidden_size},
        Pair{"number of experts", config.num_experts, vault.header.max_experts_per_layer},
        Pair{"width of an expert", config.moe_intermediate_size, vault.intermediate_size},
        Pair{"vocab_size", config.vocab_size, vocab_size == 0 ? config.vocab_size : vocab_size}}) {
    if (pair.config == pair.vault) continue;
    return Invalid("{}: {} is {}, {} has {}: another model?", source, pair.key, pair.config,
                   vault.path, pair.vault);
  }
  for (const VaultLayer& layer : vault.layers) {
    if (layer.layer_index < config.num_hidden_layers + kMtpLayersMax) continue;
    return Invalid("{}: num_hidden_layers is {}, {} has experts of layer {}: another model?",
                   source, config.num_hidden_layers, vault.path, layer.layer_index);
  }
  return Ok();
}

Result<SmoeArchBlock> ArchFromSource(const std::string& source, const Vault& vault,
                                     std::vector<std::string>* decisions) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(source, ignored);
  const std::string config_path = is_folder ? source + "/config.json" : source;
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(config_path, kConfigBytesMax));
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(text, config_path));
  SMOE_TRY_ASSIGN(const ModelConfig config, checkpoint::ParseModelConfig(json, config_path));
  SMOE_TRY(CheckSameModel(config, config_path, vault));
  ArchFacts facts;
  facts.moe_ffn_dim = vault.intermediate_size;
  facts.has_dense_layer_0 = !vault.is_partial() && vault.layers.front().layer_index != 0;
  const std::string beside =
      std::filesystem::path(vault.path).replace_extension(".scout.safetensors").string();
  const std::optional<bool> seen = TensorsHaveQkNorm(is_folder ? source : beside);
  facts.has_qk_norm = seen.value_or(FamilyHasQkNorm(config.family));
  decisions->push_back(
      fmt::format("has_qk_norm: {} {}", facts.has_qk_norm,
                  seen ? "by the tensors" : "assumed from the model_type, no tensors at hand"));
  decisions->push_back(
      fmt::format("has_dense_layer_0: {} by the layers of the table", facts.has_dense_layer_0));
  SMOE_TRY_ASSIGN(const SmoeArchBlock arch, BuildArchBlock(config, facts));
  if (Status status = CheckArchBlock(arch, vault.header.max_experts_per_layer); !status) {
    return Invalid("{}: gives a block that readers refuse: {}", config_path,
                   status.error().message());
  }
  return arch;
}

Status WriteSynced(const io::File& file, uint64_t offset, Bytes bytes) {
  SMOE_TRY(file.WriteAt(offset, bytes));
  return file.Sync();
}

Status WriteField(const io::File& file, uint64_t offset, uint32_t value) {
  return WriteSynced(file, offset, std::as_bytes(std::span(&value, 1)));
}

Status Stamp(const std::string& path, const SmoeHeader& header, const SmoeArchBlock& arch,
             uint64_t arch_offset) {
  SMOE_TRY_ASSIGN(const io::File file, io::File::OpenReadWrite(path));
  if (header.version != kVersion1) {
    SMOE_TRY(WriteField(file, offsetof(SmoeHeader, version), kVersion1));
  }
  SMOE_TRY(WriteSynced(file, arch_offset, std::as_bytes(std::span(&arch, 1))));
  SMOE_TRY(
      WriteField(file, offsetof(SmoeHeader, reserved_ext), static_cast<uint32_t>(arch_offset)));
  return WriteField(file, offsetof(SmoeHeader, version), kVersion2);
}

}  // namespace

Result<UpgradeReport> UpgradeVault(const std::string& path, const UpgradeOptions& options) {
  SMOE_TRY_ASSIGN(const Vault vault, OpenVault(path, {.ignore_arch = options.force}));
  if (vault.header.version != kVersion1 && !options.force) {
    return Invalid("{}: header.version is {} already; --force writes its arch block anew", path,
                   uint32_t{vault.header.version});
  }
  if (vault.annex) {
    return Unsupported(
        "{}: has an annex with its own config.json, which the engine uses; convert it again to "
        "change it",
        path);
  }
  UpgradeReport report;
  report.arch_offset = RoundUp(DescriptorsEnd(vault.header), kArchAlignment);
  if (!RangeFits(report.arch_offset, sizeof(SmoeArchBlock), vault.header.data_offset)) {
    return Unsupported(
        "{}: no room for the arch block: it needs {} bytes at {}, the first expert begins at {}; "
        "convert the checkpoint again (smoe shatter)",
        path, sizeof(SmoeArchBlock), report.arch_offset, uint64_t{vault.header.data_offset});
  }
  SMOE_TRY_ASSIGN(report.arch, ArchFromSource(options.source, vault, &report.decisions));
  SMOE_TRY(Stamp(path, vault.header, report.arch, report.arch_offset));
  SMOE_TRY(OpenVault(path));
  return report;
}

}  // namespace smoe::store::vault
