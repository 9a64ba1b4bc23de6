// base/core_count.h: how many processors this process may keep busy.
//
// Hyper-threads do not count: two of them share the units that our loops fill. A container on a big
// host has few cores by its affinity or by a quota of time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace smoe {

// Physical cores that affinity leaves us, or the smallest cgroup quota if that is less. At least 1.
size_t UsableCoreCount();

// What it is made of. `root` is where /proc and /sys are looked up: "" on a real system, a folder
// in tests.
//
// Physical cores among `cpus`, by the sibling lists that the kernel publishes; a CPU without a list
// is a core.
size_t PhysicalCoreCount(const std::string& root, std::span<const size_t> cpus);
// Cores' worth of time that the smallest quota up the tree grants, rounded up; nullopt: no limit.
std::optional<size_t> CgroupCoreQuota(const std::string& root);

}  // namespace smoe
