// TransposeBytes of store/records/record.h.
#include <algorithm>
#include <cstring>

#include "store/records/record.h"

namespace smoe::store::records {

namespace {

// Columns and rows that are turned together: so many lines of the source stay in the first cache
// while whole lines of the target are written.
constexpr uint64_t kBlock = 64;
constexpr uint64_t kTile = 16;

using Vector = uint8_t __attribute__((vector_size(16)));

Vector InterleaveLow(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Vector InterleaveHigh(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}

// One step of four: a byte's index (row, column) of 4 + 4 bits moves round by one bit, so that
// after four of them row and column have changed places.
void Rotate(const Vector (&from)[kTile], Vector (&to)[kTile]) {
  for (uint64_t i = 0; i < kTile / 2; ++i) {
    to[2 * i] = InterleaveLow(from[i], from[i + kTile / 2]);
    to[2 * i + 1] = InterleaveHigh(from[i], from[i + kTile / 2]);
  }
}

void TransposeTile(const std::byte* from, uint64_t from_stride, std::byte* to, uint64_t to_stride) {
  Vector a[kTile];
  Vector b[kTile];
  for (uint64_t i = 0; i < kTile; ++i) std::memcpy(&a[i], from + i * from_stride, kTile);
  Rotate(a, b);
  Rotate(b, a);
  Rotate(a, b);
  Rotate(b, a);
  for (uint64_t i = 0; i < kTile; ++i) std::memcpy(to + i * to_stride, &a[i], kTile);
}

// Part of a tile, at the edges.
void TransposeRest(const std::byte* from, uint64_t from_stride, uint64_t rows, uint64_t cols,
                   std::byte* to, uint64_t to_stride) {
  for (uint64_t col = 0; col < cols; ++col) {
    for (uint64_t row = 0; row < rows; ++row) {
      to[col * to_stride + row] = from[row * from_stride + col];
    }
  }
}

}  // namespace

void TransposeBytes(Bytes from, uint64_t rows, uint64_t cols, MutableBytes to) {
  SMOE_CHECK(from.size() == rows * cols && to.size() == from.size());
  const auto turn = [&](uint64_t row, uint64_t col) {
    const std::byte* source = from.data() + row * cols + col;
    std::byte* target = to.data() + col * rows + row;
    const uint64_t row_count = std::min(kTile, rows - row);
    const uint64_t col_count = std::min(kTile, cols - col);
    if (row_count == kTile && col_count == kTile) {
      TransposeTile(source, cols, target, rows);
    } else {
      TransposeRest(source, cols, row_count, col_count, target, rows);
    }
  };
  for (uint64_t block_col = 0; block_col < cols; block_col += kBlock) {
    const uint64_t col_end = std::min(cols, block_col + kBlock);
    for (uint64_t block_row = 0; block_row < rows; block_row += kBlock) {
      const uint64_t row_end = std::min(rows, block_row + kBlock);
      for (uint64_t col = block_col; col < col_end; col += kTile) {
        for (uint64_t row = block_row; row < row_end; row += kTile) turn(row, col);
      }
    }
  }
}

}  // namespace smoe::store::records
