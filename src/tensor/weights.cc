#include "tensor/weights.h"

#include "base/check.h"
#include "tensor/dtype.h"

namespace smoe::tensor {

namespace {

float Nvfp4WeightAt(const WeightView& weights, uint64_t row, uint64_t col) {
  const uint32_t byte = LoadStruct<uint8_t>(weights.data, col / 2 * weights.rows + row);
  const uint8_t scale = LoadStruct<uint8_t>(weights.scales, col / kNvfp4Group * weights.rows + row);
  return F32FromE2M1((byte >> (col % 2 * 4)) & 15u) * F32FromF8E4M3(scale) * weights.scale2;
}

float Int8WeightAt(const WeightView& weights, uint64_t row, uint64_t col) {
  const auto code = LoadStruct<int8_t>(weights.data, Int8CodeIndex(weights.cols, row, col));
  const auto scale =
      LoadStruct<float>(weights.scales, Int8ScaleIndex(weights.cols, row, col) * sizeof(float));
  return static_cast<float>(code) * scale;
}

// Rows in whole blocks times groups times bytes; nullopt on overflow.
std::optional<uint64_t> PaddedBytes(uint64_t rows, uint64_t cols, uint64_t bytes_per_group) {
  const std::optional<uint64_t> padded_rows =
      CheckedMul(CeilDiv(rows, kInt8TileRows), kInt8TileRows);
  const std::optional<uint64_t> row_bytes = CheckedMul(CeilDiv(cols, kInt8Group), bytes_per_group);
  if (!padded_rows || !row_bytes) return std::nullopt;
  return CheckedMul(*padded_rows, *row_bytes);
}

}  // namespace

std::optional<uint64_t> Int8CodeBytes(uint64_t rows, uint64_t cols) {
  return PaddedBytes(rows, cols, kInt8Group);
}

std::optional<uint64_t> Int8ScaleBytes(uint64_t rows, uint64_t cols) {
  return PaddedBytes(rows, cols, sizeof(float));
}

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kSmoeQ4:
      return "q4";
    case WeightFormat::kSmoeQ2:
      return "q2";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    case WeightFormat::kInt8:
      return "int8";
  }
  return "unknown";
}

float F32FromE2M1(uint32_t code) {
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  SMOE_CHECK(code < 16);
  return code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
}

float WeightAt(const WeightView& weights, uint32_t row, uint32_t col) {
  SMOE_CHECK(row < weights.rows && col < weights.cols);
  const uint64_t flat = uint64_t{row} * weights.cols + col;
  switch (weights.format) {
    case WeightFormat::kF32:
      return LoadStruct<float>(weights.data, flat * 4);
    case WeightFormat::kF16:
      return F32FromF16(LoadStruct<uint16_t>(weights.data, flat * 2));
    case WeightFormat::kBF16:
      return F32FromBF16(LoadStruct<uint16_t>(weights.data, flat * 2));
    case WeightFormat::kNvfp4:
      return Nvfp4WeightAt(weights, row, col);
    case WeightFormat::kInt8:
      return Int8WeightAt(weights, row, col);
    case WeightFormat::kSmoeQ4:
    case WeightFormat::kSmoeQ2:
      break;
  }
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  const uint32_t bits = is_q4 ? 4 : 2;
  const float zero = static_cast<float>(is_q4 ? kSmoeQ4Zero2 : kSmoeQ2Zero2) / 2;
  const uint32_t byte = LoadStruct<uint8_t>(weights.data, flat * bits / 8);
  const uint32_t code = (byte >> (flat * bits % 8)) & ((1u << bits) - 1);
  const float scale =
      F32FromF16(LoadStruct<uint16_t>(weights.scales, flat / weights.group_size * 2));
  return (static_cast<float>(code) - zero) / zero * scale;
}

}  // namespace smoe::tensor
