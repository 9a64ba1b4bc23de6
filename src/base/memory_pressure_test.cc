#include "base/memory_pressure.h"

#include <gtest/gtest.h>

#include "base/fake_root_for_test.h"
#include "base/memory.h"

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

TEST_F(MemoryPressureTest, ReadsThePeakAndBeginsItAnew) {
  EXPECT_EQ(PeakResidentBytes(root_), 0u);
  Write("/proc/self/status", "Name:\tsmoe\nVmHWM:\t   15244 kB\nVmRSS:\t    9000 kB\n");
  EXPECT_EQ(PeakResidentBytes(root_), 15244u * 1024);
  Write("/proc/self/clear_refs", "");
  EXPECT_TRUE(ResetPeakResident(root_));
  EXPECT_FALSE(ResetPeakResident(root_ + "/absent"));
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
  EXPECT_TRUE(sample->stall_is_own);
  EXPECT_EQ(sample->refault_count, 7u);
}

// Version 1, as Linux has it since 5.9: the group's own, and with "total_" those below it as well.
TEST_F(MemoryPressureTest, ReadsRefaultsOfVersionOneAndSaysWhoseStallItIs) {
  Write("/proc/self/cgroup", "4:memory:/a\n");
  Write("/proc/self/mountinfo",
        "36 35 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  Write("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n");
  Write("/sys/fs/cgroup/memory/a/memory.stat",
        "cache 5\nworkingset_refault_anon 1\nworkingset_refault_file 2\n"
        "total_workingset_refault_file 9\n");
  const auto sample = ReadPressure(0, root_);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->refault_count, 3u);
  EXPECT_FALSE(sample->stall_is_own);
}

// Its own group has had none: those of the one above are no sign.
TEST_F(MemoryPressureTest, NoRefaultsAreAnAnswerToo) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.stat", "workingset_refault_anon 0\nworkingset_refault_file 0\n");
  Write("/sys/fs/cgroup/a/memory.stat", "workingset_refault_file 1000\n");
  EXPECT_EQ(ReadPressure(0, root_)->refault_count, 0u);
}

TEST(ResidentBytesOfTest, CountsPagesThatWereTouched) {
  auto buffer = AlignedBuffer::Create(64 * kPageBytes, "test");
  ASSERT_TRUE(buffer);
  buffer->bytes()[0] = std::byte{1};
  EXPECT_GE(ResidentBytesOf(buffer->bytes()), kPageBytes);
  std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{1});
  EXPECT_EQ(ResidentBytesOf(buffer->bytes()), 64 * kPageBytes);
  buffer->Discard(0, 32 * kPageBytes);
  EXPECT_EQ(ResidentBytesOf(buffer->bytes()), 32 * kPageBytes);
  EXPECT_EQ(ResidentBytesOf({}), 0u);
}

}  // namespace
}  // namespace smoe
