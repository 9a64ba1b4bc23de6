#include "base/machine.h"

#include <gtest/gtest.h>

#include "base/fake_root_for_test.h"

namespace smoe {
namespace {

class MachineTest : public FakeRootTest {};

TEST_F(MachineTest, TheFirstProcessorTheKernelAndTheMemoryAreNamed) {
  Write("/proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
        "model name\t: Some CPU @ 2GHz\nflags\t\t: fpu vme hypervisor avx2\n\n"
        "processor\t: 1\nmodel name\t: Another\n");
  Write("/proc/sys/kernel/osrelease", "6.18.44-fc-v657\n");
  Write("/proc/meminfo", "MemTotal:       24576000 kB\nMemFree: 1 kB\n");
  Write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  Machine machine = ReadMachine(root_);
  EXPECT_GE(machine.core_count, 1u);
  EXPECT_TRUE(machine.is_virtual);
  machine.core_count = 2;
  EXPECT_EQ(MachineText(machine),
            "Some CPU @ 2GHz, family 6 model 207, 2 cores, Linux 6.18.44, 23.4 GiB, "
            "governor powersave, virtual");
}

TEST_F(MachineTest, WhatIsMissingIsLeftOut) {
  Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.cpu, "unknown processor");
  EXPECT_EQ(machine.memory_bytes, 0u);
  EXPECT_FALSE(machine.is_virtual);
}

TEST_F(MachineTest, OnlyTheWholeWordHypervisorCounts) {
  Write("/proc/cpuinfo", "flags\t: fpu nohypervisor\n");
  EXPECT_FALSE(ReadMachine(root_).is_virtual);
  Write("/proc/cpuinfo", "flags\t: fpu hypervisor\n");
  EXPECT_TRUE(ReadMachine(root_).is_virtual);
}

}  // namespace
}  // namespace smoe
