#include "base/huge_pages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/fake_root_for_test.h"
#include "base/memory.h"

namespace smoe {
namespace {

class HugePages : public FakeRootTest {
 protected:
  // A mapping that begins where `memory` does.
  std::string Mapping(Bytes memory, const std::string& fields) const {
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    return fmt::format("{:x}-{:x} rw-p 00000000 00:00 0 \n{}", at, at + memory.size(), fields);
  }
};

TEST_F(HugePages, TheModeIsTheWordInBrackets) {
  EXPECT_EQ(HugePageMode(root_), "");
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  Write(path, "always [madvise] never\n");
  EXPECT_EQ(HugePageMode(root_), "madvise");
  Write(path, "[always] madvise never\n");
  EXPECT_EQ(HugePageMode(root_), "always");
  Write(path, "nonsense\n");
  EXPECT_EQ(HugePageMode(root_), "");
}

TEST_F(HugePages, CountsThePagesOfTheMappingsThatAreAskedFor) {
  const auto memory = AlignedBuffer::Create(4 << 20, "test");
  ASSERT_TRUE(memory);
  const Bytes bytes = memory->bytes();
  Write(
      "/proc/self/smaps",
      "1000-2000 r--p 00000000 00:00 0 /bin/smoe\nRss: 4 kB\nAnonHugePages: 4096 kB\n" +
          Mapping(bytes.first(2 << 20), "Size: 2048 kB\nRss:     1000 kB\nAnonHugePages: 0 kB\n") +
          Mapping(bytes.subspan(2 << 20), "Rss: 2048 kB\nAnonHugePages:  2048 kB\n") +
          "ffffff0000000000-ffffff0000001000 r--p 0 0 0\nRss: 4 kB\n");
  const auto use = ReadPageUse(bytes, root_);
  ASSERT_TRUE(use) << use.error().message();
  EXPECT_EQ(use->resident_bytes, 3048u * 1024);
  EXPECT_EQ(use->huge_bytes, 2048u * 1024);
  EXPECT_DOUBLE_EQ(use->HugeShare(), 2048.0 / 3048);
}

TEST_F(HugePages, AMissingFileIsNamed) {
  const auto memory = AlignedBuffer::Create(4096, "test");
  const auto use = ReadPageUse(memory->bytes(), root_);
  ASSERT_FALSE(use);
  EXPECT_EQ(use.error().code(), ErrorCode::kIo);
  EXPECT_NE(use.error().message().find("/proc/self/smaps"), std::string::npos);
}

TEST_F(HugePages, TouchedMemoryOfThisProcessIsResident) {
  auto memory = AlignedBuffer::Create(8 << 20, "test");
  ASSERT_TRUE(memory);
  std::ranges::fill(memory->bytes(), std::byte{1});
  const auto use = ReadPageUse(memory->bytes());
  ASSERT_TRUE(use) << use.error().message();
  EXPECT_GE(use->resident_bytes, memory->size());
  EXPECT_LE(use->huge_bytes, use->resident_bytes);
}

}  // namespace
}  // namespace smoe
