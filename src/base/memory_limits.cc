#include "base/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

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

// Lowers `free` by every limit from `group` up to the mount itself.
void ApplyLimits(const std::string& mount, std::string group, const CgroupFiles& files,
                 FreeMemory* free) {
  for (;;) {
    const std::string folder = mount + group + "/";
    const auto limit = ReadNumber(folder + files.limit);
    if (limit && *limit < kNoLimit) {
      const uint64_t usage = ReadNumber(folder + files.usage).value_or(0);
      const uint64_t cached = ReadKey(folder + "memory.stat", files.reclaimable_key).value_or(0);
      const uint64_t used = usage - std::min(usage, cached);
      const uint64_t left = *limit - std::min(*limit, used);
      if (left < free->bytes) {
        *free = {left, fmt::format("limited to {} by cgroup {}", SizeText(*limit),
                                   group.empty() ? "/" : group)};
      }
    }
    if (group.empty()) return;
    group.erase(group.rfind('/'));
  }
}

// Groups of this process: lines of "id:controllers:/path".
void ApplyCgroups(const std::string& root, FreeMemory* free) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers.empty()) {
      ApplyLimits(root + "/sys/fs/cgroup", group, kVersion2, free);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      ApplyLimits(root + "/sys/fs/cgroup/memory", group, kVersion1, free);
    }
  }
}

}  // namespace

Result<FreeMemory> ReadFreeMemory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const auto available = ReadKey(path, "MemAvailable:");
  if (!available) return Io("{}: cannot be read, or has no line MemAvailable", path);
  FreeMemory free = {*available * 1024, "MemAvailable"};
  ApplyCgroups(root, &free);
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
