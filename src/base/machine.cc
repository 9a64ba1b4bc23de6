#include "base/machine.h"

#include <fmt/core.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "base/core_count.h"
#include "base/memory_limits.h"

namespace smoe {

namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of "key<spaces>: value" if the line has that key.
bool TakeValue(const std::string& line, std::string_view key, std::string* value) {
  if (!value->empty() || !line.starts_with(key)) return false;
  const size_t colon = line.find_first_not_of(" \t", key.size());
  if (colon == std::string::npos || line[colon] != ':') return false;
  const size_t start = line.find_first_not_of(" \t", colon + 1);
  if (start != std::string::npos) *value = line.substr(start);
  return true;
}

void ReadCpu(const std::string& root, Machine* machine) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::string name, family, model, flags, line;
  while (std::getline(file, line) && !line.empty()) {  // an empty line ends the first processor
    TakeValue(line, "model name", &name) || TakeValue(line, "cpu family", &family) ||
        TakeValue(line, "model", &model) || TakeValue(line, "flags", &flags);
  }
  machine->cpu = name.empty() ? "unknown processor" : name;
  if (!family.empty()) machine->cpu += fmt::format(", family {} model {}", family, model);
  machine->is_virtual = (" " + flags + " ").find(" hypervisor ") != std::string::npos;
}

}  // namespace

Machine ReadMachine(const std::string& root) {
  Machine machine;
  ReadCpu(root, &machine);
  const std::string release = FirstLine(root + "/proc/sys/kernel/osrelease");
  machine.kernel = release.substr(0, release.find('-'));
  machine.governor = FirstLine(root + "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  machine.core_count = UsableCoreCount();
  std::istringstream total(FirstLine(root + "/proc/meminfo"));  // "MemTotal:  24000 kB"
  std::string key;
  uint64_t kib = 0;
  if (total >> key >> kib) machine.memory_bytes = kib * 1024;
  return machine;
}

std::string MachineText(const Machine& machine) {
  std::string text = fmt::format("{}, {} core{}, Linux {}, {}", machine.cpu, machine.core_count,
                                 machine.core_count == 1 ? "" : "s", machine.kernel,
                                 SizeText(machine.memory_bytes));
  if (!machine.governor.empty()) text += fmt::format(", governor {}", machine.governor);
  if (machine.is_virtual) text += ", virtual";
  return text;
}

}  // namespace smoe
