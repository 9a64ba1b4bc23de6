// base/memory_limits.h: how much memory this process may still take, and who says so.
//
// The smallest of MemAvailable and every cgroup limit up the tree (version 1 and 2) counts: a
// container on a big host must not size its caches by the host.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace smoe {

struct FreeMemory {
  uint64_t bytes = 0;
  std::string reason;  // "MemAvailable", or "limited to 4.0 GiB by cgroup /user.slice"
};

// `root` is where /proc and /sys are looked up: "" on a real system, a folder in tests.
// Errors: kIo if /proc/meminfo cannot be read.
Result<FreeMemory> ReadFreeMemory(const std::string& root = "");

// "2.5 GiB", "812 KiB", "17 bytes": for people.
std::string SizeText(uint64_t bytes);

}  // namespace smoe
