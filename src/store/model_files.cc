#include "store/model_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "store/checkpoint_store.h"
#include "store/model_parts.h"
#include "store/record_model.h"
#include "store/records/record_folder.h"
#include "store/stripe/striped_store.h"
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

// The sections of a vault's annex; none if it has no annex.
class AnnexParts final : public PartContainer {
 public:
  explicit AnnexParts(const Vault& vault) : vault_(vault) {}
  const char* name() const override { return "the annex"; }
  const char* owner() const override { return "the vault's annex"; }
  bool Has(std::string_view part) const override { return Find(part) != nullptr; }
  Result<std::string> Read(std::string_view part) const override {
    return vault::ReadAnnexSection(vault_.file, *Find(part));
  }
  const AnnexSection* Find(std::string_view part) const {
    return vault_.annex ? vault_.annex->Find(part) : nullptr;
  }

 private:
  const Vault& vault_;
};

Result<TensorFiles> OpenTrunk(const Vault& vault, const AnnexParts& annex,
                              const PartPlaces& places) {
  if (const AnnexSection* section = annex.Find(vault::kSectionTrunk)) {
    places.files->decisions.push_back("trunk: from the annex");
    NoteIdleOption(places, "--trunk", places.options.trunk, "trunk");
    places.files->trunk_checksum = {section->offset, section->size, section->checksum};
    return TensorFiles::OpenEmbedded(vault.path, section->offset, section->size);
  }
  if (!places.options.trunk.empty()) {
    SMOE_TRY(CheckNamed("--trunk", places.options.trunk, ""));
    places.files->decisions.push_back("trunk: " + places.options.trunk);
    return TensorFiles::Open(places.options.trunk);
  }
  const std::string beside = fs::path(vault.path).replace_extension(".scout.safetensors").string();
  if (!PathExists(beside)) {
    return Invalid(
        "{}: its trunk is missing: no annex in the file, no {} beside it; name a .safetensors file "
        "or a checkpoint folder with --trunk",
        vault.path, beside);
  }
  places.files->decisions.push_back("trunk: " + beside);
  return TensorFiles::Open(beside);
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

ExpertFacts FactsOf(const Vault& vault) {
  ExpertFacts facts{vault.path,
                    vault.hidden_size,
                    vault.header.max_experts_per_layer,
                    vault.intermediate_size,
                    {}};
  for (const vault::VaultLayer& layer : vault.layers) facts.layers.push_back(layer.layer_index);
  return facts;
}

Status LoadConfig(const Vault& vault, const PartPlaces& places) {
  ModelFiles* files = places.files;
  std::string text;
  std::string path;
  SMOE_TRY(FindSideFiles(places, &text, &path));
  const bool is_made = text.empty();
  Json json;
  if (is_made) {
    SMOE_TRY_ASSIGN(json, vault::MakeConfig(vault, files->trunk, &files->decisions));
    text = json.Dump(2);
  } else {
    SMOE_TRY_ASSIGN(json, Json::Parse(text, vault.path + " config.json"));
  }
  const std::string own = vault.path + (is_made ? " arch block" : " config.json");
  const std::string source = path.empty() ? own : path;
  SMOE_TRY(AdoptConfig(json, source, FactsOf(vault), files));
  files->side_files.config = std::move(text);
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
  const AnnexParts annex(vault);
  const PartPlaces places{annex, fs::path(path).parent_path().string(), options, &files};
  SMOE_TRY_ASSIGN(files.trunk, OpenTrunk(vault, annex, places));
  SMOE_TRY(LoadConfig(vault, places));
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

// The model that was striped, whole, but for where its experts are read.
Result<ModelFiles> OpenStriped(const std::string& path, const ModelFilesOptions& options) {
  SMOE_TRY_ASSIGN(stripe::Stripe striped, stripe::ReadStripe(path));
  if (!PathExists(striped.model)) {
    return Invalid("{}: the model {} is not there; mount its drive, or write its new place into {}",
                   path, striped.model, path);
  }
  if (stripe::IsStripeFile(striped.model)) {
    return Corrupt("{}: model is {}, itself a striped one; expected a vault or a record store",
                   path, striped.model);
  }
  SMOE_TRY_ASSIGN(ModelFiles files, OpenModelFiles(striped.model, options));
  files.decisions.push_back(fmt::format("experts: of {}, striped over {} more file{}",
                                        striped.model, striped.parts.size(),
                                        striped.parts.size() == 1 ? "" : "s"));
  SMOE_TRY_ASSIGN(files.experts,
                  stripe::OpenStripedStore(std::move(striped), std::move(files.experts)));
  files.path = path;
  return files;
}

}  // namespace

Status CheckModelExists(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return Ok();
  if (error) return Io("{}: {}", path, error.message());
  return Invalid(
      "{}: no such file or folder; MODEL is a .smoe vault, a record store or a checkpoint folder",
      path);
}

Result<ModelFiles> OpenModelFiles(const std::string& path, const ModelFilesOptions& options) {
  SMOE_TRY(CheckModelExists(path));
  if (records::IsRecordFolder(path)) return OpenRecordModel(path, options);
  if (stripe::IsStripeFile(path)) return OpenStriped(path, options);
  return IsFolder(path) ? OpenFolder(path, options) : OpenVaultFiles(path, options);
}

}  // namespace smoe::store
