#include "checkpoint/safetensors_header.h"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

namespace smoe::checkpoint {

namespace {

namespace ondemand = simdjson::ondemand;
using simdjson::error_code;

constexpr std::string_view kMetadataKey = "__metadata__";

Unexpected BadJson(error_code error) {
  if (error == simdjson::MEMALLOC) {
    return Exhausted("header: no memory for its index");
  }
  return Corrupt("header: no valid JSON: {}", simdjson::error_message(error));
}

Unexpected BadField(std::string_view tensor, std::string_view field, std::string_view expected) {
  return Corrupt("tensor {}: {}: expected {}", tensor, field, expected);
}

Result<tensor::DType> ParseDType(ondemand::value value, std::string_view tensor) {
  std::string_view name;
  if (value.get_string().get(name) != simdjson::SUCCESS) {
    return BadField(tensor, "dtype", "a string");
  }
  const auto dtype = tensor::DTypeFromName(name);
  if (!dtype) return Unsupported("tensor {}: dtype {}: not one this build reads", tensor, name);
  return *dtype;
}

// Non-negative integers of 64 bits: neither -1 nor 1.0 nor "1".
Result<std::vector<uint64_t>> ParseUints(ondemand::value value, size_t count_max,
                                         std::string_view tensor, std::string_view field) {
  constexpr const char* kExpected = "an array of non-negative integers";
  ondemand::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return BadField(tensor, field, kExpected);
  std::vector<uint64_t> numbers;
  for (auto element : array) {
    uint64_t number = 0;
    if (element.get_uint64().get(number) != simdjson::SUCCESS) {
      return BadField(tensor, field, kExpected);
    }
    if (numbers.size() == count_max) {
      return Corrupt("tensor {}: {}: more than {} numbers", tensor, field, count_max);
    }
    numbers.push_back(number);
  }
  return numbers;
}

struct Fields {
  std::optional<tensor::DType> dtype;
  std::optional<tensor::Shape> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

Status ParseField(std::string_view key, ondemand::value value, std::string_view tensor,
                  Fields* fields) {
  const auto twice = [&] { return Corrupt("tensor {}: duplicate key {}", tensor, key); };
  if (key == "dtype") {
    if (fields->dtype) return twice();
    SMOE_TRY_ASSIGN(fields->dtype, ParseDType(value, tensor));
  } else if (key == "shape") {
    if (fields->shape) return twice();
    SMOE_TRY_ASSIGN(fields->shape, ParseUints(value, kTensorRankMax, tensor, key));
  } else if (key == "data_offsets") {
    if (fields->offsets) return twice();
    SMOE_TRY_ASSIGN(fields->offsets, ParseUints(value, 2, tensor, key));
    if (fields->offsets->size() != 2) return BadField(tensor, key, "two numbers");
  } else {
    return Corrupt("tensor {}: unknown key {}, expected dtype, shape and data_offsets", tensor,
                   key);
  }
  return Ok();
}

// The tensor's own rules; how it lies beside others is checked once all are known.
Status CheckEntry(const HeaderEntry& entry, uint64_t data_bytes) {
  if (entry.end < entry.begin) {
    return Corrupt("tensor {}: data_offsets [{}, {}]: reversed", entry.name, entry.begin,
                   entry.end);
  }
  if (entry.end > data_bytes) {
    return Corrupt(
        "tensor {}: data ends at byte {}, the file holds {} bytes of data: incomplete download?",
        entry.name, entry.end, data_bytes);
  }
  const auto element_count = tensor::ElementCount(entry.shape);
  const auto size =
      element_count ? CheckedMul(*element_count, tensor::DTypeBytes(entry.dtype)) : std::nullopt;
  if (!size) {
    return Corrupt("tensor {}: shape {} {}: more than 2^64 bytes", entry.name,
                   tensor::ShapeText(entry.shape), tensor::DTypeName(entry.dtype));
  }
  if (*size != entry.end - entry.begin) {
    return Corrupt("tensor {}: shape {} {} needs {} bytes, data_offsets [{}, {}] hold {}",
                   entry.name, tensor::ShapeText(entry.shape), tensor::DTypeName(entry.dtype),
                   *size, entry.begin, entry.end, entry.end - entry.begin);
  }
  return Ok();
}

Result<HeaderEntry> ParseEntry(std::string name, ondemand::value value, uint64_t data_bytes) {
  HeaderEntry entry;
  entry.name = std::move(name);
  ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) {
    return Corrupt("tensor {}: expected an object with dtype, shape and data_offsets", entry.name);
  }
  Fields fields;
  for (auto field : object) {
    std::string_view key;
    if (const error_code error = field.unescaped_key().get(key)) return BadJson(error);
    ondemand::value field_value;
    if (const error_code error = field.value().get(field_value)) return BadJson(error);
    SMOE_TRY(ParseField(key, field_value, entry.name, &fields));
  }
  if (!fields.dtype) return Corrupt("tensor {}: dtype is missing", entry.name);
  if (!fields.shape) return Corrupt("tensor {}: shape is missing", entry.name);
  if (!fields.offsets) return Corrupt("tensor {}: data_offsets is missing", entry.name);
  entry.dtype = *fields.dtype;
  entry.shape = std::move(*fields.shape);
  entry.begin = (*fields.offsets)[0];
  entry.end = (*fields.offsets)[1];
  SMOE_TRY(CheckEntry(entry, data_bytes));
  return entry;
}

// Null or an object of strings; the pairs themselves mean nothing to us.
Status CheckMetadata(ondemand::value value) {
  bool is_null = false;
  if (value.is_null().get(is_null) == simdjson::SUCCESS && is_null) return Ok();
  ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) {
    return Corrupt("{}: expected an object of strings", kMetadataKey);
  }
  for (auto field : object) {
    std::string_view key;
    if (const error_code error = field.unescaped_key().get(key)) return BadJson(error);
    std::string_view text;
    if (field.value().get_string().get(text) != simdjson::SUCCESS) {
      return Corrupt("{}: {}: expected a string", kMetadataKey, key);
    }
  }
  return Ok();
}

// Sorts by place and checks that the ranges cover [0, data_bytes) without overlap or gap.
Status CheckCover(std::vector<HeaderEntry>* entries, uint64_t data_bytes) {
  std::sort(entries->begin(), entries->end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t cursor = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry& entry : *entries) {
    if (entry.begin < cursor) {
      return Corrupt("tensor {}: data [{}, {}) overlaps that of {}, which ends at {}", entry.name,
                     entry.begin, entry.end, previous->name, cursor);
    }
    if (entry.begin > cursor) {
      return Corrupt("tensor {}: data begins at {}, the tensor before ends at {}: a gap",
                     entry.name, entry.begin, cursor);
    }
    cursor = entry.end;
    previous = &entry;
  }
  if (cursor != data_bytes) {
    return Corrupt("data: the tensors end at byte {}, the file holds {}: bytes left over", cursor,
                   data_bytes);
  }
  return Ok();
}

Result<std::vector<HeaderEntry>> ParseEntries(ondemand::object object, uint64_t data_bytes) {
  std::vector<HeaderEntry> entries;
  std::unordered_set<std::string> names;
  for (auto field : object) {
    std::string_view key;
    if (const error_code error = field.unescaped_key().get(key)) return BadJson(error);
    std::string name(key);
    if (!names.insert(name).second) return Corrupt("header: duplicate tensor name {}", name);
    ondemand::value value;
    if (const error_code error = field.value().get(value)) return BadJson(error);
    if (name == kMetadataKey) {
      SMOE_TRY(CheckMetadata(value));
    } else {
      SMOE_TRY_ASSIGN(HeaderEntry entry, ParseEntry(std::move(name), value, data_bytes));
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

struct Signature {
  std::string_view first_bytes;
  std::string_view kind;
};

constexpr Signature kSignatures[] = {
    {"version https://git-lfs", "a Git LFS pointer: the real weights were not downloaded"},
    {"version ", "a Git LFS pointer: the real weights were not downloaded"},
    {"PK", "a zip archive: a PyTorch checkpoint (pickle), convert it to safetensors first"},
    {"\x80\x02", "a pickle: a PyTorch checkpoint, convert it to safetensors first"},
    {"\x80\x03", "a pickle: a PyTorch checkpoint, convert it to safetensors first"},
    {"\x80\x04", "a pickle: a PyTorch checkpoint, convert it to safetensors first"},
    {"\x80\x05", "a pickle: a PyTorch checkpoint, convert it to safetensors first"},
    {"GGUF", "a GGUF file"},
    {"SMOE", "a .smoe vault"},
    {"\x89HDF", "an HDF5 file"},
    {"\x93NUMPY", "a NumPy array"},
    {"\x1f\x8b", "a gzip archive: unpack it first"},
    {"<!DOCTYPE", "an HTML page: the download got an error page instead of the file"},
    {"<!doctype", "an HTML page: the download got an error page instead of the file"},
    {"<html", "an HTML page: the download got an error page instead of the file"},
    {"<?xml", "an XML document: the download got an error page instead of the file"},
    {"{", "a JSON text: the safetensors length field in front of it is missing"},
};

}  // namespace

Result<std::vector<HeaderEntry>> ParseSafetensorsHeader(std::string& header, uint64_t data_bytes) {
  header.reserve(header.size() + simdjson::SIMDJSON_PADDING);
  ondemand::parser parser;
  ondemand::document document;
  const simdjson::padded_string_view text(header.data(), header.size(), header.capacity());
  if (const error_code error = parser.iterate(text).get(document)) return BadJson(error);
  ondemand::object object;
  if (document.get_object().get(object) != simdjson::SUCCESS) {
    return Corrupt("header: expected a JSON object");
  }
  SMOE_TRY_ASSIGN(std::vector<HeaderEntry> entries, ParseEntries(object, data_bytes));
  const char* rest = nullptr;
  if (document.current_location().get(rest) != simdjson::OUT_OF_BOUNDS) {
    return Corrupt("header: text after the JSON object");
  }
  SMOE_TRY(CheckCover(&entries, data_bytes));
  return entries;
}

std::string_view GuessFileKind(Bytes first_bytes) {
  if (first_bytes.empty()) return "empty: an interrupted download?";
  if (AllZero(first_bytes)) return "all zeros: an interrupted download?";
  for (const Signature& signature : kSignatures) {
    const Bytes wanted = AsBytes(signature.first_bytes);
    if (first_bytes.size() >= wanted.size() &&
        std::equal(wanted.begin(), wanted.end(), first_bytes.begin())) {
      return signature.kind;
    }
  }
  return {};
}

}  // namespace smoe::checkpoint
