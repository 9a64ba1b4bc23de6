// tensor/weights.h: a weight matrix in any of the formats we compute with, as a view.
//
// y[row] = sum over col of W[row][col] * x[col]: rows are outputs, cols are inputs. W is row-major,
// [rows][cols], except in NVFP4, which is kept as its records hold it: transposed, and in int8,
// which is kept as the kernels want it: in tiles.
// A matrix is always read in place, from a cache slot or from the trunk, and may be unaligned.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"

namespace smoe::tensor {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kSmoeQ4, kSmoeQ2, kNvfp4, kInt8 };

// Z of SMOE-Q2 and SMOE-Q4 in halves: weight = (2 code - kZ2) / kZ2 * scale.
inline constexpr int kSmoeQ2Zero2 = 3;
inline constexpr int kSmoeQ4Zero2 = 15;

inline constexpr uint32_t kNvfp4Group = 16;  // columns of one row that share an NVFP4 scale

// int8, the format of a quantised trunk: weight = code * scale, rounded once to f32; a code is s8,
// a scale f32 and shared by kInt8Group columns of one row. The quantiser makes codes within +-127;
// -128 counts as any other code. Layout:
//
//   data    per block of kInt8TileRows rows all columns, in tiles of 16 rows x 4 columns,
//           [row in block][4 columns] = 64 bytes, one behind another. A lane of 32 bits thus holds
//           four columns of one row: rows lie in lanes without transposing.
//   scales  per block of rows [group][row in block]
//   padding columns to a whole group and rows to a whole block, with codes and scales 0
//
// So a block of rows is one stretch of 16 * padded columns bytes, and another of 64 * groups bytes.
// tensor/quantise_int8.h fills both.
inline constexpr uint32_t kInt8Group = 64;
inline constexpr uint32_t kInt8TileRows = 16;
inline constexpr uint32_t kInt8TileCols = 4;

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  uint32_t rows = 0;
  uint32_t cols = 0;
  // Dense formats: elements. SMOE formats: codes, low bits first, over the FLAT index
  // row * cols + col; rows need not start at a byte or a group when cols is odd or no multiple of
  // the group. NVFP4: E2M1 codes [cols / 2][rows]; the byte at (col / 2) * rows + row holds an even
  // column of that row in its low nibble and the next column in its high one.
  // int8: Int8CodeBytes, as described at kInt8Group.
  Bytes data;
  // SMOE formats: one f16 per group of group_size flat elements, ceil(rows * cols / group).
  // NVFP4: one E4M3 byte per row and kNvfp4Group columns, [cols / kNvfp4Group][rows].
  // int8: Int8ScaleBytes.
  Bytes scales;
  uint32_t group_size = 0;  // NVFP4: kNvfp4Group, and cols is a multiple of it; int8: kInt8Group
  float scale2 = 1;         // NVFP4 only: the global scale of the matrix
};

inline bool IsQuantised(WeightFormat format) {
  return format == WeightFormat::kSmoeQ4 || format == WeightFormat::kSmoeQ2 ||
         format == WeightFormat::kNvfp4 || format == WeightFormat::kInt8;
}
const char* WeightFormatName(WeightFormat format);  // "f32", "bf16", "q4", "nvfp4", "int8", ...

// Bytes of an int8 matrix, padding included; nullopt if they exceed 64 bits.
std::optional<uint64_t> Int8CodeBytes(uint64_t rows, uint64_t cols);
std::optional<uint64_t> Int8ScaleBytes(uint64_t rows, uint64_t cols);

// Where the code (a byte) and the scale (an f32) of a weight lie, in elements. Require a matrix
// whose Int8CodeBytes exist.
constexpr uint64_t Int8CodeIndex(uint64_t cols, uint64_t row, uint64_t col) {
  const uint64_t block_bytes = RoundUp(cols, kInt8Group) * kInt8TileRows;
  return row / kInt8TileRows * block_bytes + col / kInt8TileCols * kInt8TileRows * kInt8TileCols +
         row % kInt8TileRows * kInt8TileCols + col % kInt8TileCols;
}
constexpr uint64_t Int8ScaleIndex(uint64_t cols, uint64_t row, uint64_t col) {
  const uint64_t block_scales = CeilDiv(cols, kInt8Group) * kInt8TileRows;
  return row / kInt8TileRows * block_scales + col / kInt8Group * kInt8TileRows +
         row % kInt8TileRows;
}

// The value of an E2M1 code, 0..15: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same with a minus.
// Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3.
float F32FromE2M1(uint32_t code);

// The weight in f32, exactly as the format defines it: (code - Z) / Z * scale for SMOE formats,
// (E2M1(code) * E4M3(scale)) * scale2 for NVFP4, code * scale for int8.
// A definition for tests and error measurement, not a fast path. Requires row, col inside.
float WeightAt(const WeightView& weights, uint32_t row, uint32_t col);

// The three matrices of one expert. gate, up: [ffn][d_model]; down: [d_model][ffn].
struct ExpertWeights {
  WeightView gate;
  WeightView up;
  WeightView down;
};

}  // namespace smoe::tensor
