#include "base/huge_pages.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/system_file.h"

namespace smoe {

namespace {

// "7f00-7f80 rw-p ...": the bounds of a mapping, which no other line of the file begins with.
bool ParseBounds(const std::string& line, uint64_t* begin, uint64_t* end) {
  return std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", begin, end) == 2;
}

// "Rss:       812 kB" to 812 KiB.
bool ParseField(const std::string& line, const char* name, uint64_t* bytes) {
  if (!line.starts_with(name)) return false;
  uint64_t kib = 0;
  if (std::sscanf(line.c_str() + std::char_traits<char>::length(name), " %" SCNu64 " kB", &kib) !=
      1) {
    return false;
  }
  *bytes += kib * 1024;
  return true;
}

}  // namespace

Result<PageUse> ReadPageUse(Bytes memory, const std::string& root) {
  const std::string path = root + "/proc/self/smaps";
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(path));
  std::istringstream lines(text.value_or(""));
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t last = first + memory.size();
  PageUse use;
  bool is_ours = false;
  bool is_found = false;
  std::string line;
  while (std::getline(lines, line)) {
    uint64_t begin = 0;
    uint64_t end = 0;
    if (ParseBounds(line, &begin, &end)) {
      is_ours = begin < last && first < end;
      is_found |= is_ours;
    } else if (is_ours && !ParseField(line, "Rss:", &use.resident_bytes)) {
      ParseField(line, "AnonHugePages:", &use.huge_bytes);
    }
  }
  if (!is_found) return Io("{}: cannot be read, or has no mapping at {:#x}", path, first);
  return use;
}

std::string HugePageMode(const std::string& root) {
  std::ifstream file(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  std::string word;  // of "always [madvise] never": the one in brackets holds
  while (file >> word) {
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') {
      return word.substr(1, word.size() - 2);
    }
  }
  return "";
}

}  // namespace smoe
