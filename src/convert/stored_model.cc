#include "convert/stored_model.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "convert/source.h"
#include "io/file_checksum.h"
#include "store/records/record_folder.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

namespace records = store::records;
namespace vault = store::vault;

// Side files are taken from where the model was found; what else a store holds goes along unread.
bool IsKnownPart(std::string_view name) {
  constexpr std::string_view kKnown[] = {
      vault::kSectionChecksums,        vault::kSectionTrunk,           vault::kSectionConfig,
      vault::kSectionTokenizer,        vault::kSectionTokenizerConfig, vault::kSectionChatTemplate,
      vault::kSectionGenerationConfig, vault::kSectionOrigin,
  };
  return std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
}

Status ReadVaultParts(const std::string& path, StoredModel* model) {
  SMOE_TRY_ASSIGN(const vault::Vault opened, vault::OpenVault(path));
  if (!opened.annex) return Ok();
  for (const vault::AnnexSection& section : opened.annex->sections) {
    if (section.name == vault::kSectionTrunk) {
      SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(path));
      model->trunk = {std::move(file), section.offset, section.size, section.checksum};
    }
    const bool is_origin = section.name == vault::kSectionOrigin;
    if (IsKnownPart(section.name) && !is_origin) continue;
    SMOE_TRY_ASSIGN(std::string content, vault::ReadAnnexSection(opened.file, section));
    if (is_origin) {
      SMOE_TRY_ASSIGN(model->origin, Json::Parse(content, path + " origin.json"));
    } else {
      model->parts.push_back({section.name, std::move(content)});
    }
  }
  return Ok();
}

// One record that has them is enough.
Result<bool> HasInputScales(const records::RecordFolder& folder) {
  for (const io::File& file : folder.files) {
    for (uint32_t expert = 0; expert < folder.layout.num_experts; ++expert) {
      std::array<std::byte, sizeof(records::ExpertRecordHeader)> bytes;
      SMOE_TRY(file.ReadAt(folder.layout.RecordOffset(expert), bytes));
      if (LoadStruct<records::ExpertRecordHeader>(bytes).input_scale_flags != 0) return true;
    }
  }
  return false;
}

Status ReadFolderParts(const std::string& path, StoredModel* model) {
  SMOE_TRY_ASSIGN(records::RecordFolder folder, records::OpenRecordFolder(path));
  for (const records::StoreFile& file : folder.index.files) {
    if (file.part == records::kPartTrunk) {
      SMOE_TRY_ASSIGN(io::File trunk,
                      io::File::OpenRead((std::filesystem::path(path) / file.name).string()));
      model->trunk = {std::move(trunk), 0, file.bytes, file.checksum};
    }
    if (IsKnownPart(file.part)) continue;
    SMOE_TRY_ASSIGN(std::string content,
                    records::ReadStoreFile(folder, file, vault::kSmallSectionBytesMax));
    model->parts.push_back({file.part, std::move(content)});
  }
  SMOE_TRY_ASSIGN(model->has_input_scales, HasInputScales(folder));
  model->origin = std::move(folder.index.source);
  return Ok();
}

// The files that hold experts and trunk.
Result<std::vector<io::File>> OpenInputs(const std::string& path, const StoredModel& model) {
  std::vector<std::string> names;
  if (model.is_records) {
    SMOE_TRY_ASSIGN(const records::RecordFolder folder, records::OpenRecordFolder(path));
    names.push_back((std::filesystem::path(path) / records::kManifestName).string());
    for (const io::File& file : folder.files) names.push_back(file.path());
  } else {
    names.push_back(path);
  }
  for (const io::File& file : model.files.trunk.files()) {
    if (file.path() != path) names.push_back(file.path());
  }
  std::vector<io::File> files;
  for (const std::string& name : names) {
    SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(name));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

Result<StoredModel> OpenStoredModel(const std::string& path,
                                    const store::ModelFilesOptions& options) {
  SMOE_TRY(store::CheckModelExists(path));
  StoredModel model;
  model.is_records = records::IsRecordFolder(path);
  std::error_code ignored;
  if (!model.is_records && std::filesystem::is_directory(path, ignored)) {
    return Invalid(
        "{}: a checkpoint folder; smoe shatter makes a vault of it, smoe pack a record store",
        path);
  }
  SMOE_TRY_ASSIGN(model.files, store::OpenModelFiles(path, options));
  for (const AnnexText& text : TextsOf(model.files.side_files)) {
    model.parts.push_back({std::string(text.name), std::string(text.content)});
  }
  SMOE_TRY(model.is_records ? ReadFolderParts(path, &model) : ReadVaultParts(path, &model));
  SMOE_TRY_ASSIGN(const std::vector<io::File> inputs, OpenInputs(path, model));
  SMOE_TRY_ASSIGN(model.source, SourceJson(inputs, model.files.side_files.config, true));
  for (const io::File& file : inputs) model.inputs.push_back(file.path());
  return model;
}

Status CheckStoredTrunk(const StoredModel& model) {
  constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
  if (!model.trunk) return Ok();
  const StoredTrunk& trunk = *model.trunk;
  std::vector<std::byte> buffer(std::min(kPieceBytes, trunk.size));
  SMOE_TRY_ASSIGN(const uint64_t checksum,
                  io::ChecksumOfStretch(trunk.file, trunk.offset, trunk.size, buffer));
  if (checksum == trunk.checksum) return Ok();
  return Corrupt("{}: trunk: checksum is {:016x}, expected {:016x}", trunk.file.path(), checksum,
                 trunk.checksum);
}

}  // namespace smoe::convert
