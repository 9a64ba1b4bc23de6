#include "base/core_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <vector>

#include "base/cgroup.h"

namespace smoe {

namespace {

std::vector<size_t> AllowedCpus() {
  std::vector<size_t> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// Version 2 has "QUOTA PERIOD" or "max PERIOD" in one file, version 1 a file for each and -1 for no
// limit. nullopt for no limit.
std::optional<double> Quota(const CgroupFolder& folder) {
  double quota = 0;
  double period = 0;
  if (folder.is_version2) {
    std::ifstream file(folder.path + "cpu.max");
    if (!(file >> quota >> period)) return std::nullopt;  // also for "max"
  } else {
    std::ifstream quota_file(folder.path + "cpu.cfs_quota_us");
    std::ifstream period_file(folder.path + "cpu.cfs_period_us");
    if (!(quota_file >> quota && period_file >> period)) return std::nullopt;
  }
  if (!(quota > 0 && period > 0)) return std::nullopt;
  return quota / period;
}

}  // namespace

size_t PhysicalCoreCount(const std::string& root, std::span<const size_t> cpus) {
  std::set<std::string> cores;
  for (const size_t cpu : cpus) {
    const std::string name = "cpu" + std::to_string(cpu);
    std::ifstream file(root + "/sys/devices/system/cpu/" + name + "/topology/thread_siblings_list");
    std::string siblings;
    cores.insert(std::getline(file, siblings) ? siblings : name);
  }
  return cores.size();
}

std::optional<size_t> CgroupCoreQuota(const std::string& root) {
  std::optional<double> least;
  const auto folders = CgroupFolders(root, "cpu");
  if (!folders) return std::nullopt;  // more threads than pay is all that comes of it
  for (const CgroupFolder& folder : *folders) {
    const std::optional<double> quota = Quota(folder);
    if (quota) least = std::min(*quota, least.value_or(*quota));
  }
  if (!least) return std::nullopt;
  return static_cast<size_t>(std::ceil(std::min<double>(*least, CPU_SETSIZE)));
}

size_t UsableCoreCount() {
  const size_t cores = std::max<size_t>(1, PhysicalCoreCount("", AllowedCpus()));
  return std::min(cores, CgroupCoreQuota("").value_or(cores));
}

}  // namespace smoe
