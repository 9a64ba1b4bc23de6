#include "checkpoint/safetensors_writer.h"

#include <unordered_set>

#include "base/bytes.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace smoe::checkpoint {

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kDataAlignment = 8;

std::string Quoted(std::string_view text) { return Json(text).Dump(); }

std::string MetadataText(const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::string text = "\"__metadata__\":{";
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (i != 0) text += ',';
    text += Quoted(metadata[i].first) + ':' + Quoted(metadata[i].second);
  }
  return text + '}';
}

std::string EntryText(const TensorSpec& spec, uint64_t begin, uint64_t end) {
  std::string shape;
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    shape += fmt::format("{}{}", i == 0 ? "" : ",", spec.shape[i]);
  }
  return fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                     Quoted(spec.name), tensor::DTypeName(spec.dtype), shape, begin, end);
}

}  // namespace

Result<SafetensorsLayout> LayOutSafetensors(
    const std::vector<TensorSpec>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  SafetensorsLayout layout;
  std::string json = "{";
  if (!metadata.empty()) json += MetadataText(metadata);
  std::unordered_set<std::string> names;
  uint64_t cursor = 0;
  for (const TensorSpec& spec : tensors) {
    if (spec.name == "__metadata__" || !names.insert(spec.name).second) {
      return Invalid("safetensors: tensor name {}: used twice or reserved", spec.name);
    }
    const auto count = tensor::ElementCount(spec.shape);
    const auto size = count ? CheckedMul(*count, tensor::DTypeBytes(spec.dtype)) : std::nullopt;
    const auto end = size ? CheckedAdd(cursor, *size) : std::nullopt;
    if (!end) {
      return Invalid("safetensors: tensor {}: shape {}: the file would exceed 2^64 bytes",
                     spec.name, tensor::ShapeText(spec.shape));
    }
    if (json.size() > 1) json += ',';
    json += EntryText(spec, cursor, *end);
    layout.offsets.push_back(cursor);
    cursor = *end;
  }
  json += '}';
  json.resize(RoundUp(json.size(), kDataAlignment), ' ');
  if (json.size() > kSafetensorsHeaderBytesMax) {
    return Invalid("safetensors: header of {} bytes, readers take at most {}", json.size(),
                   kSafetensorsHeaderBytesMax);
  }
  layout.header.resize(kLengthBytes);
  StoreStruct(std::as_writable_bytes(std::span(layout.header)), 0, uint64_t{json.size()});
  layout.header += json;
  for (uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.total_bytes = layout.header.size() + cursor;
  return layout;
}

}  // namespace smoe::checkpoint
