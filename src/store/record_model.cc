#include "store/record_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "store/model_parts.h"
#include "store/records/record_store.h"
#include "store/vault/annex.h"

namespace smoe::store {

namespace {

using checkpoint::TensorFiles;
using records::RecordFolder;
using records::StoreFile;

// The files that the manifest names; none if the store was made by others.
class StoreParts final : public PartContainer {
 public:
  explicit StoreParts(const RecordFolder& folder) : folder_(folder) {}
  const char* name() const override { return "the store"; }
  const char* owner() const override { return "the store"; }
  bool Has(std::string_view part) const override { return folder_.index.FindFile(part) != nullptr; }
  Result<std::string> Read(std::string_view part) const override {
    return records::ReadStoreFile(folder_, *folder_.index.FindFile(part), kSideFileBytesMax);
  }

 private:
  const RecordFolder& folder_;
};

Result<TensorFiles> OpenTrunk(const RecordFolder& folder, const PartPlaces& places) {
  if (const StoreFile* file = folder.index.FindFile(records::kPartTrunk)) {
    places.files->decisions.push_back("trunk: from the store");
    NoteIdleOption(places, "--trunk", places.options.trunk, "trunk");
    places.files->trunk_checksum = {0, file->bytes, file->checksum};
    return TensorFiles::Open((std::filesystem::path(folder.path) / file->name).string());
  }
  if (places.options.trunk.empty()) {
    return Invalid(
        "{}: its trunk is missing: the manifest names none; name a .safetensors file or a "
        "checkpoint folder with --trunk",
        folder.path);
  }
  SMOE_TRY(CheckNamed("--trunk", places.options.trunk, ""));
  places.files->decisions.push_back("trunk: " + places.options.trunk);
  return TensorFiles::Open(places.options.trunk);
}

Status LoadConfig(const RecordFolder& folder, const PartPlaces& places) {
  std::string text;
  std::string path;
  SMOE_TRY(FindSideFiles(places, &text, &path));
  if (text.empty()) {
    return Invalid("{}: its config is missing: name a config.json or a folder with it by --config",
                   folder.path);
  }
  const std::string source = path.empty() ? folder.path + " config.json" : path;
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(text, source));
  const ExpertFacts facts{folder.path, folder.spec.hidden, folder.layout.num_experts,
                          folder.spec.inter, folder.index.moe_layer_to_model_layer};
  SMOE_TRY(AdoptConfig(json, source, facts, places.files));
  places.files->side_files.config = std::move(text);
  return Ok();
}

// Layers whose experts are in no store: the config wants them and the trunk has nothing dense in
// their place. The format itself cannot say that it was meant to have more.
std::string MissingLayers(const ModelFiles& files) {
  std::string missing;
  const std::vector<bool>& wanted = files.config.layer_is_sparse;
  for (uint32_t layer = 0; layer < wanted.size(); ++layer) {
    if (!wanted[layer] || files.facts.layer_is_sparse[layer]) continue;
    const std::string dense =
        fmt::format("{}layers.{}.mlp.down_proj.weight", files.facts.prefix, layer);
    if (files.trunk.Find(dense) != nullptr || files.trunk.Find(dense + "_packed") != nullptr) {
      continue;
    }
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", layer);
  }
  return missing;
}

Status CheckWhole(const ModelFilesOptions& options, ModelFiles* files) {
  const std::string missing = MissingLayers(*files);
  if (missing.empty()) return Ok();
  const std::string what =
      fmt::format("the config wants experts in layers {}, the store has none", missing);
  if (!options.allow_partial) {
    return Invalid("{}: a partial store cannot run: {}; pack the checkpoint whole", files->path,
                   what);
  }
  files->warnings.push_back("a partial store: " + what);
  return Ok();
}

void Append(const std::vector<std::string>& from, std::vector<std::string>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

Result<ModelFiles> OpenRecordModel(const std::string& path, const ModelFilesOptions& options) {
  SMOE_TRY_ASSIGN(RecordFolder folder, records::OpenRecordFolder(path));
  ModelFiles files;
  files.path = path;
  files.decisions = folder.decisions;
  files.warnings = folder.warnings;
  const StoreParts parts(folder);
  const PartPlaces places{parts, path, options, &files};
  SMOE_TRY_ASSIGN(files.trunk, OpenTrunk(folder, places));
  SMOE_TRY(LoadConfig(folder, places));
  SMOE_TRY(CheckWhole(options, &files));
  Append(files.facts.decisions, &files.decisions);
  Append(files.facts.warnings, &files.warnings);
  const records::RecordStoreOptions store_options{options.direct_io,
                                                  files.config.num_hidden_layers};
  SMOE_TRY_ASSIGN(files.experts, records::OpenRecordStore(std::move(folder), store_options));
  return files;
}

}  // namespace smoe::store
