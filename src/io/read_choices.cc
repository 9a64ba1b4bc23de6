#include "io/read_choices.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <cerrno>
#include <cstring>

#include "base/json.h"
#include "io/file.h"
#include "io/user_cache.h"

namespace smoe::io {

namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 20;

Json ToJson(const std::string& key, const ReadSample& sample) {
  Json json;
  json.Set("for", key)
      .Set("backend", ReadBackendName(sample.setting.backend))
      .Set("depth", sample.setting.depth)
      .Set("threads", sample.setting.thread_count)
      .Set("piece_bytes", sample.setting.piece_bytes)
      .Set("direct", sample.setting.direct)
      .Set("bytes", sample.rate.bytes)
      .Set("seconds", sample.rate.seconds)
      .Set("cpu_seconds", sample.rate.cpu_seconds);
  return json;
}

template <class T>
bool Take(const std::optional<T>& value, T* into) {
  if (value) *into = *value;
  return value.has_value();
}

std::optional<uint64_t> Unsigned(const Json& json, const char* key) {
  const Json* const member = json.Find(key);
  return member == nullptr ? std::nullopt : member->AsUint();
}

std::optional<double> Real(const Json& json, const char* key) {
  const Json* const member = json.Find(key);
  return member == nullptr ? std::nullopt : member->AsDouble();
}

// nullopt if anything is missing, of another kind or outside the limits of a queue.
std::optional<ReadSample> FromJson(const Json& json) {
  ReadSample sample;
  const Json* const backend = json.Find("backend");
  const Json* const direct = json.Find("direct");
  if (backend == nullptr || backend->AsString() == nullptr || direct == nullptr) return {};
  const std::string& name = *backend->AsString();
  if (name != "uring" && name != "threads") return {};
  sample.setting.backend = name == "uring" ? ReadBackend::kUring : ReadBackend::kThreads;
  uint64_t depth = 0;
  uint64_t threads = 0;
  const bool is_whole = Take(direct->AsBool(), &sample.setting.direct) &&
                        Take(Unsigned(json, "depth"), &depth) &&
                        Take(Unsigned(json, "threads"), &threads) &&
                        Take(Unsigned(json, "piece_bytes"), &sample.setting.piece_bytes) &&
                        Take(Unsigned(json, "bytes"), &sample.rate.bytes) &&
                        Take(Real(json, "seconds"), &sample.rate.seconds) &&
                        Take(Real(json, "cpu_seconds"), &sample.rate.cpu_seconds);
  if (!is_whole || depth > kReadDepthMax || threads > kReadThreadsMax) return {};
  sample.setting.depth = static_cast<uint32_t>(depth);
  sample.setting.thread_count = static_cast<uint32_t>(threads);
  if (!CheckReadOptions(sample.setting.options())) return {};
  return sample;
}

// The list of choices in the file, empty if it is absent or no good.
Json::Array ReadAll(const std::string& path) {
  const Result<std::string> text = ReadWholeFile(path, kFileBytesMax);
  if (!text) return {};
  const Result<Json> json = Json::Parse(*text, path);
  if (!json || Unsigned(*json, "version") != uint64_t{kReadChoicesVersion}) return {};
  const Json* const choices = json->Find("choices");
  return choices == nullptr || choices->AsArray() == nullptr ? Json::Array() : *choices->AsArray();
}

bool IsFor(const Json& json, const std::string& key) {
  const Json* const one = json.Find("for");
  return one != nullptr && one->AsString() != nullptr && *one->AsString() == key;
}

}  // namespace

std::string ReadChoicesPath() { return UserCachePath("reads.json"); }

std::optional<ReadSample> FindReadChoice(const std::string& path, const std::string& key) {
  for (const Json& one : ReadAll(path)) {
    if (IsFor(one, key)) return FromJson(one);
  }
  return std::nullopt;
}

Status KeepReadChoice(const std::string& path, const std::string& key, const ReadSample& chosen) {
  Json::Array choices = ReadAll(path);
  std::erase_if(choices, [&](const Json& one) { return IsFor(one, key); });
  choices.push_back(ToJson(key, chosen));
  if (choices.size() > kReadChoicesMax) {
    choices.erase(choices.begin(), choices.end() - kReadChoicesMax);
  }
  Json json;
  json.Set("version", kReadChoicesVersion).Set("choices", std::move(choices));
  return WriteUserCacheFile(path, json.Dump(1) + "\n");
}

Result<std::string> ReadChoiceKey(const std::string& machine, const std::string& file_path,
                                  uint64_t read_bytes) {
  struct stat file = {};
  struct statfs system = {};
  if (::stat(file_path.c_str(), &file) != 0 || ::statfs(file_path.c_str(), &system) != 0) {
    return Io("{}: {}", file_path, std::strerror(errno));
  }
  return fmt::format("{}; device {:x}, file system {:x}; {} ({} bytes, of {}); reads of {}",
                     machine, file.st_dev, static_cast<uint64_t>(system.f_type), file_path,
                     file.st_size, file.st_mtime, read_bytes);
}

}  // namespace smoe::io
