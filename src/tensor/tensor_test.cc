#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "tensor/weights.h"

namespace smoe::tensor {
namespace {

TEST(Shape, CountsElementsAndSaysWhen64BitsDoNotSuffice) {
  EXPECT_EQ(ElementCount({}), 1u);
  EXPECT_EQ(ElementCount({64, 128}), 8192u);
  EXPECT_EQ(ElementCount({64, 0, 128}), 0u);
  EXPECT_EQ(ElementCount({uint64_t{1} << 32, uint64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(ElementCount({uint64_t{1} << 32, uint64_t{1} << 32, 0}), std::nullopt);
  EXPECT_EQ(ElementCount({std::numeric_limits<uint64_t>::max()}),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ShapeText({64, 128}), "[64, 128]");
  EXPECT_EQ(ShapeText({}), "[]");
}

// 1, -2 and 0.5 in each type, behind one byte so that no element is aligned.
TEST(ToF32, ReadsUnalignedElementsOfEveryFloatType) {
  struct Row {
    DType dtype;
    std::vector<uint8_t> bytes;
  };
  const Row rows[] = {
      {DType::kF32, {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f}},
      {DType::kF16, {0, 0x3c, 0, 0xc0, 0, 0x38}},
      {DType::kBF16, {0x80, 0x3f, 0, 0xc0, 0, 0x3f}},
      {DType::kF64,
       {0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f}},
  };
  for (const Row& row : rows) {
    std::vector<uint8_t> shifted(row.bytes.size() + 1);
    std::memcpy(shifted.data() + 1, row.bytes.data(), row.bytes.size());
    const Bytes data = AsBytes(std::span<const uint8_t>(shifted)).subspan(1);
    const TensorView view = {.dtype = row.dtype, .shape = {3}, .data = data};
    std::array<float, 3> all = {};
    ToF32(view, 0, all);
    EXPECT_EQ(all, (std::array<float, 3>{1.0f, -2.0f, 0.5f})) << DTypeName(row.dtype);
    std::array<float, 2> last = {};
    ToF32(view, 1, last);
    EXPECT_EQ(last, (std::array<float, 2>{-2.0f, 0.5f})) << DTypeName(row.dtype);
    ToF32(view, 3, {});
  }
}

// Golden vector E of docs/formats/vault.md: 3x1 = 1, 2, 3 gives the Q4 bytes CA 0F with the scale
// 3.0 (0x4200), codes 10, 12, 15; the Q2 byte 3F, codes 3, 3, 3.
TEST(WeightAt, DecodesGoldenCodes) {
  const std::array<uint8_t, 2> q4 = {0xca, 0x0f};
  const std::array<uint8_t, 2> scale = {0x00, 0x42};
  WeightView view = {.format = WeightFormat::kSmoeQ4,
                     .rows = 3,
                     .cols = 1,
                     .data = AsBytes(std::span<const uint8_t>(q4)),
                     .scales = AsBytes(std::span<const uint8_t>(scale)),
                     .group_size = 64};
  EXPECT_EQ(WeightAt(view, 0, 0), 2.5f / 7.5f * 3.0f);
  EXPECT_EQ(WeightAt(view, 1, 0), 4.5f / 7.5f * 3.0f);
  EXPECT_EQ(WeightAt(view, 2, 0), 3.0f);
  const std::array<uint8_t, 1> q2 = {0x1b};  // codes 3, 2, 1, 0, low bits first
  view = {.format = WeightFormat::kSmoeQ2,
          .rows = 2,
          .cols = 2,
          .data = AsBytes(std::span<const uint8_t>(q2)),
          .scales = AsBytes(std::span<const uint8_t>(scale)),
          .group_size = 64};
  EXPECT_EQ(WeightAt(view, 0, 0), 3.0f);
  EXPECT_EQ(WeightAt(view, 0, 1), 0.5f / 1.5f * 3.0f);
  EXPECT_EQ(WeightAt(view, 1, 0), -0.5f / 1.5f * 3.0f);
  EXPECT_EQ(WeightAt(view, 1, 1), -3.0f);
}

// A 2x3 matrix in groups of 4: the second row starts inside a byte and inside the first group.
TEST(WeightAt, TakesGroupsOverTheFlatIndex) {
  const std::array<uint8_t, 3> codes = {0xff, 0xff, 0xff};
  const std::array<uint8_t, 4> scales = {0x00, 0x3c, 0x00, 0x40};  // 1.0, 2.0
  const WeightView view = {.format = WeightFormat::kSmoeQ4,
                           .rows = 2,
                           .cols = 3,
                           .data = AsBytes(std::span<const uint8_t>(codes)),
                           .scales = AsBytes(std::span<const uint8_t>(scales)),
                           .group_size = 4};
  EXPECT_EQ(WeightAt(view, 0, 2), 1.0f);
  EXPECT_EQ(WeightAt(view, 1, 0), 1.0f);
  EXPECT_EQ(WeightAt(view, 1, 1), 2.0f);
  EXPECT_EQ(WeightAt(view, 1, 2), 2.0f);
}

// 2 rows, 32 columns, transposed. Row 1 has code 0x7 (6) in column 0, 0xb (-1.5) in column 1 and
// 0x1 (0.5) in column 31; its scales are 0x01 (the least subnormal, 2^-9) and 0x7e (448).
TEST(WeightAt, DecodesNvfp4Transposed) {
  std::array<uint8_t, 32> codes = {};
  codes[1] = 0xb7;
  codes[15 * 2 + 1] = 0x10;
  codes[15 * 2] = 0xf0;
  const std::array<uint8_t, 4> scales = {0x38, 0x01, 0xb8, 0x7e};  // row 0: 1 and -1
  const WeightView view = {.format = WeightFormat::kNvfp4,
                           .rows = 2,
                           .cols = 32,
                           .data = AsBytes(std::span<const uint8_t>(codes)),
                           .scales = AsBytes(std::span<const uint8_t>(scales)),
                           .group_size = kNvfp4Group,
                           .scale2 = 3};
  EXPECT_EQ(WeightAt(view, 1, 0), 6 * 0x1p-9f * 3);
  EXPECT_EQ(WeightAt(view, 1, 1), -1.5f * 0x1p-9f * 3);
  EXPECT_EQ(WeightAt(view, 1, 2), 0.0f);
  EXPECT_EQ(WeightAt(view, 1, 31), 0.5f * 448 * 3);
  EXPECT_EQ(WeightAt(view, 0, 31), 6.0f * 3);
  EXPECT_EQ(WeightAt(view, 0, 0), 0.0f);
}

TEST(WeightFormat, HasANameForEach) {
  EXPECT_STREQ(WeightFormatName(WeightFormat::kF32), "f32");
  EXPECT_STREQ(WeightFormatName(WeightFormat::kF16), "f16");
  EXPECT_STREQ(WeightFormatName(WeightFormat::kBF16), "bf16");
  EXPECT_STREQ(WeightFormatName(WeightFormat::kSmoeQ4), "q4");
  EXPECT_STREQ(WeightFormatName(WeightFormat::kSmoeQ2), "q2");
  EXPECT_STREQ(WeightFormatName(WeightFormat::kNvfp4), "nvfp4");
}

}  // namespace
}  // namespace smoe::tensor
