// base/cgroup.h: the control groups that bind this process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace smoe {

struct CgroupFolder {
  std::string name;  // "/user.slice"; "/" for the mount itself
  std::string path;  // where its limit files lie, with a "/" at the end
  bool is_version2 = false;
};

// From this process's own groups up to the mounts, of version 2 and of version 1's `controller`
// ("memory", "cpu"). Each of them may have a limit, and the smallest counts. Empty without cgroups.
// Errors: as ReadSystemFile.
// `root` is where /proc and /sys are looked up: "" on a real system, a folder in tests.
// Source: man 7 cgroups, "/proc/pid/cgroup".
Result<std::vector<CgroupFolder>> CgroupFolders(const std::string& root,
                                                std::string_view controller);

}  // namespace smoe
