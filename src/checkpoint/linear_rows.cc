// ReadLinearRows and CheckScales of checkpoint/linear_weight.h: codes and scales to floats.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "checkpoint/linear_weight.h"
#include "tensor/dtype.h"
#include "tensor/weights.h"

namespace smoe::checkpoint {

namespace {

using tensor::DType;

constexpr float kInt8CodeMax = 127;
constexpr uint64_t kScalesAtOnce = uint64_t{64} << 10;

// The only element of a scale, made the factor that codes are multiplied by.
Result<float> ReadGlobalScale(const TensorFiles& files, const LinearWeight& weight) {
  float stored = 0;
  SMOE_TRY(files.Read(*weight.global_scale.info, 0, std::as_writable_bytes(std::span(&stored, 1))));
  const float scale = weight.global_is_inverse ? 1.0F / stored : stored;
  if (std::isfinite(stored) && stored > 0 && std::isfinite(scale) && scale > 0) return scale;
  return Corrupt("tensor {}: {}, expected a finite number above 0{}", *weight.global_scale.name,
                 stored, weight.global_is_inverse ? " whose inverse is one too" : "");
}

std::array<float, 256> MakeE4M3Table() {
  std::array<float, 256> table = {};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = tensor::F32FromF8E4M3(static_cast<uint8_t>(i));
  }
  return table;
}

float F32FromE4M3(std::byte code) {
  static const std::array<float, 256> table = MakeE4M3Table();
  return table[std::to_integer<size_t>(code)];
}

// The rows to be read, and one scale for each block that they touch.
struct Rows {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t cols = 0;
  uint64_t first_block_row = 0;
  uint64_t blocks_per_row = 0;
  std::vector<float> scales;

  const float* ScalesOf(const LinearWeight& weight, uint64_t row) const {
    return scales.data() + ((first + row) / weight.block_rows - first_block_row) * blocks_per_row;
  }
};

Status ReadScales(const TensorFiles& files, const LinearWeight& weight, Rows* rows) {
  const TensorInfo& info = *weight.scales.info;
  const uint64_t element_bytes = tensor::DTypeBytes(info.dtype);
  const uint64_t first = rows->first_block_row * rows->blocks_per_row;
  std::vector<std::byte> bytes(rows->scales.size() * element_bytes);
  SMOE_TRY(files.Read(info, first * element_bytes, bytes));
  if (info.dtype == DType::kF8E4M3) {
    std::transform(bytes.begin(), bytes.end(), rows->scales.begin(), F32FromE4M3);
  } else {
    tensor::ToF32({info.dtype, {rows->scales.size()}, bytes}, 0, rows->scales);
  }
  for (size_t i = 0; i < rows->scales.size(); ++i) {
    const float scale = rows->scales[i];
    if (!std::isfinite(scale) || scale < 0) {
      return Corrupt("tensor {}: element {} is {}, expected a finite scale that is not below 0",
                     *weight.scales.name, first + i, scale);
    }
    if (weight.kind == LinearKind::kInt8 && !std::isfinite(scale * kInt8CodeMax)) {
      return Corrupt("tensor {}: element {} is {}, expected a scale whose {} fold is finite",
                     *weight.scales.name, first + i, scale, kInt8CodeMax);
    }
  }
  return Ok();
}

// -128 is no code of ours: symmetric codes keep every product inside what the kernels add up.
Status CheckInt8Codes(const LinearWeight& weight, uint64_t first, Bytes codes) {
  const auto bad = std::find(codes.begin(), codes.end(), std::byte{0x80});
  if (bad == codes.end()) return Ok();
  return Corrupt("tensor {}: element {} is -128, expected -127 to 127", *weight.codes.name,
                 first + static_cast<uint64_t>(bad - codes.begin()));
}

void DecodeInt8(Bytes codes, const LinearWeight& weight, const Rows& rows, std::span<float> out) {
  for (uint64_t row = 0; row < rows.count; ++row) {
    const float* scales = rows.ScalesOf(weight, row);
    const std::byte* in = codes.data() + row * rows.cols;
    float* to = out.data() + row * rows.cols;
    for (uint64_t col = 0; col < rows.cols; ++col) {
      to[col] = static_cast<float>(static_cast<int8_t>(in[col])) * scales[col / weight.block_cols];
    }
  }
}

// Codes of four bits, the even column in the low nibble, in whole blocks. Where there is no global
// scale it is 1: that product changes no bit.
void DecodeNibbles(Bytes codes, const LinearWeight& weight, const Rows& rows,
                   std::span<const float, 16> values, float global_scale, std::span<float> out) {
  for (uint64_t row = 0; row < rows.count; ++row) {
    const float* scales = rows.ScalesOf(weight, row);
    const std::byte* in = codes.data() + row * (rows.cols / 2);
    float* to = out.data() + row * rows.cols;
    for (uint64_t col = 0; col < rows.cols; col += weight.block_cols, ++scales) {
      for (uint64_t i = col; i < col + weight.block_cols; i += 2) {
        const auto pair = std::to_integer<uint32_t>(in[i / 2]);
        to[i] = values[pair & 0xf] * *scales * global_scale;
        to[i + 1] = values[pair >> 4] * *scales * global_scale;
      }
    }
  }
}

void DecodeQ4(Bytes codes, const LinearWeight& weight, const Rows& rows, std::span<float> out) {
  constexpr float kZero = tensor::kSmoeQ4Zero2 / 2.0F;
  std::array<float, 16> values = {};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = (static_cast<float>(code) - kZero) / kZero;
  }
  DecodeNibbles(codes, weight, rows, values, 1, out);
}

void DecodeNvfp4(Bytes codes, const LinearWeight& weight, const Rows& rows, float global_scale,
                 std::span<float> out) {
  std::array<float, 16> values = {};
  for (uint32_t code = 0; code < values.size(); ++code) values[code] = tensor::F32FromE2M1(code);
  DecodeNibbles(codes, weight, rows, values, global_scale, out);
}

void DecodeFp8(Bytes codes, const LinearWeight& weight, const Rows& rows, std::span<float> out) {
  for (uint64_t row = 0; row < rows.count; ++row) {
    const float* scales = rows.ScalesOf(weight, row);
    const std::byte* in = codes.data() + row * rows.cols;
    float* to = out.data() + row * rows.cols;
    for (uint64_t col = 0; col < rows.cols; ++col) {
      to[col] = F32FromE4M3(in[col]) * scales[col / weight.block_cols];
    }
  }
}

// Which blocks the rows [first_row, + row_count) touch, and their scales.
Result<Rows> FindRows(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                      uint64_t row_count) {
  SMOE_CHECK(row_count != 0 && RangeFits(first_row, row_count, weight.shape[0]));
  Rows rows;
  rows.first = first_row;
  rows.count = row_count;
  rows.cols = weight.shape[1];
  rows.first_block_row = first_row / weight.block_rows;
  rows.blocks_per_row = CeilDiv(rows.cols, weight.block_cols);
  const uint64_t last_block_row = (first_row + row_count - 1) / weight.block_rows;
  rows.scales.resize((last_block_row - rows.first_block_row + 1) * rows.blocks_per_row);
  SMOE_TRY(ReadScales(files, weight, &rows));
  return rows;
}

Status CheckAllCodes(const TensorFiles& files, const LinearWeight& weight) {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
  const uint64_t size = weight.codes.info->size;
  std::vector<std::byte> codes(std::min(size, kPieceBytes));
  for (uint64_t at = 0; at < size; at += kPieceBytes) {
    const MutableBytes piece = MutableBytes(codes).first(std::min(kPieceBytes, size - at));
    SMOE_TRY(files.Read(*weight.codes.info, at, piece));
    SMOE_TRY(CheckInt8Codes(weight, at, piece));
  }
  return Ok();
}

Status ReadFloats(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                  std::span<float> out, std::vector<std::byte>* staging) {
  const TensorInfo& info = *weight.codes.info;
  const uint64_t element_bytes = tensor::DTypeBytes(info.dtype);
  const uint64_t cols = weight.shape.size() == 2 ? weight.shape[1] : out.size();
  const uint64_t offset = first_row * cols * element_bytes;
  if (info.dtype == DType::kF32) return files.Read(info, offset, std::as_writable_bytes(out));
  staging->resize(std::max<uint64_t>(staging->size(), out.size() * element_bytes));
  const MutableBytes source = MutableBytes(*staging).first(out.size() * element_bytes);
  SMOE_TRY(files.Read(info, offset, source));
  tensor::ToF32({info.dtype, {out.size()}, source}, 0, out);
  return Ok();
}

}  // namespace

Status ReadLinearRows(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                      std::span<float> out, std::vector<std::byte>* staging) {
  if (out.empty()) return Ok();
  if (weight.kind == LinearKind::kFloat) {
    return ReadFloats(files, weight, first_row, out, staging);
  }
  SMOE_CHECK(out.size() % weight.shape[1] == 0);
  SMOE_TRY_ASSIGN(const Rows rows,
                  FindRows(files, weight, first_row, out.size() / weight.shape[1]));
  const uint64_t row_bytes = weight.codes.info->shape[1];
  staging->resize(std::max<uint64_t>(staging->size(), rows.count * row_bytes));
  const MutableBytes codes = MutableBytes(*staging).first(rows.count * row_bytes);
  SMOE_TRY(files.Read(*weight.codes.info, first_row * row_bytes, codes));
  switch (weight.kind) {
    case LinearKind::kFp8:
      DecodeFp8(codes, weight, rows, out);
      return Ok();
    case LinearKind::kInt8:
      SMOE_TRY(CheckInt8Codes(weight, first_row * row_bytes, codes));
      DecodeInt8(codes, weight, rows, out);
      return Ok();
    case LinearKind::kQ4:
      DecodeQ4(codes, weight, rows, out);
      return Ok();
    default:
      break;
  }
  SMOE_TRY_ASSIGN(const float global_scale, ReadGlobalScale(files, weight));
  DecodeNvfp4(codes, weight, rows, global_scale, out);
  return Ok();
}

Status ReadLinearCodes(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                       MutableBytes codes, MutableBytes scales) {
  SMOE_CHECK(weight.kind == LinearKind::kInt8 || weight.kind == LinearKind::kQ4);
  if (codes.empty()) return Ok();
  const uint64_t row_bytes = weight.codes.info->shape[1];
  const uint64_t row_count = codes.size() / row_bytes;
  SMOE_TRY_ASSIGN(const Rows rows, FindRows(files, weight, first_row, row_count));
  const uint64_t scale_bytes = rows.blocks_per_row * tensor::DTypeBytes(weight.scales.info->dtype);
  SMOE_CHECK(codes.size() == row_count * row_bytes && scales.size() == row_count * scale_bytes);
  SMOE_TRY(files.Read(*weight.codes.info, first_row * row_bytes, codes));
  SMOE_TRY(files.Read(*weight.scales.info, first_row * scale_bytes, scales));
  if (weight.kind == LinearKind::kQ4) return Ok();
  return CheckInt8Codes(weight, first_row * row_bytes, codes);
}

Status CheckScales(const TensorFiles& files, const LinearWeight& weight) {
  if (weight.kind == LinearKind::kFloat || weight.shape[0] == 0) return Ok();
  Rows rows;
  rows.blocks_per_row = CeilDiv(weight.shape[1], weight.block_cols);
  const uint64_t end = CeilDiv(weight.shape[0], weight.block_rows);
  const uint64_t step = kScalesAtOnce / std::max<uint64_t>(rows.blocks_per_row, 1) + 1;
  for (; rows.first_block_row < end; rows.first_block_row += step) {
    rows.scales.resize(std::min(step, end - rows.first_block_row) * rows.blocks_per_row);
    SMOE_TRY(ReadScales(files, weight, &rows));
  }
  if (weight.kind == LinearKind::kInt8) return CheckAllCodes(files, weight);
  if (weight.kind == LinearKind::kNvfp4) SMOE_TRY(ReadGlobalScale(files, weight));
  return Ok();
}

}  // namespace smoe::checkpoint
