// base/json.h: small JSON documents as a tree that keeps the order of keys.
//
// The one door to the JSON library. For files up to a few megabytes: configs, manifests, reports.
// (safetensors headers can be large and have their own streaming reader; tokenizer.json is read by
// the text crate.) Parsing refuses duplicate keys and depth beyond kJsonDepthMax, with the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace smoe {

inline constexpr size_t kJsonDepthMax = 128;

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  // Implicit, so that a tree is written as it reads. NOLINTBEGIN(google-explicit-constructor)
  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(int value) : value_(int64_t{value}) {}
  Json(int64_t value) : value_(value) {}
  Json(uint32_t value) : value_(int64_t{value}) {}
  Json(uint64_t value);  // above 2^63 - 1 a double, as JSON readers take it
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)

  // An array of what a range holds.
  static Json ListOf(const auto& values) { return Array(values.begin(), values.end()); }

  // `what` names the text in messages, usually the file's path.
  // Errors: kCorrupt with the byte offset and what was expected there.
  static Result<Json> Parse(std::string_view text, std::string_view what);

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_number() const;
  bool is_double() const { return std::holds_alternative<double>(value_); }
  const char* type_name() const;  // "null", "object", "array", "string", "boolean", "number"

  // The value, or nullopt if it is of another type. An integral double such as 2.0 is an integer.
  std::optional<bool> AsBool() const;
  std::optional<int64_t> AsInt() const;
  std::optional<uint64_t> AsUint() const;
  std::optional<double> AsDouble() const;
  const std::string* AsString() const { return std::get_if<std::string>(&value_); }
  const Array* AsArray() const { return std::get_if<Array>(&value_); }
  const Object* AsObject() const { return std::get_if<Object>(&value_); }

  // Member of an object; nullptr if absent, if it is null, or if this is no object.
  const Json* Find(std::string_view key) const;

  // Adds or replaces a member. Requires null or an object; null becomes an object.
  Json& Set(std::string_view key, Json value);
  // Appends a member whose key is known to be new; Set looks for the old one first. Requires an
  // object.
  void AppendMember(std::string key, Json value);
  // Appends to an array. Requires null or an array; null becomes an array.
  Json& Append(Json value);

  // indent 0: one line, ", " and ": " as Python's json.dumps. Otherwise that many spaces.
  std::string Dump(size_t indent = 0) const;

 private:
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_ = nullptr;
};

}  // namespace smoe
