// tensor/quantise_int8.h: int8 matrices, from f32 or from codes in rows to the tiles that
// tensor/weights.h describes at kInt8Group, and back.
//
// Per group of 64 columns of one row (the last of a row may be short):
//
//   scale = absmax / 127     rounded once; one step less where 127 * scale would be infinite
//   code  = round half to even of weight * (127 / absmax), within +-127
//
// as the kernels quantise activations. A group without a magnitude of at least 2^-100 counts as all
// zero: scale 0, codes 0 (so 127 / absmax is finite, no scale is subnormal, and an error of a
// subnormal weight stays below 2^-100). Zeros of both signs become +0.
// Measured on normal weights: SNR 44.5 dB.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "tensor/quantise.h"
#include "tensor/weights.h"

namespace smoe::tensor {

// An int8 matrix to be filled, row after row, by any number of calls. codes: Int8CodeBytes(rows,
// cols), scales: Int8ScaleBytes(rows, cols). Padding columns are written with their row, padding
// rows with the last row, so that the memory need not be zeroed before.
struct Int8Target {
  uint32_t rows = 0;
  uint32_t cols = 0;
  MutableBytes codes;
  MutableBytes scales;
};

WeightView Int8View(const Int8Target& matrix);

// Quantises rows [first_row, first_row + row_count) of the matrix and returns what it cost.
// Shapes:   weights [row_count][cols], row-major
// Requires: the rows inside, sizes exact
// Errors:   kUnsupported naming row, column and value of a weight that is infinite or NaN
// Threads:  any; calls for disjoint rows may run side by side
// Cost:     no allocation; about 1 ns a weight
Result<QuantisationError> QuantiseInt8(const Int8Target& matrix, uint32_t first_row,
                                       uint32_t row_count, std::span<const float> weights);

// Puts codes and scales that lie in rows, as a file may hold them, into the tiles; any bytes, bits
// unchanged.
// Shapes:   row_codes [row_count][cols] s8, row_scales [row_count][ceil(cols / kInt8Group)] f32
// Requires, Threads: as above
void TileInt8(const Int8Target& matrix, uint32_t first_row, uint32_t row_count, Bytes row_codes,
              Bytes row_scales);

// The way back: rows [first_row, first_row + row_count), bits unchanged.
void UntileInt8(const WeightView& weights, uint32_t first_row, uint32_t row_count,
                MutableBytes row_codes, MutableBytes row_scales);

// One row in f32, as WeightAt gives it: what an embedding look-up reads. out: cols.
void DequantiseInt8Row(const WeightView& weights, uint32_t row, std::span<float> out);

}  // namespace smoe::tensor
