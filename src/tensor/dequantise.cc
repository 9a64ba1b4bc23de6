#include "tensor/dequantise.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/quantise.h"
#include "tensor/quantise_int8.h"
#include "tensor/tensor.h"

namespace smoe::tensor {

namespace {

// Rows of an NVFP4 matrix that are filled together: each line of the record gives this many codes,
// and as many lines of `out` stay in the first cache.
constexpr uint32_t kRowBlock = 64;

std::array<float, 256> MakeScaleTable() {
  std::array<float, 256> table;
  for (uint32_t code = 0; code < 256; ++code) {
    table[code] = F32FromF8E4M3(static_cast<uint8_t>(code));
  }
  return table;
}

std::array<float, 16> MakeCodeTable() {
  std::array<float, 16> table;
  for (uint32_t code = 0; code < 16; ++code) table[code] = F32FromE2M1(code);
  return table;
}

void DequantiseNvfp4(const WeightView& weights, std::span<float> out) {
  static const std::array<float, 256> kScales = MakeScaleTable();
  static const std::array<float, 16> kCodes = MakeCodeTable();
  const uint64_t rows = weights.rows;
  const uint64_t cols = weights.cols;
  SMOE_CHECK(weights.data.size() == rows * cols / 2);
  SMOE_CHECK(weights.scales.size() == rows * (cols / kNvfp4Group));
  for (uint64_t first_row = 0; first_row < rows; first_row += kRowBlock) {
    const uint64_t end_row = std::min<uint64_t>(rows, first_row + kRowBlock);
    for (uint64_t col = 0; col < cols; col += 2) {
      const Bytes codes = weights.data.subspan(col / 2 * rows, rows);
      const Bytes scales = weights.scales.subspan(col / kNvfp4Group * rows, rows);
      for (uint64_t row = first_row; row < end_row; ++row) {
        const uint32_t pair = std::to_integer<uint32_t>(codes[row]);
        const float scale = kScales[std::to_integer<uint32_t>(scales[row])];
        float* to = &out[row * cols + col];
        to[0] = kCodes[pair & 15u] * scale * weights.scale2;
        to[1] = kCodes[pair >> 4] * scale * weights.scale2;
      }
    }
  }
}

}  // namespace

void Dequantise(const WeightView& weights, std::span<float> out) {
  SMOE_CHECK(out.size() == uint64_t{weights.rows} * weights.cols);
  switch (weights.format) {
    case WeightFormat::kF32:
      return ToF32({DType::kF32, {out.size()}, weights.data}, 0, out);
    case WeightFormat::kF16:
      return ToF32({DType::kF16, {out.size()}, weights.data}, 0, out);
    case WeightFormat::kBF16:
      return ToF32({DType::kBF16, {out.size()}, weights.data}, 0, out);
    case WeightFormat::kSmoeQ4:
      return DequantiseSmoe(weights.data, weights.scales, SmoeBits::kQ4, weights.group_size, out);
    case WeightFormat::kSmoeQ2:
      return DequantiseSmoe(weights.data, weights.scales, SmoeBits::kQ2, weights.group_size, out);
    case WeightFormat::kNvfp4:
      return DequantiseNvfp4(weights, out);
    case WeightFormat::kInt8:
      for (uint32_t row = 0; row < weights.rows; ++row) {
        DequantiseInt8Row(weights, row, out.subspan(uint64_t{row} * weights.cols, weights.cols));
      }
      return;
  }
}

}  // namespace smoe::tensor
