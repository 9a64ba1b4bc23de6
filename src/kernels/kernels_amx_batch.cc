// Q4 and Q2 for many tokens; kernels_amx.cc says what holds for all of the table, and amx_tiles.h
// how tiles are multiplied.
//
// Sixteen rows are transposed, 32 bits at a time, and split into signed codes, 2 code - Z2. The
// columns of a quad stay neighbours, unlike those of the AVX-512 table, so that activations are
// used where they lie.
#include "kernels/amx.h"
#include "kernels/avx512.h"

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

using tensor::WeightFormat;

// Where each byte of a quad begins in the eight bytes of two rows, one bit below its code: codes
// are doubled. `first` is the code's index in the row's four bytes, of kBits bits.
template <size_t kBits>
__m512i QuadPlaces(size_t first) {
  uint64_t places = 0;
  for (size_t i = 0; i < 8; ++i) {
    const size_t bit = i / kQuadCols * 32 + (first + i % kQuadCols) * kBits;
    places |= static_cast<uint64_t>((bit + 63) % 64) << (8 * i);
  }
  return _mm512_set1_epi64(static_cast<int64_t>(places));
}

struct Q4 {
  static constexpr size_t kCodesPerByte = 2;
  static constexpr int kZero2 = tensor::kSmoeQ4Zero2;
};

struct Q2 {
  static constexpr size_t kCodesPerByte = 4;
  static constexpr int kZero2 = tensor::kSmoeQ2Zero2;
};

// Four bytes of each of sixteen rows: kCodesPerByte quads.
template <class Format>
[[gnu::always_inline]] inline void Split(__m512i bytes, uint8_t (*quads)[64]) {
  constexpr size_t kBits = 8 / Format::kCodesPerByte;
  const __m512i mask = _mm512_set1_epi8((2 << kBits) - 2);
  for (size_t i = 0; i < Format::kCodesPerByte; ++i) {
    const __m512i places = QuadPlaces<kBits>(i * kQuadCols);
    const __m512i twice = _mm512_and_si512(_mm512_multishift_epi64_epi8(places, bytes), mask);
    _mm512_store_si512(quads[i], _mm512_sub_epi8(twice, _mm512_set1_epi8(Format::kZero2)));
  }
}

// `tile` at the columns [col, col + col_count).
template <class Format>
void Unpack(const WideTile& tile, size_t col, size_t col_count, uint8_t (*quads)[64]) {
  const size_t begin = col / Format::kCodesPerByte;
  const size_t end = begin + col_count / Format::kCodesPerByte;
  for (size_t offset = begin; offset < end; offset += 16) {
    __m512i dwords[4];
    TransposeDwords(tile.codes, offset, dwords);
    for (const __m512i& bytes : dwords) {
      Split<Format>(bytes, quads);
      quads += Format::kCodesPerByte;
    }
  }
}

// As MultiplyPanels wants them. What is behind the range is a copy of its last row.
template <class Format, size_t kPieceCols>
class UnpackedPanels {
 public:
  UnpackedPanels(const PlainWeights& weights, const MatMulRange& y)
      : weights_(weights), row_end_(y.row_end) {}

  PanelAhead Begin(size_t row, size_t steps) {
    for (size_t r = 0; r < kPassTiles; ++r) {
      const size_t begin = row + r * kTileRows;
      tiles_[r] = MakeWideTile(weights_, begin < row_end_ ? begin : row_end_ - 1, row_end_);
    }
    scale_end_ = 0;
    const size_t row_bytes = weights_.cols / Format::kCodesPerByte;
    const uintptr_t next =
        reinterpret_cast<uintptr_t>(weights_.data) + (row + kPanelRows) * row_bytes;
    return PanelAhead(next, 0, 1, Parts(kPanelRows * row_bytes, 64), steps);
  }

  template <size_t kPieces>
  PassWeights Take(size_t piece) {
    if (piece == 0 || piece == scale_end_) DecodeScales(piece);
    PassWeights made;
    for (size_t r = 0; r < kPassTiles; ++r) {
      Unpack<Format>(tiles_[r], piece * kPieceCols, kPieces * kPieceCols, quads_[r]);
      made.quads[r] = quads_[r][0];
      made.scales[r] = reinterpret_cast<const uint8_t*>(w_scales_[r][piece % kScalesTogether]);
    }
    WriteBeforeTilesAreLoaded();
    return made;
  }

 private:
  static constexpr size_t kScalesTogether = 32;  // pieces
  static_assert(kScalesTogether % kPassPieces == 0);

  void DecodeScales(size_t piece) {
    scale_end_ = Min(piece + kScalesTogether, weights_.cols / kPieceCols);
    for (size_t r = 0; r < kPassTiles; ++r) {
      DecodeScalesAvx512(weights_, tiles_[r], kPieceCols, piece, scale_end_ - piece,
                         w_scales_[r][0]);
    }
  }

  alignas(64) uint8_t quads_[kPassTiles][kPassPieces * kActivationBlock / kQuadCols][64];
  alignas(64) float w_scales_[kPassTiles][kScalesTogether][kTileRows];
  WideTile tiles_[kPassTiles];
  size_t scale_end_ = 0;  // of the pieces whose scales are there
  const PlainWeights& weights_;
  size_t row_end_;
};

template <class Format, size_t kPieceCols>
void MatMul(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  UnpackedPanels<Format, kPieceCols> panels(weights, y);
  MultiplyPanels<kPieceCols>(x, y, y.row_begin, weights.cols / kPieceCols, &panels);
}

}  // namespace

void MatMulInt8BatchAmx(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  const bool is_narrow = weights.group_size == 32;
  if (weights.format == WeightFormat::kSmoeQ4) {
    if (is_narrow) return MatMul<Q4, 32>(weights, x, y);
    return MatMul<Q4, 64>(weights, x, y);
  }
  if (is_narrow) return MatMul<Q2, 32>(weights, x, y);
  MatMul<Q2, 64>(weights, x, y);
}

}  // namespace smoe::kernels
#endif
