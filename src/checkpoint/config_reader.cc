#include "checkpoint/config_reader.h"

#include <cmath>
#include <limits>
#include <utility>

namespace smoe::checkpoint {

namespace {

// As Json::Find, but finds null too.
const Json* FindMember(const Json* object, std::string_view key) {
  if (object == nullptr || !object->is_object()) return nullptr;
  for (const auto& [name, value] : *object->AsObject()) {
    if (name == key) return &value;
  }
  return nullptr;
}

}  // namespace

std::string JsonText(const Json& value) {
  if (value.is_array() || value.is_object()) return fmt::format("an {}", value.type_name());
  return value.Dump();
}

ConfigReader::ConfigReader(const Json& config, std::string path)
    : root_(config), text_(config.Find("text_config")), path_(std::move(path)) {
  if (text_ != nullptr && !text_->is_object()) {
    Refuse(Invalid("{}: text_config: {}, expected an object", path_, JsonText(*text_)));
    text_ = nullptr;
  }
}

const Json* ConfigReader::Find(std::string_view key) const {
  if (text_ != nullptr) {
    if (const Json* value = text_->Find(key)) return value;
  }
  return root_.Find(key);
}

bool ConfigReader::IsNull(std::string_view key) const {
  const Json* value = FindMember(text_, key);
  if (value == nullptr) value = FindMember(&root_, key);
  return value != nullptr && value->is_null();
}

const Json* ConfigReader::FindAlias(Keys keys, const char** name) {
  const Json* found = nullptr;
  for (const char* key : keys) {
    const Json* value = Find(key);
    if (value == nullptr) continue;
    if (found == nullptr) {
      found = value;
      *name = key;
    } else if (found->Dump() != value->Dump()) {
      Refuse(Invalid("{}: {} is {}, {} is {}: two names of one value", path_, *name,
                     JsonText(*found), key, JsonText(*value)));
    }
  }
  return found;
}

uint32_t ConfigReader::Size(Keys keys, uint32_t max, std::optional<uint32_t> fallback) {
  const char* name = *keys.begin();
  const Json* value = FindAlias(keys, &name);
  if (value == nullptr) {
    if (!fallback) Refuse(Invalid("{}: {}: missing, expected 1 to {}", path_, name, max));
    return fallback.value_or(0);
  }
  const auto number = value->AsUint();
  if (!number || *number == 0 || *number > max) {
    Refuse(Invalid("{}: {}: {}, expected 1 to {}", path_, name, JsonText(*value), max));
    return fallback.value_or(0);
  }
  return static_cast<uint32_t>(*number);
}

uint32_t ConfigReader::Count(Keys keys, uint32_t max, uint32_t fallback) {
  return static_cast<uint32_t>(LargeCount(keys, max, fallback));
}

uint64_t ConfigReader::LargeCount(Keys keys, uint64_t max, uint64_t fallback) {
  const char* name = *keys.begin();
  const Json* value = FindAlias(keys, &name);
  if (value == nullptr) return fallback;
  const auto number = value->AsUint();
  if (!number || *number > max) {
    Refuse(Invalid("{}: {}: {}, expected 0 to {}", path_, name, JsonText(*value), max));
    return fallback;
  }
  return *number;
}

double ConfigReader::Positive(std::string_view key, double fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  const auto number = value->AsDouble();
  if (!number || !std::isfinite(*number) || *number <= 0) {
    Refuse(Invalid("{}: {}: {}, expected a number above 0", path_, key, JsonText(*value)));
    return fallback;
  }
  CheckF32(key, *number);
  return *number;
}

void ConfigReader::CheckF32(std::string_view key, double number) {
  using Limits = std::numeric_limits<float>;
  if (number >= double{Limits::min()} && number <= double{Limits::max()}) return;
  Refuse(Invalid("{}: {}: {}, expected {} to {}, what 32 bits hold", path_, key, number,
                 Limits::min(), Limits::max()));
}

bool ConfigReader::Flag(std::string_view key, bool fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  const auto flag = value->AsBool();
  if (!flag) Refuse(Invalid("{}: {}: {}, expected true or false", path_, key, JsonText(*value)));
  return flag.value_or(fallback);
}

std::string ConfigReader::Text(std::string_view key, const char* fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->AsString() == nullptr) {
    Refuse(Invalid("{}: {}: {}, expected a string", path_, key, JsonText(*value)));
    return fallback;
  }
  return *value->AsString();
}

void ConfigReader::Refuse(Unexpected complaint) {
  if (!complaint_) complaint_ = std::move(complaint.value());
}

Status ConfigReader::status() const {
  if (complaint_) return Unexpected(*complaint_);
  return Ok();
}

}  // namespace smoe::checkpoint
