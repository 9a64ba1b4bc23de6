// Pages of keys and values: places and bytes by hand, and what each kind may lose.
#include "kernels/kv_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/data_for_test.h"

namespace smoe::kernels {
namespace {

constexpr KvKind kKinds[] = {KvKind::kF32, KvKind::kF16, KvKind::kInt8};

// One head of one page; where nothing was written there are bytes of 0xee.
struct Page {
  Page(KvKind kind_in, size_t head_dim_in)
      : kind(kind_in),
        head_dim(head_dim_in),
        bytes(kAttentionPage * KvTokenBytes(kind, head_dim), std::byte{0xee}) {}
  void Write(const std::vector<float>& keys, const std::vector<float>& values, size_t row) {
    WriteKvToken(kScalarKernels, kind, keys.data(), values.data(), head_dim, row, bytes.data());
  }
  float KeyAt(size_t row, size_t index) const {
    return KvKeyAt(kind, bytes.data(), head_dim, row, index);
  }
  float ValueAt(size_t row, size_t index) const {
    return KvValueAt(kind, bytes.data(), head_dim, row, index);
  }
  int CodeAt(size_t at) const { return static_cast<int8_t>(bytes[at]); }
  int ScaleBitsAt(size_t at) const {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + at, sizeof(bits));
    return bits;
  }
  KvKind kind;
  size_t head_dim;
  std::vector<std::byte> bytes;
};

TEST(KvPage, TokensTakeTheBytesThatTheHeaderSays) {
  EXPECT_EQ(KvTokenBytes(KvKind::kF32, 128), 2u * 128 * 4);
  EXPECT_EQ(KvTokenBytes(KvKind::kF16, 128), 2u * 128 * 2);
  EXPECT_EQ(KvTokenBytes(KvKind::kInt8, 128), 2u * (128 + 4 * 2));
  EXPECT_EQ(KvTokenBytes(KvKind::kInt8, 33), 2u * (33 + 2 * 2));
  EXPECT_EQ(KvTokenBytes(KvKind::kInt8, 1), 2u * (1 + 2));
}

// Tokens before the row keep their bytes: written into a page of zeros they give the same page.
TEST(KvPage, ClearedTokensLeaveTheBytesOfTheOthersAndNothingElse) {
  for (const KvKind kind : kKinds) {
    for (const size_t row : {size_t{0}, size_t{1}, size_t{31}, size_t{32}}) {
      Page full(kind, 34);
      Page expected(kind, 34);
      std::fill(expected.bytes.begin(), expected.bytes.end(), std::byte{0});
      for (size_t token = 0; token < kAttentionPage; ++token) {
        std::vector<float> keys(34, 1 + static_cast<float>(token));
        std::vector<float> values(34, -3 - static_cast<float>(token));
        full.Write(keys, values, token);
        if (token < row) expected.Write(keys, values, token);
      }
      ClearKvTokens(kind, 34, row, full.bytes.data());
      EXPECT_EQ(full.bytes, expected.bytes) << KvKindName(kind) << ", row " << row;
    }
  }
}

TEST(KvPage, KindsHaveTheNamesThatOptionsTake) {
  EXPECT_STREQ(KvKindName(KvKind::kF32), "f32");
  EXPECT_STREQ(KvKindName(KvKind::kF16), "f16");
  EXPECT_STREQ(KvKindName(KvKind::kInt8), "int8");
}

// head_dim 34 has a group of 32 and one of 2. Places in bytes, from kv_page.h: keys' codes 34 x 32
// = 1088, their scales 2 x 32 x 2 = 128, so values begin at 1216, their scales at 2304.
TEST(KvPage, CodesAndScalesOfOneTokenLieWhereTheHeaderSays) {
  Page page(KvKind::kInt8, 34);
  ASSERT_EQ(page.bytes.size(), 2u * 1216);
  std::vector<float> keys(34, 0);
  std::vector<float> values(34, 0);
  keys[0] = 127;    // scale 1 = 0x3f80
  keys[1] = -2.5f;  // a tie: -2
  keys[2] = 3.5f;   // a tie: 4
  keys[33] = -0.5f * 127;
  values[31] = -254;  // scale 2 = 0x4000
  values[3] = 5;
  values[32] = 0x1p-100f * 127;  // scale 2^-100 = 0x0d80
  page.Write(keys, values, 7);
  EXPECT_EQ(page.CodeAt(0 * 32 + 7), 127);
  EXPECT_EQ(page.CodeAt(1 * 32 + 7), -2);
  EXPECT_EQ(page.CodeAt(2 * 32 + 7), 4);
  EXPECT_EQ(page.CodeAt(3 * 32 + 7), 0);
  EXPECT_EQ(page.CodeAt(33 * 32 + 7), -127);
  EXPECT_EQ(page.ScaleBitsAt(1088 + 0 * 64 + 7 * 2), 0x3f80);
  EXPECT_EQ(page.ScaleBitsAt(1088 + 1 * 64 + 7 * 2), 0x3f00);
  EXPECT_EQ(page.CodeAt(1216 + 7 * 34 + 31), -127);
  EXPECT_EQ(page.CodeAt(1216 + 7 * 34 + 3), 2);  // 2.5, a tie
  EXPECT_EQ(page.CodeAt(1216 + 7 * 34 + 32), 127);
  EXPECT_EQ(page.ScaleBitsAt(2304 + (7 * 2 + 0) * 2), 0x4000);
  EXPECT_EQ(page.ScaleBitsAt(2304 + (7 * 2 + 1) * 2), 0x0d80);
  EXPECT_EQ(page.KeyAt(7, 33), -63.5f);
  EXPECT_EQ(page.ValueAt(7, 3), 4);
  EXPECT_EQ(page.ValueAt(7, 32), 0x1p-100f * 127);
}

TEST(KvPage, ATokenIsWrittenNowhereElse) {
  for (const KvKind kind : kKinds) {
    for (const size_t head_dim : {1u, 31u, 40u, 128u}) {
      Page page(kind, head_dim);
      page.Write(std::vector<float>(head_dim, 1), std::vector<float>(head_dim, 2), 9);
      size_t written = 0;
      for (const std::byte byte : page.bytes) written += byte != std::byte{0xee} ? 1 : 0;
      EXPECT_EQ(written, KvTokenBytes(kind, head_dim)) << KvKindName(kind) << " " << head_dim;
    }
  }
}

TEST(KvPage, F32IsKeptAsItIs) {
  Rng rng(1);
  Page page(KvKind::kF32, 50);
  const std::vector<float> keys = RandomFloats(rng, 50);
  const std::vector<float> values = RandomFloats(rng, 50);
  page.Write(keys, values, 31);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(page.KeyAt(31, i), keys[i]);
    EXPECT_EQ(page.ValueAt(31, i), values[i]);
  }
}

// Half a scale, scale = absmax / 127 rounded to 8 bits (so at most 1 + 2^-8 of it); the rounding of
// x * (1 / scale), below 128 in f32, adds at most 2^-16 of a code.
TEST(KvPage, Int8IsOffByHalfAScaleAtMost) {
  Rng rng(2);
  constexpr size_t kHeadDim = 100;
  for (int trial = 0; trial < 2000; ++trial) {
    Page page(KvKind::kInt8, kHeadDim);
    // Up to the largest floats, and down to nearly the smallest that count.
    const float size = std::exp2(static_cast<float>(static_cast<int>(rng() % 210) - 87));
    const std::vector<float> x = RandomFloats(rng, kHeadDim, size / 8);
    page.Write(x, x, static_cast<size_t>(trial) % kAttentionPage);
    for (size_t i = 0; i < kHeadDim; ++i) {
      const size_t group = i / kKvGroup * kKvGroup;
      double max = 0;
      for (size_t at = group; at < std::min(group + kKvGroup, kHeadDim); ++at) {
        max = std::max(max, std::fabs(static_cast<double>(x[at])));
      }
      const double bound = max / 127 * (1 + 0x1p-8) * (0.5 + 0x1p-16);
      ASSERT_NEAR(page.KeyAt(static_cast<size_t>(trial) % kAttentionPage, i), x[i], bound) << size;
      ASSERT_EQ(page.KeyAt(static_cast<size_t>(trial) % kAttentionPage, i),
                page.ValueAt(static_cast<size_t>(trial) % kAttentionPage, i));
    }
  }
}

// The scale that rounding to bf16 makes smallest: absmax / 127 = 1 + 2^-8, a tie, becomes 1.
TEST(KvPage, TheLargestCodeIs127WhereTheScaleIsRoundedDown) {
  Page page(KvKind::kInt8, 2);
  const float max = 127 * (1 + 0x1p-8f);
  page.Write({max, -max}, {-max, max}, 0);
  EXPECT_EQ(page.ScaleBitsAt(2 * 32), 0x3f80);
  EXPECT_EQ(page.KeyAt(0, 0), 127);
  EXPECT_EQ(page.KeyAt(0, 1), -127);
}

TEST(KvPage, AGroupWithNanOrInfinityReadsAsNanAndItsNeighboursAsThemselves) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Page page(KvKind::kInt8, 64);
    std::vector<float> keys(64, 127);
    std::vector<float> values(64, 127);
    keys[5] = bad;
    values[63] = bad;
    page.Write(keys, values, 0);
    page.Write(std::vector<float>(64, 127), std::vector<float>(64, 127), 1);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(std::isnan(page.KeyAt(0, i)), i < 32);
      EXPECT_EQ(std::isnan(page.ValueAt(0, i)), i >= 32);
      EXPECT_EQ(page.KeyAt(1, i), 127);
      EXPECT_EQ(page.ValueAt(1, i), 127);
    }
  }
}

TEST(KvPage, AGroupOfNothingButTinyNumbersIsZero) {
  Page page(KvKind::kInt8, 3);
  page.Write({0x1p-101f, -0x1p-149f, 0}, {0x1p-100f, 0, -0.0f}, 2);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(page.KeyAt(2, i), 0);
  EXPECT_NEAR(page.ValueAt(2, 0), 0x1p-100, 0x1p-108);  // the scale's rounding to 8 bits
}

}  // namespace
}  // namespace smoe::kernels
