#include "store/records/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

namespace smoe::store::records {

namespace {

constexpr size_t kShownBytesMax = 60;

std::string Found(const Json* value) {
  if (value == nullptr) return "missing";
  std::string text = value->Dump();
  if (text.size() > kShownBytesMax) text = text.substr(0, kShownBytesMax) + "...";
  return "is " + text;
}

// The manifest being read, and its name for messages.
class Reader {
 public:
  Reader(const Json& json, std::string_view what) : json_(json), what_(what) {}

  Result<uint64_t> Uint(const char* key, uint64_t min, uint64_t max) const {
    const Json* value = json_.Find(key);
    const auto number = value == nullptr ? std::nullopt : value->AsUint();
    if (number && *number >= min && *number <= max) return *number;
    return Corrupt("{}: {} {}, expected a whole number from {} to {}", what_, key, Found(value),
                   min, max);
  }
  Status Uint32(const char* key, uint64_t min, uint64_t max, uint32_t* to) const {
    SMOE_TRY_ASSIGN(const uint64_t value, Uint(key, min, max));
    *to = static_cast<uint32_t>(value);
    return Ok();
  }
  // A number that can only be this one, and why.
  Status Fixed(const char* key, uint64_t expected, const char* reason) const {
    const Json* value = json_.Find(key);
    const auto number = value == nullptr ? std::nullopt : value->AsUint();
    if (number && *number == expected) return Ok();
    return Corrupt("{}: {} {}, expected {}, {}", what_, key, Found(value), expected, reason);
  }
  Status Text(const char* key, std::string_view expected) const {
    const Json* value = json_.Find(key);
    const std::string* text = value == nullptr ? nullptr : value->AsString();
    if (text != nullptr && *text == expected) return Ok();
    return Corrupt("{}: {} {}, expected \"{}\"", what_, key, Found(value), expected);
  }
  // One of our keys with the only value we can read; absent is fine.
  Result<bool> Choice(const char* key, std::string_view expected) const {
    const Json* value = json_.Find(key);
    if (value == nullptr) return false;
    const std::string* text = value->AsString();
    if (text != nullptr && *text == expected) return true;
    return Unsupported("{}: {} {}, this build reads \"{}\"", what_, key, Found(value), expected);
  }
  const Json* Find(std::string_view key) const { return json_.Find(key); }
  std::string_view what() const { return what_; }

 private:
  const Json& json_;
  const std::string_view what_;
};

Status ReadDims(const Reader& reader, ExpertIndex* index) {
  SMOE_TRY(reader.Fixed("version", ExpertIndex::kVersion, "the version this build reads"));
  SMOE_TRY(reader.Uint32("num_moe_layers", 1, kMoeLayersMax, &index->num_moe_layers));
  SMOE_TRY(reader.Uint32("num_experts", 1, kExpertsPerLayerMax, &index->num_experts));
  if (uint64_t{index->num_moe_layers} * index->num_experts > kRecordsMax) {
    return Corrupt("{}: num_moe_layers {} by num_experts {}: more than {} records", reader.what(),
                   index->num_moe_layers, index->num_experts, kRecordsMax);
  }
  SMOE_TRY(reader.Uint32("inter", 1, UINT32_MAX, &index->inter));
  SMOE_TRY(reader.Uint32("hidden", 1, UINT32_MAX, &index->hidden));
  SMOE_TRY(reader.Uint32("group_size", 2, kGroupSizeMax, &index->group_size));
  SMOE_TRY(reader.Uint32("sub_align", 1, kSubAlignMax, &index->sub_align));
  return reader.Uint32("fs_block_size", 1, kFsBlockSizeMax, &index->fs_block_size);
}

Status ReadSizes(const Reader& reader, ExpertIndex* index) {
  constexpr char kByDims[] = "by the manifest's own dims";
  if (const auto spec = DeriveSizes(index); !spec) {
    return Corrupt("{}: {}", reader.what(), spec.error().message());
  }
  SMOE_TRY(reader.Fixed("record_stride", index->record_stride, kByDims));
  return reader.Fixed("record_raw_bytes", index->record_raw_bytes, kByDims);
}

Status ReadLayerMap(const Reader& reader, ExpertIndex* index) {
  constexpr char kKey[] = "moe_layer_to_model_layer";
  const Json* value = reader.Find(kKey);
  const Json::Array* map = value == nullptr ? nullptr : value->AsArray();
  if (map == nullptr) {
    return Corrupt("{}: {} {}, expected an array of {} model layers", reader.what(), kKey,
                   Found(value), index->num_moe_layers);
  }
  if (map->size() != index->num_moe_layers) {
    return Corrupt("{}: {} has {} entries, expected {}, num_moe_layers", reader.what(), kKey,
                   map->size(), index->num_moe_layers);
  }
  std::set<uint64_t> seen;
  for (size_t i = 0; i < map->size(); ++i) {
    const auto layer = (*map)[i].AsUint();
    if (!layer || *layer > kModelLayerMax) {
      return Corrupt("{}: {}[{}] {}, expected a model layer from 0 to {}", reader.what(), kKey, i,
                     Found(&(*map)[i]), kModelLayerMax);
    }
    if (!seen.insert(*layer).second) {
      return Corrupt("{}: {}[{}] is {}, a layer that an earlier entry names too", reader.what(),
                     kKey, i, *layer);
    }
    index->moe_layer_to_model_layer.push_back(static_cast<uint32_t>(*layer));
  }
  return Ok();
}

std::optional<uint64_t> ParseHex(const Json& value) {
  const std::string* text = value.AsString();
  if (text == nullptr || text->size() != 16) return std::nullopt;
  uint64_t number = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, number, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

std::string HexText(uint64_t value) { return fmt::format("{:016x}", value); }

Status ReadChecksums(const Reader& reader, ExpertIndex* index) {
  constexpr char kKey[] = "record_checksums";
  const Json* value = reader.Find(kKey);
  if (value == nullptr) return Ok();
  SMOE_TRY_ASSIGN(const bool has_kind, reader.Choice("checksum", kChecksumKind));
  if (!has_kind) {
    return Corrupt("{}: checksum missing, expected \"{}\" beside {}", reader.what(), kChecksumKind,
                   kKey);
  }
  const Json::Array* layers = value->AsArray();
  if (layers == nullptr || layers->size() != index->num_moe_layers) {
    return Corrupt("{}: {} has {} entries, expected {}, num_moe_layers", reader.what(), kKey,
                   layers == nullptr ? 0 : layers->size(), index->num_moe_layers);
  }
  for (size_t layer = 0; layer < layers->size(); ++layer) {
    const Json::Array* sums = (*layers)[layer].AsArray();
    if (sums == nullptr || sums->size() != index->num_experts) {
      return Corrupt("{}: {}[{}] has {} entries, expected {}, num_experts", reader.what(), kKey,
                     layer, sums == nullptr ? 0 : sums->size(), index->num_experts);
    }
    for (size_t expert = 0; expert < sums->size(); ++expert) {
      const auto sum = ParseHex((*sums)[expert]);
      if (!sum) {
        return Corrupt("{}: {}[{}][{}] {}, expected 16 hexadecimal digits", reader.what(), kKey,
                       layer, expert, Found(&(*sums)[expert]));
      }
      index->record_checksums.push_back(*sum);
    }
  }
  return Ok();
}

// A name that stays in the folder.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

Status ReadFiles(const Reader& reader, ExpertIndex* index) {
  const Json* value = reader.Find("files");
  if (value == nullptr) return Ok();
  const Json::Object* files = value->AsObject();
  if (files == nullptr) {
    return Corrupt("{}: files {}, expected an object", reader.what(), Found(value));
  }
  for (const auto& [part, entry] : *files) {
    const Json* name = entry.Find("name");
    const Json* bytes = entry.Find("bytes");
    const Json* checksum = entry.Find("checksum");
    const std::string* text = name == nullptr ? nullptr : name->AsString();
    const auto size = bytes == nullptr ? std::nullopt : bytes->AsUint();
    const auto sum = checksum == nullptr ? std::nullopt : ParseHex(*checksum);
    if (text == nullptr || !IsPlainName(*text) || !size || !sum) {
      return Corrupt(
          "{}: files.{} {}, expected name (in this folder), bytes and checksum (16 hexadecimal "
          "digits)",
          reader.what(), part, Found(&entry));
    }
    index->files.push_back({part, *text, *size, *sum});
  }
  return Ok();
}

Status ReadOurs(const Reader& reader, ExpertIndex* index) {
  SMOE_TRY_ASSIGN(index->says_orientation, reader.Choice("orientation", kOrientationTransposed));
  SMOE_TRY(reader.Choice("nibble_order", kNibbleOrderLowFirst));
  SMOE_TRY(ReadChecksums(reader, index));
  if (const Json* source = reader.Find("source")) index->source = *source;
  return ReadFiles(reader, index);
}

void WriteOurs(const ExpertIndex& index, Json* json) {
  if (index.says_orientation) {
    json->Set("orientation", kOrientationTransposed).Set("nibble_order", kNibbleOrderLowFirst);
  }
  if (!index.source.is_null()) json->Set("source", index.source);
  if (!index.files.empty()) {
    Json files{Json::Object()};
    for (const StoreFile& file : index.files) {
      Json entry;
      entry.Set("name", file.name).Set("bytes", file.bytes).Set("checksum", HexText(file.checksum));
      files.Set(file.part, std::move(entry));
    }
    json->Set("files", std::move(files));
  }
  if (index.record_checksums.empty()) return;
  Json layers{Json::Array()};
  for (size_t layer = 0; layer < index.num_moe_layers; ++layer) {
    Json sums{Json::Array()};
    for (size_t expert = 0; expert < index.num_experts; ++expert) {
      sums.Append(HexText(index.record_checksums[layer * index.num_experts + expert]));
    }
    layers.Append(std::move(sums));
  }
  json->Set("checksum", kChecksumKind).Set("record_checksums", std::move(layers));
}

}  // namespace

std::string ExpertIndex::FileName(uint32_t layer) {
  return fmt::format("experts_{:05}.xpr", layer);
}

const StoreFile* ExpertIndex::FindFile(std::string_view part) const {
  const auto at = std::find_if(files.begin(), files.end(),
                               [&](const StoreFile& file) { return file.part == part; });
  return at == files.end() ? nullptr : &*at;
}

Result<ExpertRecordSpec> DeriveSizes(ExpertIndex* index) {
  if (!IsPowerOfTwo(index->fs_block_size) || index->fs_block_size > kFsBlockSizeMax) {
    return Invalid("fs_block_size is {}, expected a power of two up to {}", index->fs_block_size,
                   kFsBlockSizeMax);
  }
  SMOE_TRY_ASSIGN(
      const ExpertRecordSpec spec,
      ExpertRecordSpec::Create(index->inter, index->hidden, index->group_size, index->sub_align));
  index->record_raw_bytes = spec.raw_bytes;
  index->record_stride = RoundUp(spec.raw_bytes, index->fs_block_size);
  return spec;
}

Result<ExpertIndex> ParseManifest(std::string_view text, std::string_view what) {
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(text, what));
  if (!json.is_object()) {
    return Corrupt("{}: the manifest is of type {}, expected an object", what, json.type_name());
  }
  const Reader reader(json, what);
  ExpertIndex index;
  SMOE_TRY(ReadDims(reader, &index));
  SMOE_TRY(ReadSizes(reader, &index));
  SMOE_TRY(reader.Text("file_template", kFileTemplate));
  SMOE_TRY(ReadLayerMap(reader, &index));
  SMOE_TRY(ReadOurs(reader, &index));
  return index;
}

Json FormatKeys(const ExpertIndex& index) {
  const std::vector<uint32_t>& layers = index.moe_layer_to_model_layer;
  Json json;
  json.Set("version", ExpertIndex::kVersion)
      .Set("num_moe_layers", index.num_moe_layers)
      .Set("num_experts", index.num_experts)
      .Set("inter", index.inter)
      .Set("hidden", index.hidden)
      .Set("group_size", index.group_size)
      .Set("sub_align", index.sub_align)
      .Set("fs_block_size", index.fs_block_size)
      .Set("record_stride", index.record_stride)
      .Set("record_raw_bytes", index.record_raw_bytes)
      .Set("file_template", kFileTemplate)
      .Set("moe_layer_to_model_layer", Json::ListOf(layers));
  return json;
}

std::string ManifestText(const ExpertIndex& index) {
  Json json = FormatKeys(index);
  WriteOurs(index, &json);
  return json.Dump(2);
}

}  // namespace smoe::store::records
