// base/machine.h: which machine this is, in the words that a log of measurements needs.
#pragma once

#include <cstdint>
#include <string>

namespace smoe {

struct Machine {
  std::string cpu;            // "Intel(R) Xeon(R) Processor, family 6 model 207"
  std::string kernel;         // "6.18.44"
  std::string governor;       // "performance"; "" where the kernel shows none, as in most guests
  bool is_virtual = false;    // the processor says that a hypervisor runs it
  size_t core_count = 0;      // UsableCoreCount()
  uint64_t memory_bytes = 0;  // of the whole machine
};

// What cannot be read is left empty or 0: it is for people.
// `root` is where /proc and /sys are looked up: "" on a real system, a folder in tests.
Machine ReadMachine(const std::string& root = "");

// "Intel(R) Xeon(R) Processor, family 6 model 207, 2 cores, Linux 6.18.44, 23.4 GiB, virtual".
std::string MachineText(const Machine& machine);

}  // namespace smoe
