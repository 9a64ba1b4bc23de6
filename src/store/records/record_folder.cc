#include "store/records/record_folder.h"

#include <fmt/format.h>

#include <filesystem>

#include "store/records/record.h"

namespace smoe::store::records {

namespace {

namespace fs = std::filesystem;

bool Exists(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / name, ignored);
}

std::string PathIn(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

Status OpenLayer(uint32_t layer, RecordFolder* folder) {
  const std::string path = folder->LayerPath(layer);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return Corrupt("{}: missing; the manifest has num_moe_layers {}", path,
                   folder->layout.num_moe_layers);
  }
  SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(path));
  SMOE_TRY_ASSIGN(const uint64_t found, file.Size());
  if (const uint64_t expected = folder->layout.FileBytes(); found != expected) {
    return Corrupt("{}: has {} bytes, expected {}, num_experts {} by record_stride {}", path, found,
                   expected, folder->layout.num_experts, folder->layout.record_stride);
  }
  folder->files.push_back(std::move(file));
  return Ok();
}

Status CheckFileSize(const RecordFolder& folder, const StoreFile& file) {
  const std::string path = PathIn(folder.path, file.name);
  std::error_code failed;
  const uint64_t found = fs::file_size(path, failed);
  if (failed) {
    return Corrupt("{}: the manifest names it as {}: {}", path, file.part, failed.message());
  }
  if (found == file.bytes) return Ok();
  return Corrupt("{}: has {} bytes, expected {} by the manifest", path, found, file.bytes);
}

}  // namespace

std::string RecordFolder::LayerPath(uint32_t layer) const {
  return PathIn(path, ExpertIndex::FileName(layer));
}

std::string RecordFolder::RecordName(ExpertKey key) const {
  return fmt::format("{}: record {} (model layer {}, expert {}) at byte {}", LayerPath(key.layer),
                     key.expert, index.moe_layer_to_model_layer[key.layer], key.expert,
                     layout.RecordOffset(key.expert));
}

bool IsRecordFolder(const std::string& path) {
  const std::string first = ExpertIndex::FileName(0);
  const std::string partial = ".partial";
  if (Exists(path, first) || Exists(path, first + partial)) return true;
  // Interrupted at its start, a store has no more than the second.
  const bool has_manifest = Exists(path, kManifestName) || Exists(path, kManifestName + partial);
  return has_manifest && !Exists(path, "model.safetensors") &&
         !Exists(path, "model.safetensors.index.json");
}

Result<RecordFolder> OpenRecordFolder(const std::string& path) {
  RecordFolder folder;
  folder.path = path;
  const std::string manifest = PathIn(path, kManifestName);
  if (!Exists(path, kManifestName)) {
    return Corrupt(
        "{}: missing; it is written last: an interrupted packing or conversion? --resume goes on "
        "with it",
        manifest);
  }
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(manifest, kManifestBytesMax));
  SMOE_TRY_ASSIGN(folder.index, ParseManifest(text, manifest));
  SMOE_TRY_ASSIGN(folder.spec, DeriveSizes(&folder.index));
  if (folder.spec.group_size != kNvfp4GroupSize) {
    return Unsupported("{}: group_size is {}, this build computes with {}", manifest,
                       folder.spec.group_size, kNvfp4GroupSize);
  }
  folder.layout = folder.index.Layout();
  for (uint32_t layer = 0; layer < folder.layout.num_moe_layers; ++layer) {
    SMOE_TRY(OpenLayer(layer, &folder));
  }
  for (const StoreFile& file : folder.index.files) SMOE_TRY(CheckFileSize(folder, file));
  if (!folder.index.says_orientation) {
    folder.decisions.push_back("orientation: not said in the manifest; transposed assumed");
  }
  return folder;
}

Status CheckRecord(const RecordFolder& folder, ExpertKey key, Bytes record) {
  Status status = CheckIdentity(folder.spec, key, record);
  if (status && !folder.index.record_checksums.empty()) {
    const ExpertRecordId id = ExpertRecordId::Of(key, folder.layout.num_experts);
    const uint64_t expected = folder.index.record_checksums[id.value];
    const uint64_t found = Checksum(record.first(folder.spec.raw_bytes));
    if (found != expected) {
      status = Corrupt("checksum is {:016x}, expected {:016x} by the manifest", found, expected);
    }
  }
  if (status) status = CheckContent(folder.spec, record);
  if (!status) return While(folder.RecordName(key), std::move(status));
  return Ok();
}

Result<std::string> ReadStoreFile(const RecordFolder& folder, const StoreFile& file,
                                  uint64_t bytes_max) {
  const std::string path = PathIn(folder.path, file.name);
  SMOE_TRY_ASSIGN(std::string content, io::ReadWholeFile(path, bytes_max));
  if (content.size() != file.bytes) {
    return Corrupt("{}: has {} bytes, expected {} by the manifest", path, content.size(),
                   file.bytes);
  }
  if (const uint64_t found = Checksum(AsBytes(content)); found != file.checksum) {
    return Corrupt("{}: checksum is {:016x}, expected {:016x} by the manifest", path, found,
                   file.checksum);
  }
  return content;
}

}  // namespace smoe::store::records
