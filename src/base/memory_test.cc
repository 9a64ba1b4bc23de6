#include "base/memory.h"

#include <gtest/gtest.h>

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
