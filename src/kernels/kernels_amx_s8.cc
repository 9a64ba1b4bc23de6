// int8 matrices for many tokens; kernels_amx.cc says what holds for all of the table, and
// tensor/weights.h how the tiles lie: sixteen of them, a group, are what a tile register takes.
#include "kernels/amx.h"

#if defined(__x86_64__)
// clang 14 writes two of the names without the inner underscore.
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VBMI__) || !defined(__AVX512VNNI__) || !defined(__F16C__) || \
    !(defined(__AMX_TILE__) || defined(__AMXTILE__)) ||                           \
    !(defined(__AMX_INT8__) || defined(__AMXINT8__))
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

#include "kernels/amx_tiles.h"

namespace smoe::kernels {

namespace {

constexpr size_t kGroupBytes = tensor::kInt8Group * kTileRows;
constexpr size_t kScaleBytes = kTileRows * sizeof(float);
static_assert(tensor::kInt8TileRows == kTileRows && tensor::kInt8TileCols == kQuadCols);

// As MultiplyPanels wants them, in place. What is behind the range is its last block once more.
class PanelsInPlace {
 public:
  PanelsInPlace(const PlainWeights& weights, const MatMulRange& y)
      : weights_(weights),
        group_count_(Parts(weights.cols, tensor::kInt8Group)),
        last_block_((y.row_end - 1) / kTileRows) {}

  PanelAhead Begin(size_t row, size_t steps) {
    block_ = row / kTileRows;
    const size_t bytes = group_count_ * kGroupBytes;
    const auto data = reinterpret_cast<uintptr_t>(weights_.data);
    return PanelAhead(data + (block_ + kPassTiles) * bytes, bytes, kPassTiles, bytes / 64, steps);
  }

  template <size_t kPieces>
  PassWeights Take(size_t piece) {
    PassWeights made;
    for (size_t r = 0; r < kPassTiles; ++r) {
      const size_t group = Min(block_ + r, last_block_) * group_count_ + piece;
      made.quads[r] = weights_.data + group * kGroupBytes;
      made.scales[r] = weights_.scales + group * kScaleBytes;
    }
    return made;
  }

 private:
  const PlainWeights& weights_;
  size_t group_count_;
  size_t last_block_;
  size_t block_ = 0;
};

}  // namespace

void MatMulInt8TilesAmx(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  PanelsInPlace panels(weights, y);
  const size_t first_row = y.row_begin / kTileRows * kTileRows;
  MultiplyPanels<tensor::kInt8Group>(x, y, first_row, Parts(weights.cols, tensor::kInt8Group),
                                     &panels);
}

}  // namespace smoe::kernels
#endif
