#include "store/model_parts.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "io/file.h"
#include "store/trunk_shapes.h"
#include "store/vault/annex.h"

namespace smoe::store {

namespace {

namespace fs = std::filesystem;

// Folders that may hold a side file: those of the options, then the model's own.
std::vector<std::string> SearchFolders(const PartPlaces& places, std::string_view name) {
  std::vector<std::string> folders;
  const bool is_tokenizer = name.starts_with("tokenizer") || name.starts_with("chat_template");
  const auto add = [&](const std::string& option) {
    if (option.empty()) return;
    folders.push_back(IsFolder(option) ? option : fs::path(option).parent_path().string());
  };
  if (is_tokenizer) add(places.options.tokenizer);
  add(places.options.config);
  if (IsFolder(places.options.trunk)) folders.push_back(places.options.trunk);
  folders.push_back(places.folder);
  return folders;
}

// One small file: from the container, else `named` (a file given by an option), else the first
// folder that has it. nullopt: nowhere.
Result<std::optional<std::string>> FindSideFile(const PartPlaces& places, std::string_view name,
                                                const std::string& named,
                                                std::string* from = nullptr) {
  if (places.container.Has(name)) {
    places.files->decisions.push_back(fmt::format("{}: from {}", name, places.container.name()));
    return places.container.Read(name);
  }
  std::string path;
  if (!named.empty() && !IsFolder(named)) {
    path = named;
  } else {
    for (const std::string& folder : SearchFolders(places, name)) {
      path = (fs::path(folder) / name).string();
      if (PathExists(path)) break;
      path.clear();
    }
  }
  if (path.empty()) return std::nullopt;
  places.files->decisions.push_back(fmt::format("{}: {}", name, path));
  if (from != nullptr) *from = path;
  return io::ReadWholeFile(path, kSideFileBytesMax);
}

// Config and experts must be of one model. `source` says where the config came from.
Status CheckAgainstExperts(const ExpertFacts& experts, const checkpoint::ModelConfig& config,
                           const std::string& source) {
  struct Row {
    const char* key;
    uint32_t config;
    uint32_t experts;
  };
  for (const Row& row :
       {Row{"hidden_size", config.hidden_size, experts.hidden_size},
        Row{"number of experts", config.num_experts, experts.expert_count},
        Row{"width of an expert", config.moe_intermediate_size, experts.intermediate_size}}) {
    if (row.config == row.experts) continue;
    return Invalid("{}: {} is {}, {} has {}: another model?", source, row.key, row.config,
                   experts.path, row.experts);
  }
  return Ok();
}

}  // namespace

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool PathExists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void NoteIdleOption(const PartPlaces& places, const char* option, const std::string& value,
                    const char* part) {
  if (value.empty()) return;
  places.files->warnings.push_back(fmt::format("{} {} is not used: {} has its own {}", option,
                                               value, places.container.owner(), part));
}

Status CheckNamed(const std::string& option, const std::string& value, std::string_view name) {
  if (value.empty()) return Ok();
  if (!PathExists(value)) return Invalid("{} {}: no such file or folder", option, value);
  if (!IsFolder(value) || PathExists((fs::path(value) / name).string())) return Ok();
  return Invalid("{} {}: the folder has no {}", option, value, name);
}

Status FindSideFiles(const PartPlaces& places, std::string* config_text, std::string* config_path) {
  const ModelFilesOptions& options = places.options;
  SMOE_TRY(CheckNamed("--config", options.config, vault::kSectionConfig));
  SMOE_TRY(CheckNamed("--tokenizer", options.tokenizer, vault::kSectionTokenizer));
  checkpoint::SideFiles& side = places.files->side_files;
  SMOE_TRY_ASSIGN(const std::optional<std::string> config,
                  FindSideFile(places, vault::kSectionConfig, options.config, config_path));
  *config_text = config.value_or("");
  SMOE_TRY_ASSIGN(side.generation_config,
                  FindSideFile(places, vault::kSectionGenerationConfig, ""));
  SMOE_TRY_ASSIGN(side.tokenizer,
                  FindSideFile(places, vault::kSectionTokenizer, options.tokenizer));
  SMOE_TRY_ASSIGN(side.tokenizer_config, FindSideFile(places, vault::kSectionTokenizerConfig, ""));
  SMOE_TRY_ASSIGN(side.chat_template, FindSideFile(places, vault::kSectionChatTemplate, ""));
  if (places.container.Has(vault::kSectionConfig)) {
    NoteIdleOption(places, "--config", options.config, "config.json");
  }
  if (places.container.Has(vault::kSectionTokenizer)) {
    NoteIdleOption(places, "--tokenizer", options.tokenizer, "tokenizer.json");
  }
  return Ok();
}

Status AdoptConfig(const Json& json, const std::string& source, const ExpertFacts& experts,
                   ModelFiles* files) {
  SMOE_TRY_ASSIGN(files->config, checkpoint::ParseModelConfig(json, source));
  SMOE_TRY(CheckAgainstExperts(experts, files->config, source));
  std::vector<uint32_t> sparse_layers;
  for (const uint32_t layer : experts.layers) {
    if (layer < files->config.num_hidden_layers) sparse_layers.push_back(layer);
  }
  auto facts = checkpoint::InspectTrunk(files->trunk, files->config, sparse_layers);
  if (!facts) return While(source + " and trunk", std::move(facts));
  files->facts = std::move(*facts);
  if (Status status = CheckTrunkShapes(files->trunk, files->facts.prefix, files->config); !status) {
    return While(source + " and trunk", std::move(status));
  }
  return Ok();
}

}  // namespace smoe::store
