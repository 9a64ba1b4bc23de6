// tensor/weights.h: a weight matrix in any of the formats we compute with, as a view.
//
// W is [rows][cols] row-major: y[row] = sum over col of W[row][col] * x[col].
// A matrix is always read in place, from a cache slot or from the trunk, and may be unaligned.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace smoe::tensor {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kSmoeQ4, kSmoeQ2 };

// Z of SMOE-Q2 and SMOE-Q4 in halves: weight = (2 code - kZ2) / kZ2 * scale.
inline constexpr int kSmoeQ2Zero2 = 3;
inline constexpr int kSmoeQ4Zero2 = 15;

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  uint32_t rows = 0;
  uint32_t cols = 0;
  // Dense formats: elements. SMOE formats: codes, low bits first, over the FLAT index
  // row * cols + col; rows need not start at a byte or a group when cols is odd or no multiple of
  // the group.
  Bytes data;
  // SMOE formats only: one f16 per group of group_size flat elements, ceil(rows * cols / group).
  Bytes scales;
  uint32_t group_size = 0;
};

inline bool IsQuantised(WeightFormat format) {
  return format == WeightFormat::kSmoeQ4 || format == WeightFormat::kSmoeQ2;
}
const char* WeightFormatName(WeightFormat format);  // "f32", "bf16", "q4", ...

// The weight in f32, exactly as the format defines it: (code - Z) / Z * scale for SMOE formats.
// A definition for tests and error measurement, not a fast path. Requires row, col inside.
float WeightAt(const WeightView& weights, uint32_t row, uint32_t col);

// The three matrices of one expert. gate, up: [ffn][d_model]; down: [d_model][ffn].
struct ExpertWeights {
  WeightView gate;
  WeightView up;
  WeightView down;
};

}  // namespace smoe::tensor
