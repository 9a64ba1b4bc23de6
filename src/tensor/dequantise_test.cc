#include "tensor/dequantise.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "tensor/quantise.h"

namespace smoe::tensor {
namespace {

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

// Keeps scales finite: f16 without the largest exponent, E4M3 without NaN and sign.
void TameScales(WeightFormat format, std::vector<std::byte>* scales) {
  for (size_t i = 0; i < scales->size(); ++i) {
    std::byte& byte = (*scales)[i];
    if (format == WeightFormat::kNvfp4) {
      byte &= std::byte{0x77};
    } else if (i % 2 == 1) {
      byte &= std::byte{0xbb};
    }
  }
}

void ExpectEqualsDefinition(const WeightView& view) {
  std::vector<float> out(uint64_t{view.rows} * view.cols);
  Dequantise(view, out);
  for (uint32_t row = 0; row < view.rows; ++row) {
    for (uint32_t col = 0; col < view.cols; ++col) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[uint64_t{row} * view.cols + col]),
                std::bit_cast<uint32_t>(WeightAt(view, row, col)))
          << WeightFormatName(view.format) << " " << row << " " << col;
    }
  }
}

TEST(Dequantise, EqualsTheDefinitionInEveryFormat) {
  for (const auto& [rows, cols] : {std::pair{1u, 16u}, {3u, 32u}, {65u, 48u}, {130u, 64u}}) {
    const uint64_t count = uint64_t{rows} * cols;
    for (const WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kSmoeQ4,
          WeightFormat::kSmoeQ2, WeightFormat::kNvfp4}) {
      std::vector<std::byte> data = RandomBytes(count * 4, 1);
      std::vector<std::byte> scales = RandomBytes(count, 2);
      TameScales(format, &scales);
      WeightView view{.format = format, .rows = rows, .cols = cols, .data = {}, .scales = {}};
      if (!IsQuantised(format)) {
        for (size_t i = 1; i < data.size(); i += 2) data[i] &= std::byte{0xbb};
        view.data = Bytes(data).first(count * (format == WeightFormat::kF32 ? 4 : 2));
      } else if (format == WeightFormat::kNvfp4) {
        view.data = Bytes(data).first(count / 2);
        view.scales = Bytes(scales).first(count / kNvfp4Group);
        view.group_size = kNvfp4Group;
        view.scale2 = 0.37f;
      } else {
        const SmoeBits bits = format == WeightFormat::kSmoeQ4 ? SmoeBits::kQ4 : SmoeBits::kQ2;
        view.group_size = 32;
        view.data = Bytes(data).first(PackedBytes(count, bits));
        view.scales = Bytes(scales).first(ScaleBytes(count, view.group_size));
      }
      ExpectEqualsDefinition(view);
    }
  }
}

// Rows that start inside a byte and inside a group.
TEST(Dequantise, TakesOddShapes) {
  const uint64_t count = 7 * 5;
  std::vector<std::byte> data = RandomBytes(PackedBytes(count, SmoeBits::kQ4), 3);
  std::vector<std::byte> scales = RandomBytes(ScaleBytes(count, 8), 4);
  TameScales(WeightFormat::kSmoeQ4, &scales);
  ExpectEqualsDefinition({WeightFormat::kSmoeQ4, 7, 5, data, scales, 8});
}

// One byte 0xA1: column 0 is code 1 (0.5), column 1 code 10 (-1); scale byte 0x40 is 2; scale2 3.
TEST(Dequantise, Nvfp4ByHand) {
  std::vector<std::byte> data(8, std::byte{0});
  data[0] = std::byte{0xa1};
  const std::vector<std::byte> scales = {std::byte{0x40}};
  std::vector<float> out(16);
  Dequantise({WeightFormat::kNvfp4, 1, 16, data, scales, 16, 3.0f}, out);
  EXPECT_EQ(out[0], 3.0f);
  EXPECT_EQ(out[1], -6.0f);
  EXPECT_EQ(out[2], 0.0f);
}

}  // namespace
}  // namespace smoe::tensor
