#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "base/check.h"

namespace smoe {

namespace {

using Library = nlohmann::json;

// Builds the tree from the parser's events; the parser itself never recurses.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::string_view what) : what_(what) {}

  bool null() { return Add(Json()); }
  bool boolean(bool value) { return Add(Json(value)); }
  bool number_integer(Library::number_integer_t value) { return Add(Json(int64_t{value})); }
  bool number_unsigned(Library::number_unsigned_t value) { return Add(Json(uint64_t{value})); }
  bool number_float(Library::number_float_t value, const std::string&) { return Add(Json(value)); }
  bool string(std::string& value) { return Add(Json(std::move(value))); }
  bool binary(Library::binary_t&) { return Fail("binary value, JSON has none"); }
  bool start_object(size_t) { return Open(Json(Json::Object())); }
  bool start_array(size_t) { return Open(Json(Json::Array())); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) return Fail("duplicate key \"" + name + "\"");
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t offset, const std::string&, const Library::exception& problem) {
    // Without the library's own "[json.exception.parse_error.101] ".
    std::string_view what = problem.what();
    if (what.starts_with('[')) what.remove_prefix(std::min(what.size(), what.find(' ') + 1));
    return Fail(fmt::format("byte {}: {}", offset, what));
  }

  Json TakeRoot() { return std::move(root_); }
  Error TakeError() { return Error(ErrorCode::kCorrupt, what_ + ": no valid JSON: " + message_); }

 private:
  struct Container {
    Json value;
    std::string key;  // of the member that comes next
    std::unordered_set<std::string> keys;
  };

  bool Fail(std::string message) {
    if (message_.empty()) message_ = std::move(message);
    return false;
  }
  bool Open(Json container) {
    if (open_.size() == kJsonDepthMax) {
      return Fail(fmt::format("nested deeper than {} levels", kJsonDepthMax));
    }
    open_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool Close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return Add(std::move(value));
  }
  bool Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.Append(std::move(value));
    } else {
      open_.back().value.AppendMember(std::move(open_.back().key), std::move(value));
    }
    return true;
  }

  std::string what_;
  std::string message_;
  std::vector<Container> open_;
  Json root_;
};

std::string Quoted(std::string_view text) {
  // Bytes that are not UTF-8 become U+FFFD: a report must not be unreadable for one bad name.
  const std::string quoted =
      Library(std::string(text)).dump(-1, ' ', false, Library::error_handler_t::replace);
  // JSON allows U+007F to U+009F as they are, which a terminal obeys.
  std::string out;
  for (size_t i = 0; i < quoted.size(); ++i) {
    const auto byte = static_cast<unsigned char>(quoted[i]);
    const auto next = static_cast<unsigned char>(i + 1 < quoted.size() ? quoted[i + 1] : 0);
    if (byte == 0x7f) {
      out += "\\u007f";
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      out += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      out += quoted[i];
    }
  }
  return out;
}

void Newline(size_t indent, size_t depth, std::string* out) {
  if (indent == 0) return;
  out->push_back('\n');
  out->append(indent * depth, ' ');
}

void DumpTo(const Json& value, size_t indent, size_t depth, std::string* out) {
  const char* separator = indent == 0 ? ", " : ",";
  if (const auto* object = value.AsObject()) {
    out->push_back('{');
    for (size_t i = 0; i < object->size(); ++i) {
      if (i != 0) out->append(separator);
      Newline(indent, depth + 1, out);
      out->append(Quoted((*object)[i].first)).append(": ");
      DumpTo((*object)[i].second, indent, depth + 1, out);
    }
    if (!object->empty()) Newline(indent, depth, out);
    out->push_back('}');
  } else if (const auto* array = value.AsArray()) {
    out->push_back('[');
    for (size_t i = 0; i < array->size(); ++i) {
      if (i != 0) out->append(separator);
      Newline(indent, depth + 1, out);
      DumpTo((*array)[i], indent, depth + 1, out);
    }
    if (!array->empty()) Newline(indent, depth, out);
    out->push_back(']');
  } else if (const auto* text = value.AsString()) {
    out->append(Quoted(*text));
  } else if (const auto flag = value.AsBool()) {
    out->append(*flag ? "true" : "false");
  } else if (const auto integer = value.AsInt(); integer && !value.is_double()) {
    out->append(std::to_string(*integer));
  } else if (const auto number = value.AsDouble()) {
    out->append(Library(*number).dump());
  } else {
    out->append("null");
  }
}

}  // namespace

Json::Json(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    value_ = static_cast<int64_t>(value);
  } else {
    value_ = static_cast<double>(value);
  }
}

Result<Json> Json::Parse(std::string_view text, std::string_view what) {
  TreeBuilder builder(what);
  if (!Library::sax_parse(text, &builder)) return Unexpected(builder.TakeError());
  return builder.TakeRoot();
}

bool Json::is_number() const {
  return std::holds_alternative<int64_t>(value_) || std::holds_alternative<double>(value_);
}

const char* Json::type_name() const {
  if (is_object()) return "object";
  if (is_array()) return "array";
  if (is_string()) return "string";
  if (is_bool()) return "boolean";
  return is_number() ? "number" : "null";
}

std::optional<bool> Json::AsBool() const {
  if (const auto* value = std::get_if<bool>(&value_)) return *value;
  return std::nullopt;
}

std::optional<int64_t> Json::AsInt() const {
  if (const auto* value = std::get_if<int64_t>(&value_)) return *value;
  const auto* number = std::get_if<double>(&value_);
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  if (number == nullptr || std::trunc(*number) != *number || std::fabs(*number) > kExactMax) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

std::optional<uint64_t> Json::AsUint() const {
  const auto value = AsInt();
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

std::optional<double> Json::AsDouble() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  return std::nullopt;
}

const Json* Json::Find(std::string_view key) const {
  const Object* object = AsObject();
  if (object == nullptr) return nullptr;
  for (const auto& [name, value] : *object) {
    if (name == key) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

Json& Json::Set(std::string_view key, Json value) {
  if (is_null()) value_ = Object();
  auto* object = std::get_if<Object>(&value_);
  SMOE_CHECK(object != nullptr);
  for (auto& [name, old] : *object) {
    if (name == key) {
      old = std::move(value);
      return *this;
    }
  }
  object->emplace_back(std::string(key), std::move(value));
  return *this;
}

void Json::AppendMember(std::string key, Json value) {
  auto* object = std::get_if<Object>(&value_);
  SMOE_CHECK(object != nullptr);
  object->emplace_back(std::move(key), std::move(value));
}

Json& Json::Append(Json value) {
  if (is_null()) value_ = Array();
  auto* array = std::get_if<Array>(&value_);
  SMOE_CHECK(array != nullptr);
  array->push_back(std::move(value));
  return *this;
}

std::string Json::Dump(size_t indent) const {
  std::string out;
  DumpTo(*this, indent, 0, &out);
  return out;
}

}  // namespace smoe
