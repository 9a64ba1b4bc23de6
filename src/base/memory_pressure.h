// base/memory_pressure.h: signs that memory is getting short, before the kernel kills or pages.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe {

// Counters and a level at one moment; only differences of counters mean anything.
struct PressureSample {
  uint64_t time_ns = 0;  // of a clock that never goes back
  // Microseconds in which some task waited for memory: of this process's cgroup of version 2, else
  // of the whole system. Source: Linux, Documentation/accounting/psi.rst, "some ... total".
  uint64_t stall_us = 0;
  bool stall_is_own = false;       // of the cgroup: no other group's tasks are in it
  uint64_t major_fault_count = 0;  // of this process: pages that had to be read back
  uint64_t refault_count = 0;      // pages that the cgroup lost and wanted again soon
  uint64_t free_bytes = 0;         // as ReadFreeMemory
};

// What cannot be read stays 0: kernels without pressure stall information, without cgroups.
// `root` is where /proc and /sys are looked up: "" on a real system, a folder in tests.
// Errors: as ReadFreeMemory.
// Cost: about ten small files, some 0.1 ms.
Result<PressureSample> ReadPressure(uint64_t time_ns, const std::string& root = "");

// How much of anonymous `memory`, whole pages, has been touched and lies in memory. 0 if the system
// does not say. Cost: some 0.1 ms a GiB. Source: man 2 mincore.
uint64_t ResidentBytesOf(Bytes memory);

// What this process has in memory now, anonymous and of files. 0 if it cannot be read.
uint64_t ResidentBytes(const std::string& root = "");

// The most that it ever had, or since ResetPeak. 0 if it cannot be read.
uint64_t PeakResidentBytes(const std::string& root = "");

// Begins anew with what is held now. Returns false where the kernel does not allow it: then peaks
// stay those of the whole process.
bool ResetPeakResident(const std::string& root = "");

}  // namespace smoe
