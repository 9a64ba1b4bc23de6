#include "io/direct_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/memory.h"
#include "io/drive_meter.h"

namespace smoe::io {
namespace {

class DirectIo : public testing::Test {
 protected:
  static constexpr uint64_t kSize = 16 * kPageBytes;

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "smoe_direct_XXXXXX").string();
    const int fd = mkstemp(name.data());
    path_ = name;
    ASSERT_EQ(pwrite(fd, buffer_.data(), kSize, 0), static_cast<ssize_t>(kSize));
    ASSERT_EQ(fsync(fd), 0);
    ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
  }
  void TearDown() override { unlink(path_.c_str()); }

  MutableBytes buffer() { return buffer_.bytes(); }

  AlignedBuffer buffer_ = std::move(*AlignedBuffer::Create(kSize, "test"));
  std::string path_;
};

TEST_F(DirectIo, PlainDescriptorIsBuffered) {
  const File file = std::move(*File::OpenRead(path_));
  EXPECT_EQ(ProveDirectRead(file.fd(), 0, buffer()).value(), DirectEvidence::kBuffered);
}

TEST_F(DirectIo, DirectReadIsSeenToLeaveThePageCacheAlone) {
  Result<File> file = File::OpenDirect(path_);
  if (!file) GTEST_SKIP() << file.error().message();
  const DirectEvidence evidence = ProveDirectRead(file->fd(), 0, buffer()).value();
  if (evidence == DirectEvidence::kIgnored) GTEST_SKIP() << "this file system ignores O_DIRECT";
  // A file that was just written may still be in the page cache, on some file systems for good.
  EXPECT_TRUE(evidence == DirectEvidence::kProven || evidence == DirectEvidence::kFlagOnly)
      << DirectEvidenceText(evidence);
}

TEST_F(DirectIo, RangeThatWasInThePageCacheProvesNothing) {
  Result<File> direct = File::OpenDirect(path_);
  if (!direct) GTEST_SKIP() << direct.error().message();
  const File plain = std::move(*File::OpenRead(path_));
  ASSERT_TRUE(plain.ReadAt(0, buffer()).has_value());
  EXPECT_NE(ProveDirectRead(direct->fd(), 0, buffer()).value(), DirectEvidence::kIgnored);
}

TEST_F(DirectIo, MemoryFileHasTheFlagOrNotButIsNeverProven) {
  const int fd = memfd_create("smoe-direct", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kSize), 0);
  if (fcntl(fd, F_SETFL, O_DIRECT) == 0) {  // refused before Linux 6.6
    ASSERT_EQ(pwrite(fd, buffer().data(), kSize, 0), static_cast<ssize_t>(kSize));
    const Result<DirectEvidence> evidence = ProveDirectRead(fd, 0, buffer());
    if (evidence) {
      EXPECT_EQ(*evidence, DirectEvidence::kFlagOnly);
    }
  } else {
    EXPECT_EQ(ProveDirectRead(fd, 0, buffer()).value(), DirectEvidence::kBuffered);
  }
  close(fd);
}

TEST_F(DirectIo, AlignmentIsAPowerOfTwoAndSaysWhetherTheKernelGaveIt) {
  const File file = std::move(*File::OpenRead(path_));
  const DirectAlignment alignment = AskDirectAlignment(file.fd());
  EXPECT_EQ(alignment.offset_bytes & (alignment.offset_bytes - 1), 0u);
  EXPECT_EQ(alignment.memory_bytes & (alignment.memory_bytes - 1), 0u);
  const DirectAlignment unknown = AskDirectAlignment(-1);
  EXPECT_FALSE(unknown.is_reported);
  EXPECT_EQ(unknown.offset_bytes, kDirectAlignment);
}

TEST_F(DirectIo, ReopenedDescriptorIsOfTheKindAskedFor) {
  const File plain = std::move(*File::OpenRead(path_));
  Result<File> direct = ReopenForRead(plain.fd(), true);
  if (!direct) GTEST_SKIP() << direct.error().message();
  EXPECT_NE(fcntl(direct->fd(), F_GETFL) & O_DIRECT, 0);
  const File again = std::move(*ReopenForRead(direct->fd(), false));
  EXPECT_EQ(fcntl(again.fd(), F_GETFL) & O_DIRECT, 0);
}

TEST_F(DirectIo, MeterReadsEveryRangeOnceThroughEachDepth) {
  const File file = std::move(*File::OpenRead(path_));
  auto queue = std::move(*ReadQueue::OpenThreaded({.depth = 4, .thread_count = 2}));
  std::vector<ReadRange> ranges;
  for (uint64_t i = 0; i < 16; ++i) ranges.push_back({file.fd(), i * kPageBytes, kPageBytes});
  for (const uint32_t depth : {1u, 3u, 4u}) {
    const ReadRate rate = MeasureReads(*queue, ranges, buffer(), depth).value();
    EXPECT_EQ(rate.bytes, kSize);
    EXPECT_GT(rate.seconds, 0.0);
  }
  EXPECT_EQ(queue->free_count(), 4u);
}

TEST_F(DirectIo, MeterNamesTheOffsetThatCannotBeReadAndTheMemoryThatIsMissing) {
  const File file = std::move(*File::OpenRead(path_));
  auto queue = std::move(*ReadQueue::OpenThreaded({.depth = 4, .thread_count = 2}));
  const ReadRange ranges[] = {{file.fd(), 0, 4096}, {file.fd(), kSize, 4096}};
  const auto past = MeasureReads(*queue, ranges, buffer(), 2);
  ASSERT_FALSE(past.has_value());
  EXPECT_NE(past.error().message().find("offset 65536: No data"), std::string::npos)
      << past.error().message();
  const auto small = MeasureReads(*queue, ranges, buffer().first(4096), 2);
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().code(), ErrorCode::kInvalid);
  EXPECT_EQ(queue->free_count(), 4u);
}

}  // namespace
}  // namespace smoe::io
