#include "engine/hot_set.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/json.h"
#include "io/file.h"
#include "io/user_cache.h"
#include "store/model_fingerprint.h"

namespace smoe::engine {

namespace {

constexpr double kUnits = 1e6;  // of a worth of 1

std::string Found(const Json* member) { return member == nullptr ? "nothing" : member->Dump(); }

// Another process may remove the same ones: then they are gone.
void RemoveOldest(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> sets;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("hot-") || !name.ends_with(".json")) continue;
    sets.emplace_back(entry.last_write_time(ignored), entry.path());
  }
  if (sets.size() <= kHotSetsMax) return;
  std::sort(sets.begin(), sets.end());
  for (size_t i = 0; i < sets.size() - kHotSetsMax; ++i) {
    std::filesystem::remove(sets[i].second, ignored);
  }
}

}  // namespace

Result<std::string> HotSetPath(const store::ModelFiles& files) {
  SMOE_TRY_ASSIGN(const uint64_t fingerprint, store::ModelFingerprint(files));
  std::string path = io::UserCachePath(fmt::format("hot-{:016x}.json", fingerprint));
  if (path.empty()) {
    return Invalid(
        "--warm-start: no folder to keep the hot set in; set XDG_CACHE_HOME or HOME to a full "
        "path");
  }
  return path;
}

Result<std::vector<double>> ReadHotSet(const std::string& path, uint32_t expert_count) {
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(path, kHotSetBytesMax));
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(text, path));
  const Json* const version = json.Find("version");
  if (version == nullptr || version->AsUint() != uint64_t{kHotSetVersion}) {
    return Corrupt("{}: version: {} expected, {} found", path, kHotSetVersion, Found(version));
  }
  const Json* const list = json.Find("worths");
  if (list == nullptr || list->AsArray() == nullptr || list->AsArray()->size() != expert_count) {
    return Corrupt("{}: worths: a list of {} expected, {} found", path, expert_count,
                   list == nullptr || list->AsArray() == nullptr
                       ? "none"
                       : fmt::format("one of {}", list->AsArray()->size()));
  }
  std::vector<double> worths;
  for (const Json& one : *list->AsArray()) {
    const std::optional<uint64_t> units = one.AsUint();
    if (!units || static_cast<double>(*units) > kUnits) {
      return Corrupt("{}: worths: a number of 0 to {} expected at index {}, {} found", path, kUnits,
                     worths.size(), one.Dump());
    }
    worths.push_back(static_cast<double>(*units) / kUnits);
  }
  return worths;
}

Status WriteHotSet(const std::string& path, const std::vector<double>& worths) {
  Json::Array units;
  for (const double worth : worths) {
    units.emplace_back(static_cast<uint64_t>(std::lround(std::clamp(worth, 0.0, 1.0) * kUnits)));
  }
  Json json;
  json.Set("version", kHotSetVersion).Set("worths", std::move(units));
  SMOE_TRY(io::WriteUserCacheFile(path, json.Dump() + "\n"));
  RemoveOldest(std::filesystem::path(path).parent_path());
  return Ok();
}

}  // namespace smoe::engine
