#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string_view>
#include <vector>

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

// Long memory is summed by another text than streams are; short of the border and beyond it.
TEST(Checksum, OfLongMemoryIsThatOfTheStream) {
  std::vector<std::byte> bytes((size_t{256} << 10) + 5000);
  std::mt19937_64 random(6);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const size_t size : {bytes.size(), bytes.size() - 1, bytes.size() - 4999, size_t{256} << 10,
                            (size_t{256} << 10) - 1}) {
    for (const size_t begin : {size_t{0}, size_t{3}}) {
      const Bytes part = Bytes(bytes).subspan(begin, size - begin);
      ChecksumStream stream;
      stream.Add(part.first(1000));
      stream.Add(part.subspan(1000));
      EXPECT_EQ(Checksum(part), stream.Digest()) << size << " from " << begin;
    }
  }
}

}  // namespace
}  // namespace smoe
