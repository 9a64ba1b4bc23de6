#include "base/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace smoe {
namespace {

TEST(AlignedBuffer, TableIsZeroedAlignedAndOfTheAskedSize) {
  Result<AlignedBuffer> buffer = AlignedBuffer::CreateTable(3, 1000, sizeof(float), "test");
  ASSERT_TRUE(buffer.has_value());
  EXPECT_EQ(buffer->size(), 12'000u);
  EXPECT_EQ(buffer->As<float>().size(), 3000u);
  EXPECT_TRUE(AllZero(buffer->bytes()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kPageBytes, 0u);
}

TEST(AlignedBuffer, DiscardZeroesWholePagesOfTheRangeAndNothingElse) {
  constexpr uint64_t kSize = 3 * kPageBytes + 100;
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(kSize, "test");
  ASSERT_TRUE(buffer.has_value());
  const auto fill = [&] { std::fill_n(buffer->data(), kSize, std::byte{7}); };
  const auto zeros = [&] {
    return std::count(buffer->data(), buffer->data() + kSize, std::byte{0});
  };
  fill();
  buffer->Discard(1, 2 * kPageBytes);  // touches three pages, covers one
  EXPECT_EQ(zeros(), static_cast<ptrdiff_t>(kPageBytes));
  EXPECT_EQ(buffer->data()[kPageBytes - 1], std::byte{7});
  EXPECT_EQ(buffer->data()[kPageBytes], std::byte{0});
  EXPECT_EQ(buffer->data()[2 * kPageBytes], std::byte{7});
  fill();
  buffer->Discard(2 * kPageBytes, kSize - 2 * kPageBytes);  // to the end: the part page, too
  EXPECT_EQ(zeros(), static_cast<ptrdiff_t>(kPageBytes + 100));
  fill();
  buffer->Discard(5, 10);
  EXPECT_EQ(zeros(), 0);
}

TEST(AlignedBuffer, LockBeyondTheLimitNamesBothSizes) {
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(kPageBytes * 4, "test");
  ASSERT_TRUE(buffer.has_value());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit tight = {kPageBytes, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &tight), 0);
  const Status locked = buffer->Lock();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (locked) GTEST_SKIP() << "this user may lock anything (CAP_IPC_LOCK)";
  EXPECT_EQ(locked.error().message().find("16.0 KiB to lock, the process may lock 4.0 KiB"), 0u)
      << locked.error().message();
}

TEST(AlignedBuffer, SizeThatOverflowsIsExhaustedAndNamesItsPurpose) {
  const uint64_t half = uint64_t{1} << 32;
  for (const auto& buffer : {AlignedBuffer::CreateTable(half, half, 1, "rows of test"),
                             AlignedBuffer::CreateTable(half, half / 4, 4, "rows of test")}) {
    ASSERT_FALSE(buffer.has_value());
    EXPECT_EQ(buffer.error().code(), ErrorCode::kExhausted);
    EXPECT_EQ(buffer.error().message().find("rows of test: 4294967296 x "), 0u)
        << buffer.error().message();
  }
}

TEST(AlignedBuffer, MoreThanTheSystemHasIsExhausted) {
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(uint64_t{1} << 60, "test");
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(buffer.error().code(), ErrorCode::kExhausted);
}

}  // namespace
}  // namespace smoe
