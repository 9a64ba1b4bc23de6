// checkpoint/config_reader.h: typed access to config.json that keeps the first complaint.
//
// Every getter answers at once; one that cannot gives its fallback (or 0) and remembers why, so
// that a family's parser is a list of keys and not of checks. status() must be asked before the
// values are used.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace smoe::checkpoint {

class ConfigReader {
 public:
  // Names by which one value goes; two that differ are refused.
  using Keys = std::initializer_list<const char*>;

  // Borrows `config`, which must outlive this.
  ConfigReader(const Json& config, std::string path);

  // In text_config first, where there is one; null counts as absent.
  const Json* Find(std::string_view key) const;
  // True if the key is there and its value is null.
  bool IsNull(std::string_view key) const;
  const Json& root() const { return root_; }
  const std::string& path() const { return path_; }

  // An integer in [1, max]; without a fallback it must be there.
  uint32_t Size(Keys keys, uint32_t max, std::optional<uint32_t> fallback = std::nullopt);
  // An integer in [0, max].
  uint32_t Count(Keys keys, uint32_t max, uint32_t fallback);
  uint64_t LargeCount(Keys keys, uint64_t max, uint64_t fallback);
  // A finite number, > 0.
  double Positive(std::string_view key, double fallback);
  // Refuses a number above 0 that would be 0 or infinite in f32: vaults keep it so, kernels too.
  void CheckF32(std::string_view key, double number);
  bool Flag(std::string_view key, bool fallback);
  std::string Text(std::string_view key, const char* fallback);

  // Keeps the first complaint.
  void Refuse(Unexpected complaint);
  bool ok() const { return !complaint_; }
  Status status() const;

 private:
  const Json* FindAlias(Keys keys, const char** name);

  const Json& root_;
  const Json* text_;  // nullptr: the config is not nested
  std::string path_;
  std::optional<Error> complaint_;
};

// "7", "\"silu\"", "an array": for messages.
std::string JsonText(const Json& value);

}  // namespace smoe::checkpoint
