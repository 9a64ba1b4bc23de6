// kernels/int8_tiles.h: how a kernel walks an int8 matrix, for any instruction set of x86.
//
// Text, not machine code: the files of the tables each compile it for themselves, in an unnamed
// namespace (kernels_avx512_s8.cc, and by int8_panels_256.h the two for 256-bit registers).
// tensor/weights.h says how the tiles lie.
#pragma once

#include "kernels/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

constexpr size_t kRows = tensor::kInt8TileRows;
constexpr size_t kGroupCols = tensor::kInt8Group;
constexpr size_t kTileCols = tensor::kInt8TileCols;
constexpr size_t kTileBytes = kRows * kTileCols;
constexpr size_t kTiles = kGroupCols / kTileCols;  // of a block of rows in a group
constexpr size_t kGroupBytes = kTiles * kTileBytes;
constexpr size_t kScaleBytes = kRows * sizeof(float);  // of a block of rows in a group
constexpr size_t kLine = 64;

// One block of rows at one group of columns.
struct Place {
  const uint8_t* codes;
  const uint8_t* scales;

  Place(const PlainWeights& weights, size_t block) {
    const size_t groups = (weights.cols + kGroupCols - 1) / kGroupCols;
    codes = weights.data + block * groups * kGroupBytes;
    scales = weights.scales + block * groups * kScaleBytes;
  }
  void ToNextGroup() {
    codes += kGroupBytes;
    scales += kScaleBytes;
  }
};

// Blocks lie behind one another, so the stream goes on where a block ends. Fetched into the second
// cache: it waits for more lines at a time than the first. A prefetch cannot fault.
constexpr size_t kGroupsAhead = 8;

inline void PrefetchAhead(const Place& place) {
  const auto codes = reinterpret_cast<uintptr_t>(place.codes) + kGroupsAhead * kGroupBytes;
  for (size_t i = 0; i < kGroupBytes; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + i), _MM_HINT_T1);
  }
  const auto scales = reinterpret_cast<uintptr_t>(place.scales) + kGroupsAhead * kScaleBytes;
  _mm_prefetch(reinterpret_cast<const char*>(scales), _MM_HINT_T1);
}

}  // namespace

}  // namespace smoe::kernels
#endif
