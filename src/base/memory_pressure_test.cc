#include "base/memory_pressure.h"

#include <gtest/gtest.h>

#include "base/fake_root_for_test.h"

namespace smoe {
namespace {

class MemoryPressureTest : public FakeRootTest {
 protected:
  void SetUp() override {
    FakeRootTest::SetUp();
    Write("/proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:   2048 kB\n");
  }
};

TEST_F(MemoryPressureTest, WithoutAnyOfTheFilesCountersAreZero) {
  const auto sample = ReadPressure(7, root_);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->time_ns, 7u);
  EXPECT_EQ(sample->free_bytes, 2048u * 1024);
  EXPECT_EQ(sample->stall_us + sample->major_fault_count + sample->refault_count, 0u);
  EXPECT_EQ(ResidentBytes(root_), 0u);
}

TEST_F(MemoryPressureTest, ReadsSystemStallAndFaultsBehindAStrangeName) {
  Write("/proc/pressure/memory",
        "some avg10=0.31 avg60=0.37 avg300=0.50 total=80554655\n"
        "full avg10=0.00 avg60=0.00 avg300=0.19 total=18418771\n");
  Write("/proc/self/stat", "42 (a) b (c) R 1 2 3 4 5 6 7 8 99 10 11\n");
  Write("/proc/self/statm", "5000 300 200 1 0 400 0\n");
  const auto sample = ReadPressure(0, root_);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->stall_us, 80554655u);
  EXPECT_EQ(sample->major_fault_count, 99u);
  EXPECT_EQ(ResidentBytes(root_), 300u * 4096);
}

TEST_F(MemoryPressureTest, PrefersTheStallOfItsOwnGroup) {
  Write("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.pressure",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=555\nfull avg10=0 avg60=0 total=3\n");
  Write("/sys/fs/cgroup/a/b/memory.stat",
        "anon 5\nworkingset_refault_anon 3\nworkingset_refault_file 4\npgfault 1\n");
  Write("/sys/fs/cgroup/a/memory.stat", "workingset_refault_file 1000\n");
  const auto sample = ReadPressure(0, root_);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->stall_us, 555u);
  EXPECT_EQ(sample->refault_count, 7u);
}

}  // namespace
}  // namespace smoe
