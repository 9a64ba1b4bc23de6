#include "io/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "io/aliased_buffer_for_test.h"
#include "io/atomic_file.h"
#include "io/file_checksum.h"

namespace smoe::io {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("smoe_file_{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& name, const std::string& content) const {
    const auto file = File::Create(Path(name));
    EXPECT_TRUE(file);
    EXPECT_TRUE(file->WriteAt(0, AsBytes(content)));
    return Path(name);
  }

  fs::path folder_;
};

TEST_F(FileTest, ReadsWhatWasWrittenAtItsOffset) {
  const std::string path = Write("a", "hello world");
  const auto file = File::OpenRead(path);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->Size().value(), 11U);
  std::string text(5, ' ');
  ASSERT_TRUE(file->ReadAt(6, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, "world");
}

TEST_F(FileTest, AShortFileIsCorruptWithOffsetWantedAndGot) {
  const auto file = File::OpenRead(Write("a", "hello"));
  std::string text(10, ' ');
  const auto status = file->ReadAt(2, std::as_writable_bytes(std::span(text)));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message(),
              HasSubstr("offset 2: 10 bytes wanted, the file ends after 3"));
}

TEST_F(FileTest, RefusesWhatIsNoFileAndNeverWaits) {
  EXPECT_EQ(File::OpenRead(Path("absent")).error().code(), ErrorCode::kIo);
  EXPECT_THAT(File::OpenRead(Path("absent")).error().message(), HasSubstr("No such file"));
  EXPECT_THAT(File::OpenRead(folder_.string()).error().message(), HasSubstr("is a folder"));
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(File::OpenRead(Path("pipe")).error().message(), HasSubstr("is a pipe"));
  for (const char* device : {"/dev/zero", "/dev/null"}) {
    EXPECT_EQ(File::OpenRead(device).error().code(), ErrorCode::kInvalid) << device;
    EXPECT_THAT(ReadWholeFile(device, 1).error().message(), HasSubstr("is a device")) << device;
  }
}

TEST_F(FileTest, MovingLeavesOneOwner) {
  auto first = File::OpenRead(Write("a", "x"));
  File second = std::move(*first);
  EXPECT_FALSE(first->is_open());
  EXPECT_TRUE(second.is_open());
  second = File();
  EXPECT_FALSE(second.is_open());
}

TEST_F(FileTest, DirectReadsGiveTheSameBytesOrAreRefusedAloud) {
  std::string content(3 * kDirectAlignment, 'x');
  content[kDirectAlignment] = 'y';
  const auto file = File::OpenDirect(Write("a", content));
  if (!file) {
    EXPECT_EQ(file.error().code(), ErrorCode::kUnsupported);
    GTEST_SKIP() << file.error().message();
  }
  auto buffer = AlignedBuffer::Create(kDirectAlignment, "test");
  ASSERT_TRUE(file->ReadAt(kDirectAlignment, buffer->bytes()));
  EXPECT_EQ(buffer->data()[0], std::byte{'y'});
  EXPECT_EQ(File::OpenDirect(Path("absent")).error().code(), ErrorCode::kIo);
}

TEST_F(FileTest, DirectWritesAreSeenByOtherReaders) {
  const std::string path = Write("a", std::string(3 * kDirectAlignment, 'x'));
  const auto file = File::OpenDirectWrite(path);
  if (!file) {
    EXPECT_EQ(file.error().code(), ErrorCode::kUnsupported);
    GTEST_SKIP() << file.error().message();
  }
  auto buffer = AlignedBuffer::Create(kDirectAlignment, "test");
  std::fill_n(buffer->data(), kDirectAlignment, std::byte{'y'});
  ASSERT_TRUE(file->WriteAt(kDirectAlignment, buffer->bytes()));
  EXPECT_EQ(*ReadWholeFile(path, 1 << 20), std::string(kDirectAlignment, 'x') +
                                               std::string(kDirectAlignment, 'y') +
                                               std::string(kDirectAlignment, 'x'));
  EXPECT_EQ(File::OpenDirectWrite(Path("absent")).error().code(), ErrorCode::kIo);
}

TEST_F(FileTest, ReservedRoomIsPartOfTheFileAndZero) {
  const std::string path = Write("a", "xy");
  const auto file = File::OpenReadWrite(path);
  ASSERT_TRUE(file->Reserve(0));
  EXPECT_EQ(*file->Size(), 2U);
  ASSERT_TRUE(file->Reserve(5));
  if (*file->Size() == 2) GTEST_SKIP() << "this file system reserves no room";
  EXPECT_EQ(*ReadWholeFile(path, 100), std::string("xy\0\0\0", 5));
  // More than any drive holds: refused before a byte is written.
  const Status refused = file->Reserve(uint64_t{1} << 61);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
}

TEST(IsDirectAligned, AsksForAddressSizeAndOffset) {
  auto buffer = AlignedBuffer::Create(3 * kDirectAlignment, "test");
  ASSERT_TRUE(buffer);
  const Bytes bytes = buffer->bytes();
  EXPECT_TRUE(IsDirectAligned(bytes.first(kDirectAlignment), 2 * kDirectAlignment));
  EXPECT_FALSE(IsDirectAligned(bytes.subspan(512, kDirectAlignment), 0));
  EXPECT_FALSE(IsDirectAligned(bytes.first(kDirectAlignment + 512), 0));
  EXPECT_FALSE(IsDirectAligned(bytes.first(kDirectAlignment), 512));
}

// The kernel moves 0x7ffff000 bytes a call at most, for /dev/null too.
TEST(File, OneWriteGoesBeyondTwoGiB) {
  const auto file = File::OpenReadWrite("/dev/null");
  ASSERT_TRUE(file) << file.error().message();
  const AliasedBuffer buffer((size_t{1} << 31) + 12345);
  const auto status = file->WriteAt(0, buffer.bytes());
  EXPECT_TRUE(status) << status.error().message();
}

TEST_F(FileTest, TheDriveThatTakesNoMoreIsNamed) {
  const auto file = File::OpenReadWrite("/dev/full");
  if (!file) GTEST_SKIP() << file.error().message();
  const auto status = file->WriteAt(0, AsBytes(std::string_view("abc")));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kExhausted);
  EXPECT_THAT(status.error().message(), HasSubstr("3 bytes to write, 0 written"));
}

TEST_F(FileTest, WholeFilesAreReadUpToTheirCap) {
  const std::string path = Write("a", "12345");
  EXPECT_EQ(ReadWholeFile(path, 5).value(), "12345");
  const auto refused = ReadWholeFile(path, 4);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(refused.error().message(), HasSubstr("5 bytes, at most 4"));
}

// XXH3-64 of "cdefg", by the library's own one-call form.
TEST_F(FileTest, ChecksumOfAStretchIsThatOfItsBytesWhateverThePieces) {
  const std::string path = Path("stretch");
  ASSERT_TRUE(WriteFileAtomically(path, AsBytes(std::string("abcdefgh")), false));
  const File file = File::OpenRead(path).value();
  const uint64_t expected = Checksum(AsBytes(std::string("cdefg")));
  for (const size_t buffer_bytes : {1u, 2u, 5u, 64u}) {
    std::vector<std::byte> buffer(buffer_bytes);
    std::string seen;
    const auto checksum = ChecksumOfStretch(file, 2, 5, buffer, [&](uint64_t at, Bytes piece) {
      EXPECT_EQ(at, seen.size());
      seen.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return Status();
    });
    EXPECT_EQ(checksum.value(), expected);
    EXPECT_EQ(seen, "cdefg");
  }
  std::vector<std::byte> buffer(3);
  EXPECT_EQ(ChecksumOfStretch(file, 2, 9, buffer).error().code(), ErrorCode::kCorrupt);
  const auto stopped = ChecksumOfStretch(
      file, 0, 8, buffer, [](uint64_t, Bytes) -> Status { return Invalid("no further"); });
  EXPECT_EQ(stopped.error().message(), "no further");
}

// Source: man 5 proc; statfs of it gives 0 blocks of 0.
TEST_F(FileTest, AFileSystemThatCountsNoBlocksIsNotTakenForFull) {
  EXPECT_EQ(FreeSpace("/proc/self").value(), kFreeSpaceUnknown);
}

TEST_F(FileTest, FreeSpaceIsKnownForAPathThatIsNotThereYet) {
  EXPECT_GT(FreeSpace(Path("not/yet/there")).value(), 0U);
  EXPECT_GT(FreeSpace("relative").value(), 0U);
  EXPECT_GT(FreeSpace("/absent/too").value(), 0U);
}

TEST_F(FileTest, SizeSyncAndHintsWork) {
  const auto file = File::OpenOrCreate(Path("a"));
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->Truncate(100));
  EXPECT_EQ(file->Size().value(), 100U);
  EXPECT_TRUE(file->Sync());
  file->StartWriteback(0, 100);
  file->DropFromPageCache(0, 100);
  EXPECT_TRUE(SyncDirectoryOf(Path("a")));
  EXPECT_EQ(File::OpenOrCreate(Path("a"))->Size().value(), 100U);
  EXPECT_EQ(File::Create(Path("a"))->Size().value(), 0U);
}

}  // namespace
}  // namespace smoe::io
