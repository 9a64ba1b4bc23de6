#include "base/memory_pressure.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "base/cgroup.h"
#include "base/memory.h"
#include "base/memory_limits.h"
#include "base/system_file.h"

namespace smoe {

namespace {

// The total of the line "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345". False without it.
Result<bool> ReadStall(const std::string& path, uint64_t* stall_us) {
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(path));
  std::istringstream file(text.value_or(""));
  std::string word;
  if (!(file >> word) || word != "some") return false;
  constexpr std::string_view kTotal = "total=";
  while (file >> word && word != "full") {
    if (!word.starts_with(kTotal)) continue;
    std::istringstream number(word.substr(kTotal.size()));
    return static_cast<bool>(number >> *stall_us);
  }
  return false;
}

// Source: man 5 proc_pid_stat, field 12; the name in brackets may hold anything.
Result<uint64_t> ReadMajorFaults(const std::string& path) {
  constexpr int kFieldsBefore = 9;  // from the state on
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(path));
  const std::string line = text.value_or("");
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream words(line.substr(name_end + 1));
  std::string word;
  for (int i = 0; i < kFieldsBefore; ++i) words >> word;
  uint64_t count = 0;
  words >> count;
  return count;
}

// False if the file is not there or does not count them.
Result<bool> ReadRefaults(const std::string& path, uint64_t* sum) {
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(path));
  std::istringstream file(text.value_or(""));
  std::string name;
  uint64_t value = 0;
  bool has_any = false;
  while (file >> name >> value) {
    if (name != "workingset_refault_anon" && name != "workingset_refault_file") continue;
    *sum += value;
    has_any = true;
  }
  return has_any;
}

}  // namespace

Result<PressureSample> ReadPressure(uint64_t time_ns, const std::string& root) {
  PressureSample sample;
  sample.time_ns = time_ns;
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory(root));
  sample.free_bytes = free.bytes;
  SMOE_TRY_ASSIGN(sample.major_fault_count, ReadMajorFaults(root + "/proc/self/stat"));
  bool has_stall = false;
  bool has_refaults = false;
  SMOE_TRY_ASSIGN(const auto folders, CgroupFolders(root, "memory"));
  for (const CgroupFolder& folder : folders) {
    if (!has_stall && folder.is_version2) {
      SMOE_TRY_ASSIGN(has_stall, ReadStall(folder.path + "memory.pressure", &sample.stall_us));
      sample.stall_is_own = has_stall;
    }
    // The process's own group comes first.
    if (!has_refaults) {
      SMOE_TRY_ASSIGN(has_refaults,
                      ReadRefaults(folder.path + "memory.stat", &sample.refault_count));
    }
  }
  if (!has_stall) {
    SMOE_TRY(ReadStall(root + "/proc/pressure/memory", &sample.stall_us));
  }
  return sample;
}

uint64_t ResidentBytesOf(Bytes memory) {
  std::array<unsigned char, 4096> pages;
  uint64_t resident = 0;
  // The call takes the address of what it does not change as a plain pointer.
  std::byte* const begin = const_cast<std::byte*>(memory.data());
  for (uint64_t done = 0; done < memory.size();) {
    const uint64_t bytes = std::min<uint64_t>(memory.size() - done, pages.size() * kPageBytes);
    if (mincore(begin + done, bytes, pages.data()) != 0) return 0;
    const auto end = pages.begin() + static_cast<std::ptrdiff_t>(CeilDiv(bytes, kPageBytes));
    resident += kPageBytes * static_cast<uint64_t>(std::count_if(
                                 pages.begin(), end, [](unsigned char page) { return page & 1; }));
    done += bytes;
  }
  return resident;
}

uint64_t ResidentBytes(const std::string& root) {
  std::ifstream file(root + "/proc/self/statm");  // man 5 proc_pid_statm: size, resident, ...
  uint64_t size = 0;
  uint64_t resident = 0;
  return file >> size >> resident ? resident * kPageBytes : 0;
}

uint64_t PeakResidentBytes(const std::string& root) {
  constexpr std::string_view kName = "VmHWM:";  // man 5 proc_pid_status: "peak resident set size"
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    uint64_t kib = 0;
    std::istringstream(line.substr(kName.size())) >> kib;
    return kib * 1024;
  }
  return 0;
}

bool ResetPeakResident(const std::string& root) {
  std::ofstream file(root + "/proc/self/clear_refs");  // man 5 proc_pid_clear_refs, value 5
  file << "5";
  file.flush();
  return static_cast<bool>(file);
}

}  // namespace smoe
