// kernels/int8_rows_256.h: integer products of Q4 and Q2 for few tokens, in 256-bit registers.
//
// Eight rows together, 32 bytes of each. The products of four bytes are summed in each 32-bit lane,
// at most 15 * 127 * 8 = 15240, or 3 * 127 * 16 for Q2: so two rows pack into 16 bits without
// saturating, sums of neighbours (at most 30480) pack once more, and then each 128-bit half holds
// its own 16 bytes' sums of four rows, [row 0: A B][row 1: A B][row 2: A B][row 3: A B], A from its
// first eight bytes and B from the others. A horizontal add would cost two shuffles where a packing
// costs one.
#pragma once

#include "kernels/simd_256.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

constexpr size_t kUnitBytes = 32;         // of a row at a time
constexpr size_t kUnitPiecesMax = 4;      // pieces of columns in a unit
constexpr size_t kScaleBytes = 2;         // f16
constexpr size_t kScaleGroups = 8;        // whose scales are decoded together
constexpr size_t kArrangedMax = 128;      // units arranged at once, of all tokens: 12 KiB (Q2: 20)
constexpr size_t kStretchUnitsMax = 128;  // of each token; so are their weights' scales: 16 KiB

// clang-format off
alignas(16) constexpr uint8_t kEvenThenOdd[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                  1, 3, 5, 7, 9, 11, 13, 15};
alignas(16) constexpr uint8_t kByPhase[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
// clang-format on

// Scales stay f16 until a piece is added: [piece][row].
using ScaleBits = uint16_t[kIntRows];

// 64 columns: phase 0 are the even ones, phase 1 the odd ones.
struct Q4 {
  static constexpr size_t kCodesPerByte = 2;
  static constexpr size_t kPhases = 2;
  static constexpr int kZero2 = tensor::kSmoeQ4Zero2;
  static constexpr float kScaleUnit = kQ4Unit;

  static void Arrange(const int8_t* codes, __m256i* phase) {
    const __m256i shuffle = _mm256_broadcastsi128_si256(Load128(kEvenThenOdd));
    __m256i first = _mm256_shuffle_epi8(Load256(codes), shuffle);
    __m256i second = _mm256_shuffle_epi8(Load256(codes + 32), shuffle);
    first = _mm256_permute4x64_epi64(first, 0xd8);
    second = _mm256_permute4x64_epi64(second, 0xd8);
    phase[0] = _mm256_permute2x128_si256(first, second, 0x20);
    phase[1] = _mm256_permute2x128_si256(first, second, 0x31);
  }

  static void Split(__m256i bytes, __m256i* codes) {
    const __m256i mask = _mm256_set1_epi8(0x0f);
    codes[0] = _mm256_and_si256(bytes, mask);
    codes[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  }
};

// 128 columns, one block of activations in each 128-bit half. Phase k: columns 4 j + k.
struct Q2 {
  static constexpr size_t kCodesPerByte = 4;
  static constexpr size_t kPhases = 4;
  static constexpr int kZero2 = tensor::kSmoeQ2Zero2;
  static constexpr float kScaleUnit = kQ2Unit;

  static void Arrange(const int8_t* codes, __m256i* phase) {
    const __m256i shuffle = _mm256_broadcastsi128_si256(Load128(kByPhase));
    __m256i quarter[4];  // four columns of each phase
    for (int i = 0; i < 4; ++i) {
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(Load128(codes + 16 * i)),
                                                   Load128(codes + 64 + 16 * i), 1);
      quarter[i] = _mm256_shuffle_epi8(both, shuffle);
    }
    const __m256i low01 = _mm256_unpacklo_epi32(quarter[0], quarter[1]);
    const __m256i high01 = _mm256_unpackhi_epi32(quarter[0], quarter[1]);
    const __m256i low23 = _mm256_unpacklo_epi32(quarter[2], quarter[3]);
    const __m256i high23 = _mm256_unpackhi_epi32(quarter[2], quarter[3]);
    phase[0] = _mm256_unpacklo_epi64(low01, low23);
    phase[1] = _mm256_unpackhi_epi64(low01, low23);
    phase[2] = _mm256_unpacklo_epi64(high01, high23);
    phase[3] = _mm256_unpackhi_epi64(high01, high23);
  }

  static void Split(__m256i bytes, __m256i* codes) {
    const __m256i mask = _mm256_set1_epi8(0x03);
    codes[0] = _mm256_and_si256(bytes, mask);
    codes[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 2), mask);
    codes[2] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
    codes[3] = _mm256_and_si256(_mm256_srli_epi16(bytes, 6), mask);
  }
};

// Activations of one unit as the weights' bytes want them.
template <class Format>
struct Arranged {
  __m256i phase[Format::kPhases];
  int32_t zero_part[kUnitPiecesMax];  // -Z2 * the sum of a piece's activations
  float x_scale[kUnitPiecesMax];      // of a piece
};

// Units of the columns [col, col + count) of one token; behind them zeros.
template <class Format, size_t kPieces>
void ArrangeStretch(const int8_t* codes, const float* x_scales, size_t count,
                    Arranged<Format>* out) {
  constexpr size_t kCols = kUnitBytes * Format::kCodesPerByte;
  constexpr size_t kPieceCols = kCols / kPieces;
  for (size_t col = 0; col < count; col += kCols, ++out) {
    int8_t padded[kCols] = {};
    const size_t left = Min(kCols, count - col);
    if (left < kCols) __builtin_memcpy(padded, codes + col, left);
    const int8_t* unit = left < kCols ? padded : codes + col;
    Format::Arrange(unit, out->phase);
    int64_t sums[kCols / 8];  // of codes + 128
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    for (size_t i = 0; i < kCols / 32; ++i) {
      const __m256i biased = _mm256_xor_si256(Load256(unit + 32 * i), flip);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 4 * i),
                          _mm256_sad_epu8(biased, _mm256_setzero_si256()));
    }
    for (size_t piece = 0; piece < kPieces; ++piece) {
      int64_t sum = -128 * static_cast<int64_t>(kPieceCols);
      for (size_t i = 0; i < kPieceCols / 8; ++i) sum += sums[piece * (kPieceCols / 8) + i];
      out->zero_part[piece] = static_cast<int32_t>(-Format::kZero2 * sum);
      const size_t piece_col = Min(piece * kPieceCols, left - 1);
      out->x_scale[piece] = x_scales[(col + piece_col) / kActivationBlock];
    }
  }
}

// The products of four bytes in each 32-bit lane.
template <size_t kPhases>
[[gnu::always_inline]] inline __m256i DotBytes(const __m256i* codes, const __m256i* phase) {
#if defined(__AVXVNNI__)
  __m256i sum = _mm256_setzero_si256();
  for (size_t i = 0; i < kPhases; ++i) sum = _mm256_dpbusd_avx_epi32(sum, codes[i], phase[i]);
  return sum;
#else
  __m256i sum = _mm256_maddubs_epi16(codes[0], phase[0]);
  for (size_t i = 1; i < kPhases; ++i) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[i], phase[i]));
  }
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
#endif
}

// The same for one token of Q2, a shift fewer: what the second code of a nibble gives is four times
// too much, at most 12 * 127 * 4, and a multiple of four.
#if !defined(__AVXVNNI__)
[[gnu::always_inline]] inline __m256i DotBytesQ2(__m256i bytes, const __m256i* phase) {
  const __m256i first = _mm256_set1_epi8(0x03);
  const __m256i second = _mm256_set1_epi8(0x0c);
  const __m256i high = _mm256_srli_epi16(bytes, 4);
  const __m256i once =
      _mm256_add_epi16(_mm256_maddubs_epi16(_mm256_and_si256(bytes, first), phase[0]),
                       _mm256_maddubs_epi16(_mm256_and_si256(high, first), phase[2]));
  const __m256i four_times =
      _mm256_add_epi16(_mm256_maddubs_epi16(_mm256_and_si256(bytes, second), phase[1]),
                       _mm256_maddubs_epi16(_mm256_and_si256(high, second), phase[3]));
  const __m256i sum = _mm256_add_epi16(once, _mm256_srai_epi16(four_times, 2));
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}
#endif

// One unit of eight rows that lie `stride` apart: dots[token][i], of the rows 4 i to 4 i + 3, as
// said above.
template <class Format, size_t kTokens>
[[gnu::always_inline]] inline void DotRows(const uint8_t* rows, size_t stride,
                                           const Arranged<Format>* const* x, __m256i (*dots)[2]) {
  for (size_t i = 0; i < 2; ++i) {
    const uint8_t* four = rows + 4 * i * stride;
    __m256i pairs[kTokens][2];
    for (size_t pair = 0; pair < 2; ++pair) {
      __m256i sums[kTokens][2];
      for (size_t row = 0; row < 2; ++row) {
        const __m256i bytes = Load256(four + (2 * pair + row) * stride);
#if !defined(__AVXVNNI__)
        if constexpr (kTokens == 1 && Format::kPhases == 4) {
          sums[0][row] = DotBytesQ2(bytes, x[0]->phase);
          continue;
        }
#endif
        __m256i codes[Format::kPhases];
        Format::Split(bytes, codes);
        for (size_t t = 0; t < kTokens; ++t) {
          sums[t][row] = DotBytes<Format::kPhases>(codes, x[t]->phase);
        }
      }
      for (size_t t = 0; t < kTokens; ++t) {
        pairs[t][pair] =
            _mm256_madd_epi16(_mm256_packs_epi32(sums[t][0], sums[t][1]), _mm256_set1_epi16(1));
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      dots[t][i] = _mm256_packs_epi32(pairs[t][0], pairs[t][1]);
    }
  }
}

// The scales of eight groups of eight rows, whose first ones lie `stride` bytes apart.
[[gnu::always_inline]] inline void DecodeEight(const uint8_t* scales, size_t stride,
                                               ScaleBits* out) {
  __m256i two[4];  // two[i]: rows i and i + 4
  for (size_t i = 0; i < 4; ++i) {
    const __m256i low = _mm256_castsi128_si256(Load128(scales + i * stride));
    two[i] = _mm256_inserti128_si256(low, Load128(scales + (i + 4) * stride), 1);
  }
  const __m256i low01 = _mm256_unpacklo_epi16(two[0], two[1]);
  const __m256i high01 = _mm256_unpackhi_epi16(two[0], two[1]);
  const __m256i low23 = _mm256_unpacklo_epi16(two[2], two[3]);
  const __m256i high23 = _mm256_unpackhi_epi16(two[2], two[3]);
  // In each 128-bit half four rows of one group, then the same four of the next.
  const __m256i two_groups[4] = {
      _mm256_unpacklo_epi32(low01, low23), _mm256_unpackhi_epi32(low01, low23),
      _mm256_unpacklo_epi32(high01, high23), _mm256_unpackhi_epi32(high01, high23)};
  for (size_t i = 0; i < 4; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i),
                        _mm256_permute4x64_epi64(two_groups[i], 0xd8));
  }
}

// The pieces of one unit in the order of their columns. `is_half`: only the
// first half of them is there.
template <class Format, size_t kPieces>
[[gnu::always_inline]] inline __m256 AddPieces(const __m256i* dots, const Arranged<Format>& x,
                                               const ScaleBits* w_scales, bool is_half,
                                               __m256 sum) {
  const __m256i halves[2] = {_mm256_permute2x128_si256(dots[0], dots[1], 0x20),
                             _mm256_permute2x128_si256(dots[0], dots[1], 0x31)};
  const __m256i two = _mm256_set1_epi16(2);
  for (size_t piece = 0; piece < kPieces; ++piece) {
    if (is_half && piece >= kPieces / 2) break;
    __m256i dot;
    if constexpr (kPieces == 1) {
      dot = _mm256_add_epi32(_mm256_madd_epi16(halves[0], two), _mm256_madd_epi16(halves[1], two));
    } else if constexpr (kPieces == 2) {
      dot = _mm256_madd_epi16(halves[piece], two);
    } else {
      const __m256i only = _mm256_set1_epi32(piece % 2 == 0 ? 2 : 2 << 16);
      dot = _mm256_madd_epi16(halves[piece / 2], only);
    }
    dot = _mm256_add_epi32(dot, _mm256_set1_epi32(x.zero_part[piece]));
    const __m256 w_scale = _mm256_mul_ps(_mm256_cvtph_ps(Load128(w_scales[piece])),
                                         _mm256_set1_ps(Format::kScaleUnit));
    const __m256 scale = _mm256_mul_ps(w_scale, _mm256_set1_ps(x.x_scale[piece]));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
  }
  return sum;
}

// One stretch of columns.
template <class Format>
struct RowStretch {
  size_t col;
  size_t col_count;       // a multiple of kActivationBlock
  size_t unit_count;      // rounded up; token t's units are at x + t * unit_count
  bool decodes_in_steps;  // pieces are groups, and enough of them
  Arranged<Format> x[kArrangedMax];
  alignas(32) ScaleBits w_scales[kStretchUnitsMax * kUnitPiecesMax];
};

// Eight short streams look random to the processor, but rows lie behind one another: eight rows are
// one stretch of memory. Line by line, the eight after them are fetched, and kPrefetchBytes more,
// so that there is time for the first ones too. An address behind the matrix is harmless: a
// prefetch cannot fault.
constexpr size_t kPrefetchBytes = 2048;

[[gnu::always_inline]] inline void PrefetchUnit(uintptr_t at) {
  for (size_t i = 0; i < kUnitBytes * kIntRows; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T0);
  }
}

// The scales of eight rows are one stretch as well, and too short a one for the processor to guess.
inline void PrefetchScales(const PlainWeights& weights, size_t row, size_t row_bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(weights.scales) + row * row_bytes;
  for (size_t i = 0; i < kIntRows * row_bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T0);
  }
}

// The next unit of eight rows, for kTokens tokens.
template <class Format, size_t kPieces, size_t kTokens>
[[gnu::always_inline]] inline void AddUnit(const uint8_t* rows, size_t stride, bool is_half,
                                           const ScaleBits* w_scales, const Arranged<Format>** x,
                                           __m256* sums) {
  __m256i dots[kTokens][2];
  DotRows<Format, kTokens>(rows, stride, x, dots);
  for (size_t t = 0; t < kTokens; ++t) {
    sums[t] = AddPieces<Format, kPieces>(dots[t], *x[t], w_scales, is_half, sums[t]);
    ++x[t];
  }
}

// One stretch of eight rows, fewer at the end of the range, for kTokens tokens from `slot` on;
// out[t]: token t's sums. Between two stretches the sums wait there.
template <class Format, size_t kPieces, size_t kTokens>
void AddRows(const PlainWeights& weights, size_t row, size_t row_count, size_t slot,
             RowStretch<Format>* stretch, float* const* out) {
  constexpr size_t kCols = kUnitBytes * Format::kCodesPerByte;
  constexpr size_t kUnitsTogether = kScaleGroups / kPieces;  // whose scales are decoded together
  const __m256i is_there = FirstOfEight(row_count);
  const size_t stride = weights.cols / Format::kCodesPerByte;
  const uint8_t* rows = weights.data + row * stride + stretch->col / Format::kCodesPerByte;
  uintptr_t wanted_soon = reinterpret_cast<uintptr_t>(rows) + kIntRows * stride + kPrefetchBytes;
  __m256 sums[kTokens];
  const Arranged<Format>* x[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    sums[t] = stretch->col == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(out[t], is_there);
    x[t] = stretch->x + (slot + t) * stretch->unit_count;
  }
  const ScaleBits* w_scales = stretch->w_scales;
  const auto add_unit = [&]() __attribute__((always_inline)) {
    if (slot == 0) PrefetchUnit(wanted_soon);
    wanted_soon += kUnitBytes * kIntRows;
    AddUnit<Format, kPieces, kTokens>(rows, stride, false, w_scales, x, sums);
    w_scales += kPieces;
    rows += kUnitBytes;
  };
  size_t col = 0;
  if (stretch->decodes_in_steps && row_count == kIntRows) {
    const size_t scale_stride = weights.cols * kPieces / kCols * kScaleBytes;
    const size_t piece_count = stretch->col_count * kPieces / kCols;
    const uint8_t* const scales =
        weights.scales + row * scale_stride + stretch->col * kPieces / kCols * kScaleBytes;
    while (col < stretch->col_count) {
      // The last eight may overlap those before.
      const size_t at = Min(col * kPieces / kCols, piece_count - kScaleGroups);
      DecodeEight(scales + at * kScaleBytes, scale_stride, stretch->w_scales + at);
      const size_t end = Min(col + kUnitsTogether * kCols, stretch->col_count);
      for (; col < end; col += kCols) add_unit();
    }
  } else {
    DecodeScaleBitsAvx2(weights, MakeTile(weights, row, row + row_count), kCols / kPieces,
                        stretch->col * kPieces / kCols, stretch->col_count * kPieces / kCols,
                        stretch->w_scales);
  }
  if (row_count == kIntRows) {
    for (; col + kCols <= stretch->col_count; col += kCols) add_unit();
  }
  // Half a unit may be left: the last bytes of the matrix, perhaps, so they are copied before they
  // are loaded. The same for a tile that lacks rows.
  for (; col < stretch->col_count; col += kCols) {
    uint8_t bytes[kIntRows][kUnitBytes] = {};
    const size_t left = Min(kUnitBytes, (stretch->col_count - col) / Format::kCodesPerByte);
    for (size_t i = 0; i < row_count; ++i) __builtin_memcpy(bytes[i], rows + i * stride, left);
    AddUnit<Format, kPieces, kTokens>(bytes[0], kUnitBytes, left < kUnitBytes, w_scales, x, sums);
    w_scales += kPieces;
    rows += kUnitBytes;
  }
  for (size_t t = 0; t < kTokens; ++t) _mm256_maskstore_ps(out[t], is_there, sums[t]);
}

constexpr size_t kRowTokensTogether = 4;

// All rows of the range for up to kRowTokensMax tokens from `token` on.
template <class Format, size_t kPieces>
void MatMulRowTokens(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                     size_t token, size_t batch) {
  constexpr size_t kCols = kUnitBytes * Format::kCodesPerByte;
  constexpr size_t kPieceCols = kCols / kPieces;
  const size_t scale_row_bytes = weights.cols / weights.group_size * kScaleBytes;
  const size_t stretch_cols = Min(kArrangedMax / batch, kStretchUnitsMax) * kCols;
  const size_t blocks = x.col_stride / kActivationBlock;
  RowStretch<Format> stretch;
  for (stretch.col = 0; stretch.col < weights.cols; stretch.col += stretch_cols) {
    stretch.col_count = Min(stretch_cols, weights.cols - stretch.col);
    stretch.unit_count = (stretch.col_count + kCols - 1) / kCols;
    for (size_t t = 0; t < batch; ++t) {
      ArrangeStretch<Format, kPieces>(
          x.codes + (token + t) * x.col_stride + stretch.col,
          x.scales + (token + t) * blocks + stretch.col / kActivationBlock, stretch.col_count,
          stretch.x + t * stretch.unit_count);
    }
    stretch.decodes_in_steps = weights.group_size == kPieceCols &&
                               stretch.col_count >= kScaleGroups * kPieceCols &&
                               stretch.col_count % kCols == 0;
    for (size_t row = y.row_begin; row < y.row_end; row += kIntRows) {
      const size_t row_count = Min(kIntRows, y.row_end - row);
      PrefetchScales(weights, row + kIntRows, scale_row_bytes);
      for (size_t slot = 0; slot < batch;) {
        float* out[kRowTokensTogether];
        const size_t left = Min(batch - slot, kRowTokensTogether);
        for (size_t t = 0; t < left; ++t) {
          out[t] = y.out + (token + slot + t) * y.out_stride + row;
        }
        if (left == 1) AddRows<Format, kPieces, 1>(weights, row, row_count, slot, &stretch, out);
        if (left == 2) AddRows<Format, kPieces, 2>(weights, row, row_count, slot, &stretch, out);
        if (left == 3) AddRows<Format, kPieces, 3>(weights, row, row_count, slot, &stretch, out);
        if (left == 4) AddRows<Format, kPieces, 4>(weights, row, row_count, slot, &stretch, out);
        slot += left;
      }
    }
  }
}

// Requires cols to be a multiple of kActivationBlock, and groups that are a multiple of it or hold
// one of the kPieces pieces of a unit.
template <class Format, size_t kPieces>
void MatMulRows(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  for (size_t token = 0; token < x.token_count; token += kRowTokensMax) {
    MatMulRowTokens<Format, kPieces>(weights, x, y, token,
                                     Min(kRowTokensMax, x.token_count - token));
  }
}

// Shapes that these kernels and those of int8_batch_256.h know: rows of whole blocks, and groups of
// 8 (Q4), 16, 32 or a multiple of 64.
inline bool HasInt8Shape(const PlainWeights& weights) {
  const uint64_t group = weights.group_size;
  const bool is_regular = group % kActivationBlock == 0 || group == 32 || group == 16 ||
                          (group == 8 && weights.format == tensor::WeightFormat::kSmoeQ4);
  return weights.cols != 0 && weights.cols % kActivationBlock == 0 && is_regular;
}

// False, and nothing done, for groups so short that the kernels for many tokens do better.
inline bool MatMulFewTokens(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  const uint64_t group = weights.group_size;
  const bool is_wide = group % kActivationBlock == 0;
  if (weights.format == tensor::WeightFormat::kSmoeQ4) {
    if (is_wide) return MatMulRows<Q4, 1>(weights, x, y), true;
    if (group == 32) return MatMulRows<Q4, 2>(weights, x, y), true;
    if (group == 16) return MatMulRows<Q4, 4>(weights, x, y), true;
  } else {
    if (is_wide) return MatMulRows<Q2, 2>(weights, x, y), true;
    if (group == 32) return MatMulRows<Q2, 4>(weights, x, y), true;
  }
  return false;
}

}  // namespace

}  // namespace smoe::kernels
#endif
