// model/matrix_rows.h: rows of a trunk's matrix, from f32 to a format that memory has, and back.
//
// The one definition for the whole trunk and for the rows of an embedding that stays on the drive.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "tensor/quantise.h"
#include "tensor/tensor.h"
#include "tensor/weights.h"

namespace smoe::model {

// The type of the elements of f32, f16 or bf16.
tensor::DType DTypeOf(tensor::WeightFormat format);

// A matrix to be filled; elements or codes, and scales, of as many bytes as BytesOf says.
struct MatrixTarget {
  tensor::WeightFormat format = tensor::WeightFormat::kF32;
  uint64_t rows = 0;
  uint64_t cols = 0;
  MutableBytes elements;
  MutableBytes scales;
};

// Rows from `first_row` on, of weights that are finite; returns what the format has cost.
// Shapes:   weights [row count][cols]
// Requires: bf16, int8, or q4 in whole groups of a row; for int8 rows that begin a tile, or a
//           matrix of one row
// Errors:   kUnsupported for what the format cannot hold, by its element, counted from `weights`
// Threads:  any; calls for disjoint rows may run side by side
Result<tensor::QuantisationError> EncodeRows(const MatrixTarget& matrix, uint64_t first_row,
                                             std::span<const float> weights);

// A matrix in a format that a trunk has.
tensor::WeightView MatrixView(tensor::WeightFormat format, uint64_t rows, uint64_t cols, Bytes data,
                              Bytes scales);

// Row `row` in f32: an embedding look-up. `out` has as many elements as the matrix columns.
// Requires a format that a trunk has: f32, f16, bf16, int8, or q4 in whole groups of a row.
void DecodeRow(const tensor::WeightView& matrix, uint32_t row, std::span<float> out);

}  // namespace smoe::model
