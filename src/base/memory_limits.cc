#include "base/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/cgroup.h"

namespace smoe {

namespace {

// Version 1 writes "no limit" as a number near 2^63.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // also for "max"
  return value;
}

// The value behind `key` in lines of "key value".
std::optional<uint64_t> ReadKey(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable_key;  // file pages that the kernel drops before it kills
};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr CgroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};

// Lowers `free` to what `folder` leaves, if it has a limit and that is less.
void ApplyLimit(const CgroupFolder& folder, FreeMemory* free) {
  const CgroupFiles& files = folder.is_version2 ? kVersion2 : kVersion1;
  const auto limit = ReadNumber(folder.path + files.limit);
  if (!limit || *limit >= kNoLimit) return;
  const uint64_t usage = ReadNumber(folder.path + files.usage).value_or(0);
  const uint64_t cached = ReadKey(folder.path + "memory.stat", files.reclaimable_key).value_or(0);
  const uint64_t used = usage - std::min(usage, cached);
  const uint64_t left = *limit - std::min(*limit, used);
  if (left >= free->bytes) return;
  *free = {left, fmt::format("limited to {} by cgroup {}", SizeText(*limit), folder.name)};
}

}  // namespace

Result<FreeMemory> ReadFreeMemory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const auto available = ReadKey(path, "MemAvailable:");
  if (!available) return Io("{}: cannot be read, or has no line MemAvailable", path);
  FreeMemory free = {*available * 1024, "MemAvailable"};
  for (const CgroupFolder& folder : CgroupFolders(root, "memory")) ApplyLimit(folder, &free);
  return free;
}

std::string SizeText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace smoe
