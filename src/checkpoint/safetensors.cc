#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/json.h"
#include "checkpoint/name_list.h"
#include "checkpoint/safetensors_header.h"

namespace smoe::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kSniffBytes = 32;
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// Refuses a file whose first bytes cannot be a safetensors header, saying what they look like.
Status CheckLength(const io::File& file, uint64_t offset, uint64_t size, uint64_t* header_bytes) {
  std::array<std::byte, kSniffBytes> first = {};
  const uint64_t sniffed = std::min<uint64_t>(size, first.size());
  SMOE_TRY(file.ReadAt(offset, MutableBytes(first).first(sniffed)));
  const std::string_view kind = GuessFileKind(Bytes(first).first(sniffed));
  if (size < kLengthBytes) {
    if (!kind.empty()) return Corrupt("{}: no safetensors, seems to be {}", file.path(), kind);
    return Corrupt("{}: {} bytes, a safetensors file has at least {}", file.path(), size,
                   kLengthBytes);
  }
  const auto length = LoadStruct<uint64_t>(Bytes(first));
  const bool begins_as_json = size > kLengthBytes && first[kLengthBytes] == std::byte{'{'};
  if (!kind.empty() && !begins_as_json) {
    return Corrupt("{}: no safetensors, seems to be {}", file.path(), kind);
  }
  if (length > kSafetensorsHeaderBytesMax) {
    return Corrupt("{}: header of {} bytes, at most {} (kSafetensorsHeaderBytesMax) are read{}",
                   file.path(), length, kSafetensorsHeaderBytesMax,
                   begins_as_json ? "" : "; this does not look like safetensors");
  }
  if (length > size - kLengthBytes) {
    return Corrupt("{}: header of {} bytes, the file has {} after its length: incomplete download?",
                   file.path(), length, size - kLengthBytes);
  }
  if (length == 0 || !begins_as_json) {
    return Corrupt("{}: no safetensors: the header must begin with '{{' at byte {}", file.path(),
                   kLengthBytes);
  }
  *header_bytes = length;
  return Ok();
}

// The table of the image at [offset, offset + size) of a file, which must lie inside it.
Result<std::vector<HeaderEntry>> ReadTable(const io::File& file, uint64_t offset, uint64_t size,
                                           uint64_t* data_offset) {
  uint64_t header_bytes = 0;
  SMOE_TRY(CheckLength(file, offset, size, &header_bytes));
  std::string header(header_bytes, '\0');
  SMOE_TRY(file.ReadAt(offset + kLengthBytes, std::as_writable_bytes(std::span(header))));
  *data_offset = offset + kLengthBytes + header_bytes;
  auto entries = ParseSafetensorsHeader(header, size - kLengthBytes - header_bytes);
  if (!entries) return While(file.path(), std::move(entries));
  return entries;
}

// File names of a folder that end in `ending`, sorted.
std::vector<std::string> FilesEnding(const std::string& folder, std::string_view ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(ending)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Index {
  std::vector<std::string> shards;              // sorted
  std::map<std::string, std::string> shard_of;  // tensor name to shard
};

Result<Index> ParseIndex(const std::string& text, const std::string& path) {
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(text, path));
  const Json* map = json.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return Corrupt("{}: weight_map: expected an object of tensor name to file name, found {}", path,
                   map == nullptr ? "none" : map->type_name());
  }
  Index index;
  for (const auto& [tensor, shard] : *map->AsObject()) {
    const std::string* name = shard.AsString();
    if (name == nullptr) {
      return Corrupt("{}: weight_map: {}: expected a file name, found {}", path, tensor,
                     shard.type_name());
    }
    // The index comes from outside: it may not lead out of its folder. The system reads names up to
    // their first NUL.
    if (name->empty() || name->find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
        *name == "." || *name == "..") {
      return Corrupt("{}: weight_map: {}: file \"{}\", expected a plain name in this folder", path,
                     tensor, *name);
    }
    index.shard_of.emplace(tensor, *name);
    index.shards.push_back(*name);
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  if (index.shards.empty()) return Corrupt("{}: weight_map: names no tensor", path);
  if (index.shards.size() > kShardCountMax) {
    return Corrupt("{}: weight_map: {} shards, at most {} (kShardCountMax) are read", path,
                   index.shards.size(), kShardCountMax);
  }
  return index;
}

Status CheckShardsExist(const Index& index, const std::string& folder) {
  std::vector<std::string> missing;
  for (const std::string& shard : index.shards) {
    std::error_code ignored;
    if (!fs::exists(fs::path(folder) / shard, ignored)) missing.push_back(shard);
  }
  if (missing.empty()) return Ok();
  std::vector<std::string> strangers;
  for (const std::string& name : FilesEnding(folder, ".safetensors")) {
    if (!std::binary_search(index.shards.begin(), index.shards.end(), name)) {
      strangers.push_back(name);
    }
  }
  std::string hint = "incomplete download?";
  if (!strangers.empty()) {
    hint =
        fmt::format("incomplete download, or is the index of another export? It does not name {}",
                    ListNames(strangers));
  }
  return Corrupt("{}: {} of the {} shards in {} are missing: {}; {}", folder, missing.size(),
                 index.shards.size(), kIndexName, ListNames(missing), hint);
}

Unexpected NoCheckpointIn(const std::string& folder) {
  const auto shards = FilesEnding(folder, ".safetensors");
  std::string found = "no safetensors file";
  if (!shards.empty()) {
    found = fmt::format("{} without {}", ListNames(shards), kIndexName);
  } else if (!FilesEnding(folder, ".bin").empty() || !FilesEnding(folder, ".pth").empty()) {
    found = "PyTorch pickles only: convert them to safetensors first";
  } else if (!FilesEnding(folder, ".gguf").empty()) {
    found = "GGUF files only";
  }
  return Invalid("{}: expected {} or {}, found {}", folder, kSingleName, kIndexName, found);
}

}  // namespace

Status TensorFiles::AddFile(io::File file, uint64_t offset, uint64_t size) {
  uint64_t data_offset = 0;
  SMOE_TRY_ASSIGN(const auto entries, ReadTable(file, offset, size, &data_offset));
  const auto file_index = static_cast<uint32_t>(files_.size());
  files_.push_back(std::move(file));
  for (const HeaderEntry& entry : entries) {
    TensorInfo info{.dtype = entry.dtype,
                    .shape = entry.shape,
                    .file_index = file_index,
                    .offset = data_offset + entry.begin,
                    .size = entry.end - entry.begin};
    const auto [other, is_new] = tensors_.emplace(entry.name, std::move(info));
    if (!is_new) {
      return Corrupt("{}: tensor {}: already in {}", files_.back().path(), entry.name,
                     files_[other->second.file_index].path());
    }
  }
  return Ok();
}

Status TensorFiles::AddShards(const std::string& folder) {
  const std::string index_path = (fs::path(folder) / kIndexName).string();
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(index_path, kIndexBytesMax));
  SMOE_TRY_ASSIGN(const Index index, ParseIndex(text, index_path));
  SMOE_TRY(CheckShardsExist(index, folder));
  for (const std::string& shard : index.shards) {
    SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead((fs::path(folder) / shard).string()));
    SMOE_TRY_ASSIGN(const uint64_t size, file.Size());
    SMOE_TRY(AddFile(std::move(file), 0, size));
  }
  for (const auto& [tensor, shard] : index.shard_of) {
    const TensorInfo* info = Find(tensor);
    if (info == nullptr) {
      return Corrupt("{}: tensor {}: not in {}, nor in any other shard", index_path, tensor, shard);
    }
    const std::string& found = files_[info->file_index].path();
    if (fs::path(found).filename().string() != shard) {
      return Corrupt("{}: tensor {}: index says {}, found in {}", index_path, tensor, shard, found);
    }
  }
  return Ok();
}

Result<TensorFiles> TensorFiles::Open(const std::string& path) {
  TensorFiles out;
  std::error_code ignored;
  std::string file_path = path;
  if (fs::is_directory(path, ignored)) {
    if (fs::exists(fs::path(path) / kIndexName, ignored)) {
      SMOE_TRY(out.AddShards(path));
      return out;
    }
    file_path = (fs::path(path) / kSingleName).string();
    if (!fs::exists(file_path, ignored)) return NoCheckpointIn(path);
  }
  SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(file_path));
  SMOE_TRY_ASSIGN(const uint64_t size, file.Size());
  SMOE_TRY(out.AddFile(std::move(file), 0, size));
  return out;
}

Result<TensorFiles> TensorFiles::OpenEmbedded(const std::string& path, uint64_t offset,
                                              uint64_t size) {
  SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(path));
  SMOE_TRY_ASSIGN(const uint64_t file_size, file.Size());
  if (!RangeFits(offset, size, file_size)) {
    return Corrupt("{}: safetensors image at [{}, +{}), the file has {} bytes", path, offset, size,
                   file_size);
  }
  TensorFiles out;
  SMOE_TRY(out.AddFile(std::move(file), offset, size));
  return out;
}

const TensorInfo* TensorFiles::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Status TensorFiles::Read(const TensorInfo& tensor, uint64_t offset, MutableBytes into) const {
  SMOE_CHECK(tensor.file_index < files_.size());
  SMOE_CHECK(RangeFits(offset, into.size(), tensor.size));
  return files_[tensor.file_index].ReadAt(tensor.offset + offset, into);
}

}  // namespace smoe::checkpoint
