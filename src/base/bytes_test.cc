#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string_view>

namespace smoe {
namespace {

TEST(RangeFits, NeverWraps) {
  EXPECT_TRUE(RangeFits(0, 0, 0));
  EXPECT_TRUE(RangeFits(4, 6, 10));
  EXPECT_FALSE(RangeFits(4, 7, 10));
  EXPECT_FALSE(RangeFits(11, 0, 10));
  EXPECT_FALSE(RangeFits(std::numeric_limits<uint64_t>::max(), 2, 10));
  EXPECT_FALSE(RangeFits(2, std::numeric_limits<uint64_t>::max(), 10));
}

TEST(CheckedMul, SaysWhen64BitsDoNotSuffice) {
  EXPECT_EQ(CheckedMul(uint64_t{1} << 31, uint64_t{1} << 32), uint64_t{1} << 63);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 33, uint64_t{1} << 33), std::nullopt);
}

// Source: the test vectors in the xxHash repository's documentation (XXH3_64bits, seed 0).
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(Checksum({}), 0x2D06800538D394C2u);
  ChecksumStream stream;
  stream.Add(AsBytes(std::string_view("smo")));
  stream.Add(AsBytes(std::string_view("e")));
  EXPECT_EQ(stream.Digest(), Checksum(AsBytes(std::string_view("smoe"))));
}

}  // namespace
}  // namespace smoe
