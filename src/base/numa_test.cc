#include "base/numa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/fake_root_for_test.h"
#include "base/memory.h"

namespace smoe {
namespace {

class Numa : public FakeRootTest {};

TEST_F(Numa, NodesAreListedByNumberWithTheirMemory) {
  EXPECT_TRUE(ReadNumaNodes(root_).empty());
  const std::string folder = "/sys/devices/system/node/";
  Write(folder + "node10/cpulist", "8-15\n");
  Write(folder + "node10/meminfo",
        "Node 10 MemTotal:       2048 kB\nNode 10 MemFree:        1024 kB\n");
  Write(folder + "node2/cpulist", "\n");
  Write(folder + "node2/meminfo", "Node 2 MemTotal: 4 kB\n");
  Write(folder + "nodes/cpulist", "0\n");
  Write(folder + "node7x/cpulist", "0\n");
  Write(folder + "node99999/cpulist", "0\n");
  Write(folder + "online", "2,10\n");
  const std::vector<NumaNode> nodes = ReadNumaNodes(root_);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].number, 2u);
  EXPECT_EQ(nodes[0].cpus, "");
  EXPECT_EQ(nodes[0].memory_bytes, 4096u);
  EXPECT_EQ(nodes[1].number, 10u);
  EXPECT_EQ(nodes[1].cpus, "8-15");
  EXPECT_EQ(nodes[1].memory_bytes, uint64_t{2} << 20);
  EXPECT_EQ(nodes[1].free_bytes, uint64_t{1} << 20);
}

TEST_F(Numa, TouchedPagesLieOnSomeNodeAndOthersOnNone) {
  auto memory = AlignedBuffer::Create(64 * kPageBytes, "test");
  ASSERT_TRUE(memory);
  const auto before = BytesByNode(memory->bytes());
  if (!before) GTEST_SKIP() << before.error().message();
  EXPECT_EQ(std::accumulate(before->begin(), before->end(), uint64_t{0}), 0u);
  std::ranges::fill(memory->bytes().first(32 * kPageBytes), std::byte{1});
  const auto after = BytesByNode(memory->bytes());
  ASSERT_TRUE(after) << after.error().message();
  EXPECT_EQ(std::accumulate(after->begin(), after->end(), uint64_t{0}), 32 * kPageBytes);
}

// Whatever the machine has: memory stays usable.
TEST_F(Numa, InterleavedMemoryIsMemory) {
  auto memory = AlignedBuffer::Create(1 << 20, "test");
  ASSERT_TRUE(memory);
  EXPECT_EQ(InterleaveOverNodes(memory->bytes()), ReadNumaNodes().size() > 1);
  std::ranges::fill(memory->bytes(), std::byte{7});
  EXPECT_EQ(memory->bytes().back(), std::byte{7});
  EXPECT_FALSE(InterleaveOverNodes({}));
}

}  // namespace
}  // namespace smoe
