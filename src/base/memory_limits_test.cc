#include "base/memory_limits.h"

#include <gtest/gtest.h>

#include "base/fake_root_for_test.h"

namespace smoe {
namespace {

class MemoryLimitsTest : public FakeRootTest {
 protected:
  void SetUp() override {
    FakeRootTest::SetUp();
    Write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable:   33554432 kB\n");
  }
};

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST_F(MemoryLimitsTest, WithoutCgroupsMemAvailableCounts) {
  const auto free = ReadFreeMemory(root_);
  ASSERT_TRUE(free);
  EXPECT_EQ(free->bytes, 32 * kGiB);
  EXPECT_EQ(free->reason, "MemAvailable");
}

// The smallest limit up the tree counts, and it is said.
TEST_F(MemoryLimitsTest, ParentSliceOfVersion2Counts) {
  Write("/proc/self/cgroup", "0::/parent.slice/child\n");
  Write("/sys/fs/cgroup/parent.slice/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/parent.slice/memory.current", "1073741824\n");
  Write("/sys/fs/cgroup/parent.slice/memory.stat", "anon 5\ninactive_file 536870912\n");
  Write("/sys/fs/cgroup/parent.slice/child/memory.max", "max\n");
  const auto free = ReadFreeMemory(root_);
  ASSERT_TRUE(free);
  EXPECT_EQ(free->bytes, 4 * kGiB - kGiB / 2);
  EXPECT_EQ(free->reason, "limited to 4.0 GiB by cgroup /parent.slice");
}

TEST_F(MemoryLimitsTest, Version1CountsAndItsNoLimitDoesNot) {
  Write("/proc/self/cgroup", "5:cpu,memory:/job\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4294967296\n");
  const auto free = ReadFreeMemory(root_);
  ASSERT_TRUE(free);
  EXPECT_EQ(free->bytes, 0u) << "usage above the limit must not wrap";
}

TEST(SizeText, PicksTheUnit) {
  EXPECT_EQ(SizeText(17), "17 bytes");
  EXPECT_EQ(SizeText(1536), "1.5 KiB");
  EXPECT_EQ(SizeText(4 * kGiB), "4.0 GiB");
}

}  // namespace
}  // namespace smoe
