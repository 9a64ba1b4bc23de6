#include "io/read_progress.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace smoe::io {
namespace {

// The kernel's answers are given by hand; the buffer is never touched.
ReadRequest RequestOf(std::byte* data, uint64_t size, uint64_t offset) {
  return {.fd = -1, .offset = offset, .into = {data, size}, .tag = 7};
}

TEST(ReadProgress, FullReadIsFinishedWithoutAnError) {
  std::byte data[100];
  ReadProgress read(RequestOf(data, 100, 5));
  EXPECT_EQ(read.offset(), 5u);
  EXPECT_EQ(read.length(), 100u);
  EXPECT_TRUE(read.Advance(100));
  EXPECT_EQ(read.error(), 0);
}

TEST(ReadProgress, ShortReadGoesOnBehindWhatCame) {
  std::byte data[100];
  ReadProgress read(RequestOf(data, 100, 5));
  EXPECT_FALSE(read.Advance(1));
  EXPECT_EQ(read.offset(), 6u);
  EXPECT_EQ(read.data(), data + 1);
  EXPECT_EQ(read.length(), 99u);
  EXPECT_FALSE(read.Advance(98));
  EXPECT_EQ(read.length(), 1u);
  EXPECT_TRUE(read.Advance(1));
  EXPECT_EQ(read.error(), 0);
}

TEST(ReadProgress, InterruptedReadIsMadeAgainFromWhereItWas) {
  std::byte data[100];
  ReadProgress read(RequestOf(data, 100, 0));
  EXPECT_FALSE(read.Advance(-EINTR));
  EXPECT_EQ(read.length(), 100u);
  EXPECT_FALSE(read.Advance(60));
  EXPECT_FALSE(read.Advance(-EINTR));
  EXPECT_FALSE(read.Advance(-EAGAIN));
  EXPECT_EQ(read.offset(), 60u);
  EXPECT_EQ(read.length(), 40u);
  EXPECT_TRUE(read.Advance(40));
  EXPECT_EQ(read.error(), 0);
}

TEST(ReadProgress, NothingMoreToReadIsTheEndOfTheFile) {
  std::byte data[100];
  ReadProgress read(RequestOf(data, 100, 0));
  EXPECT_FALSE(read.Advance(99));
  EXPECT_TRUE(read.Advance(0));
  EXPECT_EQ(read.error(), ENODATA);
}

TEST(ReadProgress, ErrnoOfTheKernelIsTheError) {
  std::byte data[100];
  ReadProgress read(RequestOf(data, 100, 0));
  EXPECT_FALSE(read.Advance(50));
  EXPECT_TRUE(read.Advance(-EIO));
  EXPECT_EQ(read.error(), EIO);
}

TEST(ReadProgress, EmptyReadIsFinishedByItsFirstCall) {
  ReadProgress read(RequestOf(nullptr, 0, 0));
  EXPECT_EQ(read.length(), 0u);
  EXPECT_TRUE(read.Advance(0));
  EXPECT_EQ(read.error(), 0);
}

TEST(ReadProgress, MoreThanOneCallMovesIsCutAndGoesOnIn64Bits) {
  // Three billion bytes at five billion: both beyond 32 bits.
  std::byte* const nowhere = nullptr;
  const uint64_t size = 3'000'000'000;
  ReadProgress read(RequestOf(nowhere, size, 5'000'000'000));
  EXPECT_EQ(read.length(), 0x7ffff000u);
  EXPECT_FALSE(read.Advance(0x7ffff000));
  EXPECT_EQ(read.offset(), 5'000'000'000 + 0x7ffff000ull);
  EXPECT_EQ(read.length(), size - 0x7ffff000u);
  EXPECT_TRUE(read.Advance(static_cast<int64_t>(size - 0x7ffff000u)));
  EXPECT_EQ(read.error(), 0);
}

}  // namespace
}  // namespace smoe::io
