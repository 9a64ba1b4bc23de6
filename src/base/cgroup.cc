#include "base/cgroup.h"

#include <fmt/core.h>

#include <sstream>

#include "base/system_file.h"

namespace smoe {

namespace {

// `group` and all groups above it, below `mount`.
void AddUpwards(const std::string& mount, std::string group, bool is_version2,
                std::vector<CgroupFolder>* folders) {
  if (group == "/") group.clear();
  for (;;) {
    folders->push_back({group.empty() ? "/" : group, mount + group + "/", is_version2});
    if (group.empty()) return;
    group.erase(group.rfind('/'));
  }
}

// Whether the list "cpu,cpuacct" has `controller`.
bool Names(std::string_view controllers, std::string_view controller) {
  const std::string listed = fmt::format(",{},", controllers);
  return listed.find(fmt::format(",{},", controller)) != std::string::npos;
}

}  // namespace

Result<std::vector<CgroupFolder>> CgroupFolders(const std::string& root,
                                                std::string_view controller) {
  SMOE_TRY_ASSIGN(const auto text, ReadSystemFile(root + "/proc/self/cgroup"));
  std::vector<CgroupFolder> folders;
  std::istringstream lines(text.value_or(""));
  std::string line;  // "id:controllers:/path"
  while (std::getline(lines, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (!group.starts_with('/')) continue;
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      AddUpwards(mount, group, true, &folders);
    } else if (Names(controllers, controller)) {
      AddUpwards(mount + "/" + std::string(controller), group, false, &folders);
    }
  }
  return folders;
}

}  // namespace smoe
