#include "base/memory_limits.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/cgroup.h"
#include "base/system_file.h"

namespace smoe {

namespace {

// Version 1 writes "no limit" as a number near 2^63.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

Result<std::optional<uint64_t>> ReadNumber(const std::string& path) {
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(path));
  std::istringstream number(text.value_or(""));
  uint64_t value = 0;
  if (!(number >> value)) return std::nullopt;  // also for "max"
  return value;
}

// The value behind `key` in lines of "key value".
Result<std::optional<uint64_t>> ReadKey(const std::string& path, const std::string& key) {
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(path));
  std::istringstream lines(text.value_or(""));
  std::string line;
  while (std::getline(lines, line)) {
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
Status ApplyLimit(const CgroupFolder& folder, FreeMemory* free) {
  const CgroupFiles& files = folder.is_version2 ? kVersion2 : kVersion1;
  SMOE_TRY_ASSIGN(const auto limit, ReadNumber(folder.path + files.limit));
  if (!limit || *limit >= kNoLimit) return Ok();
  SMOE_TRY_ASSIGN(const auto found_usage, ReadNumber(folder.path + files.usage));
  SMOE_TRY_ASSIGN(const auto cached, ReadKey(folder.path + "memory.stat", files.reclaimable_key));
  const uint64_t usage = found_usage.value_or(0);
  const uint64_t used = usage - std::min(usage, cached.value_or(0));
  const uint64_t left = *limit - std::min(*limit, used);
  if (left >= free->bytes) return Ok();
  *free = {left, fmt::format("limited to {} by cgroup {}", SizeText(*limit), folder.name)};
  return Ok();
}

}  // namespace

Result<FreeMemory> ReadFreeMemory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  SMOE_TRY_ASSIGN(const auto available, ReadKey(path, "MemAvailable:"));
  if (!available) return Io("{}: cannot be read, or has no line MemAvailable", path);
  FreeMemory free = {*available * 1024, "MemAvailable"};
  SMOE_TRY_ASSIGN(const auto folders, CgroupFolders(root, "memory"));
  for (const CgroupFolder& folder : folders) SMOE_TRY(ApplyLimit(folder, &free));
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
