#include "store/records/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/log.h"
#include "io/replace_folder.h"

namespace smoe::store::records {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartialSuffix = ".partial";

// The dense layer that a name like experts_00003.xpr is of, .partial or not.
std::optional<uint32_t> LayerOfName(std::string_view name) {
  constexpr std::string_view kBefore = "experts_";
  if (name.ends_with(kPartialSuffix)) name.remove_suffix(kPartialSuffix.size());
  if (!name.starts_with(kBefore)) return std::nullopt;
  uint32_t layer = 0;
  const char* digits = name.data() + kBefore.size();
  const auto parsed = std::from_chars(digits, name.data() + name.size(), layer);
  if (parsed.ec != std::errc() || ExpertIndex::FileName(layer) != name) return std::nullopt;
  return layer;
}

// The layer files of a folder, with their layers.
std::vector<std::pair<uint32_t, fs::path>> LayerFilesOf(const std::string& folder) {
  std::vector<std::pair<uint32_t, fs::path>> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const auto layer = LayerOfName(entry.path().filename().string());
    if (layer) files.emplace_back(*layer, entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// What a run that was stopped has left for certain. Its manifest's file is there first of all.
bool ShowsUnfinishedStore(std::string_view name) {
  return LayerOfName(name) || name == std::string(kManifestName) + std::string(kPartialSuffix) ||
         name.ends_with(".journal");
}

bool MayBeInUnfinishedStore(std::string_view name) {
  constexpr std::string_view kFiles[] = {"trunk.safetensors",   "config.json",
                                         "tokenizer.json",      "tokenizer_config.json",
                                         "chat_template.jinja", "generation_config.json"};
  if (ShowsUnfinishedStore(name)) return true;
  if (name.ends_with(kPartialSuffix)) name.remove_suffix(kPartialSuffix.size());
  return std::find(std::begin(kFiles), std::end(kFiles), name) != std::end(kFiles);
}

Unexpected HoldsOther(const std::string& work_folder, const std::string& name) {
  return Invalid(
      "{}: holds {}, expected nothing or an unfinished store, since the new one would be written "
      "there; rename it",
      work_folder, name);
}

// What is in a folder that bears the name of one to work in will be removed: all of it must be of a
// run that was stopped.
Status CheckIsUnfinishedStore(const std::string& work_folder) {
  std::string last_name;
  bool is_ours = false;
  std::error_code failed;
  for (fs::directory_iterator at(work_folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    last_name = at->path().filename().string();
    const bool is_file = at->symlink_status(failed).type() == fs::file_type::regular;
    if (!is_file || !MayBeInUnfinishedStore(last_name)) return HoldsOther(work_folder, last_name);
    is_ours = is_ours || ShowsUnfinishedStore(last_name);
  }
  if (failed) return Io("{}: {}", work_folder, failed.message());
  if (is_ours || last_name.empty()) return Ok();
  return HoldsOther(work_folder, last_name);
}

Status RemoveFile(const fs::path& path) {
  std::error_code failed;
  fs::remove(path, failed);
  if (failed) return Io("{}: removing it: {}", path.string(), failed.message());
  return Ok();
}

// A new store would be made in `work_folder` and then take the place of `folder`.
Status CheckReplaces(const std::string& folder, const std::string& work_folder, bool resume) {
  SMOE_TRY(io::CheckReplaceableFolder(folder));
  std::error_code ignored;
  if (const fs::path manifest = fs::path(work_folder) / kManifestName;
      fs::exists(manifest, ignored)) {
    return Invalid(
        "{}: a finished store, where the one that replaces {} would be written; a run that was "
        "stopped while the two changed places leaves the older or the newer one, and what else lay "
        "in the folder; look into both, then rename or remove that one",
        manifest.string(), folder);
  }
  const fs::file_status status = fs::symlink_status(work_folder, ignored);
  if (!fs::exists(status)) return Ok();
  if (fs::is_directory(status)) return resume ? Ok() : CheckIsUnfinishedStore(work_folder);
  return Invalid(
      "{}: is no folder, expected one to write the new store into, or nothing; remove it",
      work_folder);
}

// What ParseManifest would refuse must not be written.
Status CheckIndex(const ExpertIndex& index) {
  const auto parsed = ParseManifest(ManifestText(index), "manifest");
  if (parsed) return Ok();
  return Unexpected(Error(ErrorCode::kInvalid, parsed.error().message()));
}

}  // namespace

Result<std::unique_ptr<RecordWriter>> RecordWriter::Create(const std::string& folder,
                                                           ExpertIndex index,
                                                           const RecordWriterOptions& options) {
  SMOE_TRY_ASSIGN(const ExpertRecordSpec spec, DeriveSizes(&index));
  index.says_orientation = true;
  index.record_checksums.clear();
  index.files.clear();
  SMOE_TRY(CheckIndex(index));
  std::unique_ptr<RecordWriter> writer(new RecordWriter(folder, std::move(index), spec, options));
  SMOE_TRY(writer->OpenFolder());
  writer->is_begun_ = true;
  return writer;
}

RecordWriter::RecordWriter(std::string folder, ExpertIndex index, const ExpertRecordSpec& spec,
                           const RecordWriterOptions& options)
    : folder_(std::move(folder)),
      work_folder_(WorkFolder(folder_, options.overwrite)),
      index_(std::move(index)),
      spec_(spec),
      layout_(index_.Layout()),
      options_(options),
      layers_(index_.num_moe_layers) {
  for (Layer& layer : layers_) layer.missing_count = index_.num_experts;
  written_.resize(uint64_t{index_.num_moe_layers} * index_.num_experts);
  index_.record_checksums.resize(written_.size());
}

RecordWriter::~RecordWriter() { Discard(); }

std::string RecordWriter::PathOf(std::string_view name) const {
  return (fs::path(work_folder_) / name).string();
}

std::string RecordWriter::WorkFolder(const std::string& folder, bool overwrite) {
  std::error_code failed;
  if (!overwrite || !fs::exists(fs::path(folder) / kManifestName, failed)) return folder;
  const fs::path place = fs::canonical(folder, failed);  // of a link too
  return failed ? folder : place.string() + std::string(kPartialSuffix);
}

Status RecordWriter::CheckPlace(const std::string& folder, const std::vector<std::string>& names,
                                const RecordWriterOptions& options) {
  if (folder.empty()) return Invalid("output: the name is empty, expected a folder to write");
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) {
    // A name that is mistyped must not grow a tree of folders.
    const fs::path above = (fs::path(folder) / "").parent_path().parent_path();
    if (above.empty() || fs::exists(above, ignored)) return Ok();
    return Invalid("{}: there is no folder {} to make it in; make it first", folder,
                   above.string());
  }
  if (!fs::is_directory(folder, ignored)) {
    return Invalid("{}: is a file, expected a folder to write", folder);
  }
  if (options.overwrite) {
    const std::string work_folder = WorkFolder(folder, true);
    return work_folder == folder ? Ok() : CheckReplaces(folder, work_folder, options.resume);
  }
  // A finished store is only ever replaced as a whole: resuming does not allow it.
  if (const fs::path manifest = fs::path(folder) / kManifestName; fs::exists(manifest, ignored)) {
    return Invalid("{}: exists; --force replaces it", manifest.string());
  }
  if (options.resume) return Ok();
  if (const auto layers = LayerFilesOf(folder); !layers.empty()) {
    return Invalid(
        "{}: exists, of an unfinished store; --resume goes on with it (pack and convert), --force "
        "starts again",
        layers.front().second.string());
  }
  for (const std::string& name : names) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path, ignored)) return Invalid("{}: exists; --force replaces it", path.string());
  }
  return Ok();
}

Status RecordWriter::OpenFolder() {
  SMOE_TRY(CheckPlace(folder_, {}, options_));
  std::error_code failed;
  made_folder_ = fs::create_directory((fs::path(work_folder_) / "").parent_path(), failed);
  if (failed) return Io("{}: making the folder: {}", work_folder_, failed.message());
  SMOE_TRY_ASSIGN(io::AtomicFile manifest, io::AtomicFile::Open(PathOf(kManifestName), {}));
  manifest_.emplace(std::move(manifest));
  return options_.resume ? ReclaimLayers() : RemoveLeftFiles();
}

// Of a run that is not gone on with. In the folder that will take the place of another everything
// is of such a run; where a store is written in place, only its layers are known to be.
Status RecordWriter::RemoveLeftFiles() const {
  if (work_folder_ == folder_) {
    for (const auto& [layer, path] : LayerFilesOf(folder_)) SMOE_TRY(RemoveFile(path));
    return Ok();
  }
  std::vector<fs::path> left;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(work_folder_, failed)) {
    if (entry.path() != fs::path(manifest_->partial_path())) left.push_back(entry.path());
  }
  for (const fs::path& path : left) SMOE_TRY(RemoveFile(path));
  return Ok();
}

// A whole layer of an interrupted run goes through the same door again as one that was begun.
Status RecordWriter::ReclaimLayers() {
  for (const auto& [layer, path] : LayerFilesOf(work_folder_)) {
    if (path.string().ends_with(kPartialSuffix) || layer >= index_.num_moe_layers) continue;
    std::error_code failed;
    fs::rename(path, path.string() + std::string(kPartialSuffix), failed);
    if (failed) return Io("{}: renaming it: {}", path.string(), failed.message());
  }
  return Ok();
}

Result<RecordWriter::Layer*> RecordWriter::OpenLayer(uint32_t layer_index) {
  Layer& layer = layers_[layer_index];
  const std::lock_guard lock(layer.mutex);
  if (layer.file) return &layer;
  SMOE_TRY_ASSIGN(io::AtomicFile file,
                  io::AtomicFile::Open(PathOf(ExpertIndex::FileName(layer_index)),
                                       {options_.overwrite, options_.resume}));
  file.KeepPartial();  // Discard decides for all of them.
  SMOE_TRY(file.file().Truncate(layout_.FileBytes()));
  SMOE_TRY(file.file().Reserve(layout_.FileBytes()));
  if (auto direct = io::File::OpenDirectWrite(file.partial_path())) {
    layer.direct = std::move(*direct);
  } else if (layer_index == 0) {
    LogInfo("writing through the page cache: {}", direct.error().message());
  }
  layer.file.emplace(std::move(file));
  return &layer;
}

Status RecordWriter::WriteRecord(ExpertKey key, Bytes record) {
  SMOE_CHECK(key.layer < index_.num_moe_layers && key.expert < index_.num_experts);
  SMOE_CHECK(record.size() == spec_.raw_bytes || record.size() == layout_.record_stride);
  SMOE_TRY_ASSIGN(Layer * layer, OpenLayer(key.layer));
  const uint64_t offset = layout_.RecordOffset(key.expert);
  if (layer->direct.is_open() && io::IsDirectAligned(record, offset)) {
    SMOE_TRY(layer->direct.WriteAt(offset, record));
    return CountRecord(key, Checksum(record.first(spec_.raw_bytes)));
  }
  const io::File& file = layer->file->file();
  SMOE_TRY(file.WriteAt(offset, record));
  // An interrupted run may have left anything behind it.
  const std::vector<std::byte> zeros(layout_.record_stride - record.size());
  if (options_.resume) SMOE_TRY(file.WriteAt(offset + record.size(), zeros));
  file.StartWriteback(offset, layout_.record_stride);
  return CountRecord(key, Checksum(record.first(spec_.raw_bytes)));
}

Result<bool> RecordWriter::RestoreRecord(ExpertKey key, uint64_t checksum, MutableBytes scratch) {
  SMOE_CHECK(key.layer < index_.num_moe_layers && key.expert < index_.num_experts);
  SMOE_CHECK(scratch.size() == spec_.raw_bytes);
  SMOE_TRY_ASSIGN(Layer * layer, OpenLayer(key.layer));
  SMOE_TRY(layer->file->file().ReadAt(layout_.RecordOffset(key.expert), scratch));
  if (Checksum(scratch) != checksum) return false;
  // No checksum covers what lies behind the record.
  const std::vector<std::byte> zeros(layout_.record_stride - spec_.raw_bytes);
  SMOE_TRY(layer->file->file().WriteAt(layout_.RecordOffset(key.expert) + spec_.raw_bytes, zeros));
  SMOE_TRY(CountRecord(key, checksum));
  return true;
}

Status RecordWriter::CountRecord(ExpertKey key, uint64_t checksum) {
  const uint64_t id = IdOf(key);
  SMOE_CHECK(written_[id] == 0);
  written_[id] = 1;
  index_.record_checksums[id] = checksum;
  Layer& layer = layers_[key.layer];
  if (layer.missing_count.fetch_sub(1) != 1) return Ok();
  // All others of this layer are done with the file.
  layer.direct = io::File();
  SMOE_TRY(layer.file->Commit());
  layer.file.reset();
  return Ok();
}

Status RecordWriter::AddFile(std::string_view part, std::string_view name, Bytes content) {
  SMOE_TRY(BeginFile(part, name, content.size()));
  SMOE_TRY(AppendFile(content));
  return EndFile();
}

Status RecordWriter::BeginFile(std::string_view part, std::string_view name, uint64_t size) {
  SMOE_CHECK(!open_file_ && index_.FindFile(part) == nullptr);
  SMOE_TRY_ASSIGN(
      io::AtomicFile file,
      io::AtomicFile::Open(PathOf(name), {options_.overwrite || options_.resume, false}));
  open_file_.emplace(std::move(file));
  open_checksum_.emplace();
  open_position_ = 0;
  index_.files.push_back({std::string(part), std::string(name), size, 0});
  return Ok();
}

Status RecordWriter::AppendFile(Bytes piece) {
  SMOE_CHECK(open_file_.has_value());
  SMOE_CHECK(piece.size() <= index_.files.back().bytes - open_position_);
  SMOE_TRY(open_file_->file().WriteAt(open_position_, piece));
  open_file_->file().StartWriteback(open_position_, piece.size());
  open_checksum_->Add(piece);
  open_position_ += piece.size();
  return Ok();
}

Status RecordWriter::EndFile() {
  SMOE_CHECK(open_file_.has_value() && open_position_ == index_.files.back().bytes);
  index_.files.back().checksum = open_checksum_->Digest();
  SMOE_TRY(open_file_->Commit());
  open_file_.reset();
  return Ok();
}

Status RecordWriter::Finish() {
  SMOE_CHECK(!open_file_);
  for (const uint8_t written : written_) SMOE_CHECK(written == 1);
  // Of another run that was begun, with more layers.
  for (const auto& [layer, path] : LayerFilesOf(work_folder_)) {
    if (layer >= index_.num_moe_layers) SMOE_TRY(RemoveFile(path));
  }
  const std::string text = ManifestText(index_);
  SMOE_TRY(manifest_->file().WriteAt(0, AsBytes(std::string_view(text))));
  SMOE_TRY(manifest_->Commit());
  manifest_.reset();
  return work_folder_ == folder_ ? Ok() : TakePlace();
}

// The files of the store that is replaced go with it: the new one may have no chat template, and a
// reader that misses it in the manifest looks for one beside it.
Status RecordWriter::TakePlace() const {
  const std::string place = work_folder_.substr(0, work_folder_.size() - kPartialSuffix.size());
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(place, failed))) {  // moved away meanwhile
    fs::rename(work_folder_, place, failed);
    if (!failed) return io::SyncDirectoryOf(place);
    return Unsupported("{}: is complete, but cannot be renamed to {}: {}; rename it", work_folder_,
                       place, failed.message());
  }
  std::vector<std::string> names = {std::string(kManifestName)};
  const std::string path = (fs::path(place) / kManifestName).string();
  const auto text = io::ReadWholeFile(path, kManifestBytesMax);
  if (text) {
    if (const auto old = ParseManifest(*text, path)) {
      for (const StoreFile& file : old->files) names.push_back(file.name);
    }
  }
  return io::ReplaceFolder(work_folder_, place, [&](const std::string& name) {
    return LayerOfName(name) || std::find(names.begin(), names.end(), name) != names.end();
  });
}

void RecordWriter::Discard() {
  if (is_begun_ && !manifest_) return;  // finished
  open_file_.reset();
  std::error_code ignored;
  // What lies in a folder that was refused is not ours.
  if (is_begun_ && !keep_partial_) {
    for (uint32_t i = 0; i < index_.num_moe_layers; ++i) {
      layers_[i].file.reset();
      const std::string path = PathOf(ExpertIndex::FileName(i));
      fs::remove(path, ignored);
      fs::remove(path + std::string(kPartialSuffix), ignored);
    }
    for (const StoreFile& file : index_.files) fs::remove(PathOf(file.name), ignored);
  }
  manifest_.reset();
  if (made_folder_ && !keep_partial_) fs::remove(work_folder_, ignored);  // only if it is empty
}

}  // namespace smoe::store::records
