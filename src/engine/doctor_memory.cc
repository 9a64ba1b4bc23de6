// What doctor says about memory.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/huge_pages.h"
#include "base/memory.h"
#include "base/memory_limits.h"
#include "engine/budget.h"
#include "engine/doctor.h"

namespace smoe::engine {

namespace {

// Below this a model of today's sizes has no room for its trunk.
constexpr uint64_t kLittleMemory = uint64_t{4} << 30;
constexpr uint64_t kProbeBytes = uint64_t{64} << 20;
constexpr double kMostlyHuge = 0.9;

// The value of "key:  123 kB" in bytes, 0 if there is none.
uint64_t MeminfoBytes(const std::string& root, const std::string& key) {
  std::ifstream file(root + "/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    if (words >> name >> kib && name == key) return kib * 1024;
  }
  return 0;
}

}  // namespace

Finding CheckFreeMemory(const std::string& root) {
  Finding finding{.subject = "memory"};
  const auto free = ReadFreeMemory(root);
  if (!free) {
    finding.severity = Severity::kProblem;
    finding.found = free.error().message();
    finding.meaning = "the engine divides what is free and cannot start without knowing it";
    finding.remedy = free.error().code() == ErrorCode::kExhausted
                         ? "ulimit -n with a larger number, or close files"
                         : "mount /proc";
    finding.blocks = free.error().code();
    return finding;
  }
  finding.found = fmt::format("{} free ({})", SizeText(free->bytes), free->reason);
  if (free->bytes >= kLittleMemory) return finding;
  const bool is_none = free->bytes <= kReserveBytes;
  finding.severity = is_none ? Severity::kProblem : Severity::kNote;
  finding.meaning = is_none ? fmt::format("less than the {} that the engine leaves to the system",
                                          SizeText(kReserveBytes))
                            : "enough for small models: the trunk must fit, and some experts";
  finding.remedy = "end other programs, or raise the limit that is named";
  return finding;
}

Finding CheckSwap(const std::string& root) {
  Finding finding{.subject = "swap"};
  const uint64_t total = MeminfoBytes(root, "SwapTotal:");
  const uint64_t used = total - std::min(total, MeminfoBytes(root, "SwapFree:"));
  if (total == 0) {
    finding.found = "none";
    return finding;
  }
  finding.found = fmt::format("{}, {} in use", SizeText(total), SizeText(used));
  if (used < total / 8) return finding;
  finding.severity = Severity::kNote;
  finding.meaning = "memory is short already; weights that are swapped out cost more than a read";
  finding.remedy = "end other programs, or lower --cache";
  return finding;
}

Finding CheckOvercommit(const std::string& root) {
  Finding finding{.subject = "overcommit"};
  std::ifstream file(root + "/proc/sys/vm/overcommit_memory");
  int mode = 0;
  file >> mode;
  finding.found = fmt::format("vm.overcommit_memory = {}", mode);
  if (mode != 2) return finding;
  finding.severity = Severity::kNote;
  finding.meaning =
      "memory is promised when it is asked for, so a large cache may be refused "
      "although it would fit";
  finding.remedy = "sysctl vm.overcommit_memory=0, or a smaller --cache";
  return finding;
}

bool MayLock(uint64_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return false;
  const bool may = mlock2(data, bytes, MLOCK_ONFAULT) == 0;
  munmap(data, bytes);
  return may;
}

Finding CheckLockedMemory(const std::string& root, bool (*may_lock)(uint64_t)) {
  Finding finding{.subject = "locked memory"};
  std::ifstream file(root + "/proc/self/limits");
  std::string line;
  constexpr char kName[] = "Max locked memory";
  while (std::getline(file, line) && !line.starts_with(kName)) {
  }
  if (!line.starts_with(kName)) {
    finding.severity = Severity::kNote;
    finding.found = fmt::format("{}/proc/self/limits has no such line", root);
    return finding;
  }
  uint64_t limit = 0;
  if (std::sscanf(line.c_str() + sizeof(kName), " %" SCNu64, &limit) != 1) {
    finding.found = "unlimited";
    return finding;
  }
  finding.found = fmt::format("at most {}", SizeText(limit));
  if (limit >= kLittleMemory) return finding;
  if (may_lock(RoundUp(limit, kPageBytes) + kPageBytes)) {
    finding.found += ", which does not bind this user";
    return finding;
  }
  finding.severity = Severity::kNote;
  finding.meaning = "a larger trunk cannot be locked, so a system short of memory may page it out";
  finding.remedy = "ulimit -l unlimited, in a service LimitMEMLOCK=infinity";
  return finding;
}

Finding CheckHugePages(const std::string& root) {
  Finding finding{.subject = "huge pages"};
  const std::string mode = HugePageMode(root);
  auto memory = AlignedBuffer::Create(kProbeBytes, "huge page test");
  if (!memory) {
    finding.severity = Severity::kNote;
    finding.found = memory.error().message();
    return finding;
  }
  std::ranges::fill(memory->bytes(), std::byte{1});
  const auto use = ReadPageUse(memory->bytes());
  if (!use) {
    finding.severity = Severity::kNote;
    finding.found = use.error().message();
    return finding;
  }
  finding.found =
      fmt::format("{:.0f} % of {} that asked for them; the kernel is set to \"{}\"",
                  100 * use->HugeShare(), SizeText(kProbeBytes), mode.empty() ? "none" : mode);
  if (use->HugeShare() >= kMostlyHuge) return finding;
  finding.severity = Severity::kNote;
  finding.meaning = "weights in small pages are read 10 to 20 % more slowly";
  finding.remedy = mode == "never" || mode.empty()
                       ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                       : "free memory is in pieces: echo 1 > /proc/sys/vm/compact_memory";
  return finding;
}

}  // namespace smoe::engine
