#include "store/model_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "store/checkpoint_store.h"
#include "store/trunk_shapes.h"
#include "store/vault/annex.h"
#include "store/vault/arch_config.h"
#include "store/vault/vault.h"
#include "store/vault/vault_store.h"

namespace smoe::store {

namespace {

namespace fs = std::filesystem;
using checkpoint::TensorFiles;
using vault::AnnexSection;
using vault::Vault;

// The largest published tokenizer.json has 33 MB.
constexpr uint64_t kSideFileBytesMax = uint64_t{256} << 20;

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Where a part may come from, best first. A folder is searched; a file stands for its part alone.
struct Places {
  const Vault& vault;
  const ModelFilesOptions& options;
  ModelFiles* files;
};

// An option that the annex makes idle is said, not dropped.
void NoteIdleOption(const char* option, const std::string& value, const char* part,
                    ModelFiles* files) {
  if (value.empty()) return;
  files->warnings.push_back(
      fmt::format("{} {} is not used: the vault's annex has its own {}", option, value, part));
}

Result<TensorFiles> OpenTrunk(const Places& places) {
  const Vault& vault = places.vault;
  if (vault.annex) {
    if (const AnnexSection* section = vault.annex->Find(vault::kSectionTrunk)) {
      places.files->decisions.push_back("trunk: from the annex");
      NoteIdleOption("--trunk", places.options.trunk, "trunk", places.files);
      return TensorFiles::OpenEmbedded(vault.path, section->offset, section->size);
    }
  }
  if (!places.options.trunk.empty()) {
    places.files->decisions.push_back("trunk: " + places.options.trunk);
    return TensorFiles::Open(places.options.trunk);
  }
  const std::string beside = fs::path(vault.path).replace_extension(".scout.safetensors").string();
  if (!Exists(beside)) {
    return Invalid(
        "{}: its trunk is missing: no annex in the file, no {} beside it; name a .safetensors file "
        "or a checkpoint folder with --trunk",
        vault.path, beside);
  }
  places.files->decisions.push_back("trunk: " + beside);
  return TensorFiles::Open(beside);
}

// Folders that may hold a side file: those of the options, then the vault's own.
std::vector<std::string> SearchFolders(const Places& places, std::string_view name) {
  std::vector<std::string> folders;
  const bool is_tokenizer = name.starts_with("tokenizer") || name.starts_with("chat_template");
  const auto add = [&](const std::string& option) {
    if (option.empty()) return;
    folders.push_back(IsFolder(option) ? option : fs::path(option).parent_path().string());
  };
  if (is_tokenizer) add(places.options.tokenizer);
  add(places.options.config);
  if (IsFolder(places.options.trunk)) folders.push_back(places.options.trunk);
  folders.push_back(fs::path(places.vault.path).parent_path().string());
  return folders;
}

// One small file: from the annex, else `named` (a file given by an option), else the first folder
// that has it. nullopt: nowhere.
Result<std::optional<std::string>> FindSideFile(const Places& places, std::string_view name,
                                                const std::string& named) {
  if (places.vault.annex) {
    if (const AnnexSection* section = places.vault.annex->Find(name)) {
      places.files->decisions.push_back(fmt::format("{}: from the annex", name));
      return vault::ReadAnnexSection(places.vault.file, *section);
    }
  }
  std::string path;
  if (!named.empty() && !IsFolder(named)) {
    path = named;
  } else {
    for (const std::string& folder : SearchFolders(places, name)) {
      path = (fs::path(folder) / name).string();
      if (Exists(path)) break;
      path.clear();
    }
  }
  if (path.empty()) return std::nullopt;
  places.files->decisions.push_back(fmt::format("{}: {}", name, path));
  return io::ReadWholeFile(path, kSideFileBytesMax);
}

// An option that names a folder without the file it is there for.
Status CheckNamed(const std::string& option, const std::string& value, std::string_view name) {
  if (value.empty()) return Ok();
  if (!Exists(value)) return Invalid("{} {}: no such file or folder", option, value);
  if (!IsFolder(value) || Exists((fs::path(value) / name).string())) return Ok();
  return Invalid("{} {}: the folder has no {}", option, value, name);
}

Status FindSideFiles(const Places& places, std::string* config_text) {
  const ModelFilesOptions& options = places.options;
  SMOE_TRY(CheckNamed("--config", options.config, vault::kSectionConfig));
  SMOE_TRY(CheckNamed("--tokenizer", options.tokenizer, vault::kSectionTokenizer));
  checkpoint::SideFiles& side = places.files->side_files;
  SMOE_TRY_ASSIGN(const std::optional<std::string> config,
                  FindSideFile(places, vault::kSectionConfig, options.config));
  *config_text = config.value_or("");
  SMOE_TRY_ASSIGN(side.generation_config,
                  FindSideFile(places, vault::kSectionGenerationConfig, ""));
  SMOE_TRY_ASSIGN(side.tokenizer,
                  FindSideFile(places, vault::kSectionTokenizer, options.tokenizer));
  SMOE_TRY_ASSIGN(side.tokenizer_config, FindSideFile(places, vault::kSectionTokenizerConfig, ""));
  SMOE_TRY_ASSIGN(side.chat_template, FindSideFile(places, vault::kSectionChatTemplate, ""));
  if (places.vault.annex) {
    if (places.vault.annex->Find(vault::kSectionConfig) != nullptr) {
      NoteIdleOption("--config", options.config, "config.json", places.files);
    }
    if (places.vault.annex->Find(vault::kSectionTokenizer) != nullptr) {
      NoteIdleOption("--tokenizer", options.tokenizer, "tokenizer.json", places.files);
    }
  }
  return Ok();
}

// Config and experts must be of one model. `source` says where the config came from.
Status CheckAgainstVault(const Vault& vault, const checkpoint::ModelConfig& config,
                         const std::string& source) {
  struct Row {
    const char* key;
    uint32_t config;
    uint32_t vault;
  };
  for (const Row& row :
       {Row{"hidden_size", config.hidden_size, vault.hidden_size},
        Row{"number of experts", config.num_experts, vault.header.max_experts_per_layer},
        Row{"width of an expert", config.moe_intermediate_size, vault.intermediate_size}}) {
    if (row.config == row.vault) continue;
    return Invalid("{}: {} is {}, {} has {}: another model?", source, row.key, row.config,
                   vault.path, row.vault);
  }
  return Ok();
}

// header.vocab_size must be the config's, or the rows of the embedding.
Status CheckVocabulary(const Vault& vault, const TensorFiles& trunk, const std::string& prefix,
                       uint32_t config_size) {
  const uint32_t vocab_size = vault.header.vocab_size;
  const checkpoint::TensorInfo* embedding = trunk.Find(prefix + "embed_tokens.weight");
  if (vocab_size == 0 || vocab_size == config_size || embedding == nullptr) return Ok();
  if (!embedding->shape.empty() && embedding->shape[0] == vocab_size) return Ok();
  return Corrupt("{}: header.vocab_size is {}, expected {}, the rows of the trunk's embedding",
                 vault.path, vocab_size, embedding->shape.empty() ? 0 : embedding->shape[0]);
}

std::vector<uint32_t> SparseLayers(const Vault& vault, uint32_t num_hidden_layers) {
  std::vector<uint32_t> layers;
  for (const vault::VaultLayer& layer : vault.layers) {
    if (layer.layer_index < num_hidden_layers) layers.push_back(layer.layer_index);
  }
  return layers;
}

Status LoadConfig(const Places& places, ModelFiles* files) {
  const Vault& vault = places.vault;
  std::string text;
  SMOE_TRY(FindSideFiles(places, &text));
  const bool is_made = text.empty();
  Json json;
  if (is_made) {
    SMOE_TRY_ASSIGN(json, vault::MakeConfig(vault, files->trunk, &files->decisions));
    text = json.Dump(2);
  } else {
    SMOE_TRY_ASSIGN(json, Json::Parse(text, vault.path + " config.json"));
  }
  const std::string source = vault.path + (is_made ? " arch block" : " config.json");
  SMOE_TRY_ASSIGN(files->config, checkpoint::ParseModelConfig(json, source));
  files->side_files.config = std::move(text);
  SMOE_TRY(CheckAgainstVault(vault, files->config, source));
  auto facts = checkpoint::InspectTrunk(files->trunk, files->config,
                                        SparseLayers(vault, files->config.num_hidden_layers));
  if (!facts) return While(source + " and trunk", std::move(facts));
  files->facts = std::move(*facts);
  if (Status status = CheckTrunkShapes(files->trunk, files->facts.prefix, files->config); !status) {
    return While(source + " and trunk", std::move(status));
  }
  SMOE_TRY(CheckVocabulary(vault, files->trunk, files->facts.prefix, files->config.vocab_size));
  if (vault.arch && !is_made) {
    for (std::string& sentence :
         vault::Contradictions(vault, files->config, files->facts.has_qk_norm)) {
      files->warnings.push_back(std::move(sentence));
    }
  }
  return Ok();
}

void Append(const std::vector<std::string>& from, std::vector<std::string>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

Result<ModelFiles> OpenVaultFiles(const std::string& path, const ModelFilesOptions& options) {
  SMOE_TRY_ASSIGN(Vault vault, vault::OpenVault(path));
  if (vault.is_partial()) {
    return Invalid("{}: a partial vault cannot run: {}; convert the checkpoint whole", path,
                   vault.missing);
  }
  ModelFiles files;
  files.path = path;
  files.decisions = vault.decisions;
  files.warnings = vault.warnings;
  const Places places{vault, options, &files};
  SMOE_TRY_ASSIGN(files.trunk, OpenTrunk(places));
  SMOE_TRY(LoadConfig(places, &files));
  Append(files.facts.decisions, &files.decisions);
  Append(files.facts.warnings, &files.warnings);
  const vault::VaultStoreOptions store_options{options.direct_io, files.config.num_hidden_layers};
  SMOE_TRY_ASSIGN(files.experts, vault::OpenVaultStore(std::move(vault), store_options));
  return files;
}

Result<ModelFiles> OpenFolder(const std::string& path, const ModelFilesOptions& options) {
  if (!options.trunk.empty() || !options.config.empty()) {
    return Invalid("{}: a checkpoint folder has its own trunk and config; {} is for vaults", path,
                   options.trunk.empty() ? "--config" : "--trunk");
  }
  if (!Exists((fs::path(path) / vault::kSectionConfig).string()) &&
      Exists((fs::path(path) / "manifest.json").string())) {
    return Unsupported("{}: an NVFP4 expert-record store, which this build does not run", path);
  }
  SMOE_TRY_ASSIGN(checkpoint::Checkpoint checkpoint, checkpoint::OpenCheckpoint(path));
  ModelFiles files;
  files.path = path;
  SMOE_TRY_ASSIGN(files.experts, OpenCheckpointStore(path, checkpoint.files, checkpoint.experts,
                                                     checkpoint.config.num_hidden_layers));
  files.config = std::move(checkpoint.config);
  files.facts = std::move(checkpoint.facts);
  files.side_files = std::move(checkpoint.side_files);
  files.trunk = std::move(checkpoint.files);
  if (!options.tokenizer.empty()) {
    SMOE_TRY(CheckNamed("--tokenizer", options.tokenizer, vault::kSectionTokenizer));
    const std::string file = IsFolder(options.tokenizer)
                                 ? (fs::path(options.tokenizer) / vault::kSectionTokenizer).string()
                                 : options.tokenizer;
    SMOE_TRY_ASSIGN(files.side_files.tokenizer, io::ReadWholeFile(file, kSideFileBytesMax));
    files.decisions.push_back("tokenizer.json: " + file);
  }
  Append(files.facts.decisions, &files.decisions);
  Append(files.facts.warnings, &files.warnings);
  return files;
}

}  // namespace

Status CheckModelExists(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return Ok();
  if (error) return Io("{}: {}", path, error.message());
  return Invalid("{}: no such file or folder; MODEL is a .smoe vault or a checkpoint folder", path);
}

Result<ModelFiles> OpenModelFiles(const std::string& path, const ModelFilesOptions& options) {
  SMOE_TRY(CheckModelExists(path));
  return IsFolder(path) ? OpenFolder(path, options) : OpenVaultFiles(path, options);
}

}  // namespace smoe::store
