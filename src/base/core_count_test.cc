#include "base/core_count.h"

#include <vector>

#include "base/fake_root_for_test.h"

namespace smoe {
namespace {

class CoreCount : public FakeRootTest {};

TEST_F(CoreCount, HyperThreadsOfOneCoreAreOneCore) {
  const std::string cpu = "/sys/devices/system/cpu/cpu";
  Write(cpu + "0/topology/thread_siblings_list", "0,2\n");
  Write(cpu + "1/topology/thread_siblings_list", "1,3\n");
  Write(cpu + "2/topology/thread_siblings_list", "0,2\n");
  Write(cpu + "3/topology/thread_siblings_list", "1,3\n");
  EXPECT_EQ(PhysicalCoreCount(root_, std::vector<size_t>{0, 1, 2, 3}), 2u);
  EXPECT_EQ(PhysicalCoreCount(root_, std::vector<size_t>{0, 2}), 1u);
  EXPECT_EQ(PhysicalCoreCount(root_, std::vector<size_t>{0, 2, 8, 9}), 3u) << "8, 9: no lists";
}

TEST_F(CoreCount, TheSmallestQuotaOfVersion2UpTheTreeCounts) {
  EXPECT_FALSE(CgroupCoreQuota(root_)) << "no cgroups at all";
  Write("/proc/self/cgroup", "0::/user.slice/job\n");
  EXPECT_FALSE(CgroupCoreQuota(root_)) << "no limit files";
  Write("/sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
  EXPECT_FALSE(CgroupCoreQuota(root_)) << "no limit";
  Write("/sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(CgroupCoreQuota(root_), 3u) << "2.5 cores, rounded up";
  Write("/sys/fs/cgroup/user.slice/job/cpu.max", "10000 100000\n");
  EXPECT_EQ(CgroupCoreQuota(root_), 1u);
}

TEST_F(CoreCount, Version1HasTwoFilesAndMinusOneForNoLimit) {
  Write("/proc/self/cgroup", "3:cpu,cpuacct:/job\n5:memory:/other\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(CgroupCoreQuota(root_));
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(CgroupCoreQuota(root_), 4u);
}

TEST(UsableCoreCount, IsAtLeastOne) { EXPECT_GE(UsableCoreCount(), 1u); }

}  // namespace
}  // namespace smoe
