// Integer products for one to four tokens; kernels_avx512.cc says what holds for all of the table.
//
// Sixteen rows together, 64 bytes of each. dpbusd leaves in each 32-bit lane the products of four
// bytes, at most 15 * 127 * 8 = 15240, or 3 * 127 * 16 for Q2: so two rows pack into 16 bits
// without saturating, pairs of neighbours (at most 30480) pack once more, and then each 128-bit
// part holds its own 16 bytes' sums of four rows, [row 0][row 1][row 2][row 3].
#include "kernels/avx2.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VNNI__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

constexpr size_t kBytes = 64;           // of a row at a time
constexpr size_t kParts = 4;            // of 128 bits
constexpr size_t kStretchVectors = 32;  // activations arranged at once, in units of kBytes
constexpr size_t kPiecesMax = kParts;   // of one unit

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
size_t Min(size_t a, size_t b) { return a < b ? a : b; }

float ScaleAt(const uint8_t* scales, uint64_t group) {
  uint16_t bits;
  __builtin_memcpy(&bits, scales + group * 2, sizeof(bits));
  return _cvtsh_ss(bits);
}

// The first `count` of 16 lanes.
__mmask16 FirstLanes(size_t count) { return static_cast<__mmask16>((1u << Min(count, 16)) - 1); }

// Activations of one unit as the weights' bytes want them.
struct Arranged {
  __m512i phase[4];   // Q4 uses the first two
  __m512i zero_part;  // -Z2 * the sum of a part's activations, in each lane of that part
};

__m512i Low(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// 128 columns: phase 0 are the even ones, phase 1 the odd ones.
struct Q4 {
  static constexpr size_t kCodesPerByte = 2;
  static constexpr size_t kPhases = 2;
  static constexpr int kZero2 = tensor::kSmoeQ4Zero2;

  static void Arrange(const int8_t* codes, Arranged* out) {
    const __m512i first = _mm512_loadu_si512(codes);
    const __m512i second = _mm512_loadu_si512(codes + 64);
    out->phase[0] = Low(_mm512_cvtepi16_epi8(first), _mm512_cvtepi16_epi8(second));
    out->phase[1] = Low(_mm512_cvtepi16_epi8(_mm512_srli_epi16(first, 8)),
                        _mm512_cvtepi16_epi8(_mm512_srli_epi16(second, 8)));
  }

  static void Split(__m512i bytes, __m512i* codes) {
    const __m512i mask = _mm512_set1_epi8(0x0f);
    codes[0] = _mm512_and_si512(bytes, mask);
    codes[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  }
};

// 256 columns. Phase k: columns 4 j + k.
struct Q2 {
  static constexpr size_t kCodesPerByte = 4;
  static constexpr size_t kPhases = 4;
  static constexpr int kZero2 = tensor::kSmoeQ2Zero2;

  static void Arrange(const int8_t* codes, Arranged* out) {
    for (unsigned phase = 0; phase < kPhases; ++phase) {
      __m128i quarter[4];
      for (size_t i = 0; i < 4; ++i) {
        const __m512i columns = _mm512_loadu_si512(codes + 64 * i);
        quarter[i] = _mm512_cvtepi32_epi8(_mm512_srli_epi32(columns, 8 * phase));
      }
      out->phase[phase] =
          Low(_mm256_set_m128i(quarter[1], quarter[0]), _mm256_set_m128i(quarter[3], quarter[2]));
    }
  }

  static void Split(__m512i bytes, __m512i* codes) {
    const __m512i mask = _mm512_set1_epi8(0x03);
    codes[0] = _mm512_and_si512(bytes, mask);
    codes[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 2), mask);
    codes[2] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    codes[3] = _mm512_and_si512(_mm512_srli_epi16(bytes, 6), mask);
  }
};

// Units of the columns [col, col + count) of one token; behind them zeros.
template <class Format>
void ArrangeStretch(const int8_t* codes, size_t count, Arranged* out) {
  constexpr size_t kCols = kBytes * Format::kCodesPerByte;
  for (size_t col = 0; col < count; col += kCols, ++out) {
    int8_t padded[kCols] = {};
    const bool is_whole = col + kCols <= count;
    if (!is_whole) __builtin_memcpy(padded, codes + col, count - col);
    Format::Arrange(is_whole ? codes + col : padded, out);
    __m512i sum = _mm512_setzero_si512();
    for (size_t i = 0; i < Format::kPhases; ++i) {
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), out->phase[i]);
    }
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    out->zero_part = _mm512_mullo_epi32(sum, _mm512_set1_epi32(-Format::kZero2));
  }
}

// Sixteen short streams look random to the processor, but rows lie behind one another: sixteen rows
// are one stretch of memory. One or two tokens, whose stretches are as long as nearly any row, take
// it from end to end, and fetch line by line what comes kPrefetchBytes after the next sixteen rows
// begin; more tokens the same columns of the next sixteen. A prefetch cannot fault.
constexpr size_t kPrefetchBytes = 1024;

template <size_t kTokens>
constexpr bool kFetchesLines = kTokens <= 2;

// One unit of sixteen rows: dots[token][i], of the rows 4 i to 4 i + 3, as said above. `there`: the
// bytes that the rows have. `ahead`: from a row to the same row of the next tile.
template <class Format, size_t kTokens>
void DotRows(const uint8_t* const* rows, size_t offset, __mmask64 there, size_t ahead,
             const Arranged* const* x, __m512i (*dots)[4]) {
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i two = _mm512_set1_epi16(2);
  for (size_t i = 0; i < 4; ++i) {
    __m512i pairs[kTokens][2];
    for (size_t pair = 0; pair < 2; ++pair) {
      __m512i sums[kTokens][2];
      for (size_t row = 0; row < 2; ++row) {
        const uint8_t* at = rows[4 * i + 2 * pair + row] + offset;
        const size_t line = (offset / kBytes * kWideRows + 4 * i + 2 * pair + row) * kBytes;
        const auto wanted_soon = kFetchesLines<kTokens>
                                     ? reinterpret_cast<uintptr_t>(rows[0]) + kPrefetchBytes + line
                                     : reinterpret_cast<uintptr_t>(at);
        _mm_prefetch(reinterpret_cast<const char*>(wanted_soon + ahead), _MM_HINT_T0);
        __m512i codes[Format::kPhases];
        Format::Split(
            there == ~__mmask64{0} ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi8(there, at),
            codes);
        for (size_t t = 0; t < kTokens; ++t) {
          __m512i sum = _mm512_setzero_si512();
          for (size_t phase = 0; phase < Format::kPhases; ++phase) {
            sum = _mm512_dpbusd_epi32(sum, codes[phase], x[t]->phase[phase]);
          }
          sums[t][row] = sum;
        }
      }
      for (size_t t = 0; t < kTokens; ++t) {
        pairs[t][pair] = _mm512_madd_epi16(_mm512_packs_epi32(sums[t][0], sums[t][1]), one);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      dots[t][i] =
          _mm512_dpwssd_epi32(x[t]->zero_part, _mm512_packs_epi32(pairs[t][0], pairs[t][1]), two);
    }
  }
}

// From the parts of four rows each to a row in each lane. kPieces = 2: parts 0 and 1 are one piece,
// 2 and 3 the other. kPieces = 4: each part is one.
template <size_t kPieces>
void GatherPieces(const __m512i* dots, __m512i* pieces) {
  const __m512i low01 = _mm512_shuffle_i32x4(dots[0], dots[1], 0x88);   // parts 0 2, 0 2
  const __m512i high01 = _mm512_shuffle_i32x4(dots[0], dots[1], 0xdd);  // parts 1 3, 1 3
  const __m512i low23 = _mm512_shuffle_i32x4(dots[2], dots[3], 0x88);
  const __m512i high23 = _mm512_shuffle_i32x4(dots[2], dots[3], 0xdd);
  if constexpr (kPieces == 2) {
    const __m512i rows07 = _mm512_add_epi32(low01, high01);
    const __m512i rows8f = _mm512_add_epi32(low23, high23);
    pieces[0] = _mm512_shuffle_i32x4(rows07, rows8f, 0x88);
    pieces[1] = _mm512_shuffle_i32x4(rows07, rows8f, 0xdd);
  } else {
    pieces[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    pieces[1] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    pieces[2] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    pieces[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

template <class Format, size_t kPieces>
__m512 AddPieces(const __m512i* dots, const float* w_scales, const float* x_scales, size_t count,
                 __m512 sum) {
  constexpr size_t kPieceCols = kBytes * Format::kCodesPerByte / kPieces;
  __m512i pieces[kPieces];
  GatherPieces<kPieces>(dots, pieces);
  for (size_t i = 0; i < kPieces; ++i) {
    if (i >= count) break;
    const __m512 x_scale = _mm512_set1_ps(x_scales[i * kPieceCols / kActivationBlock]);
    const __m512 scale = _mm512_mul_ps(_mm512_load_ps(w_scales + i * kWideRows), x_scale);
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(pieces[i]), scale, sum);
  }
  return sum;
}

// One stretch of columns.
template <size_t kTokens>
struct Stretch {
  static constexpr size_t kVectors = (kFetchesLines<kTokens> ? 2 : 1) * kStretchVectors;
  size_t col;
  size_t col_count;  // a multiple of kActivationBlock
  Arranged x[kTokens][kVectors];
  alignas(64) float w_scales[kVectors * kPiecesMax * kWideRows];
};

inline void PrefetchScales(const PlainWeights& weights, size_t row) {
  const size_t row_bytes = weights.cols / weights.group_size * 2;
  const uintptr_t at = reinterpret_cast<uintptr_t>(weights.scales) + row * row_bytes;
  for (size_t i = 0; i < kWideRows * row_bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T0);
  }
}

template <class Format, size_t kPieces, size_t kTokens>
void AddTile(const PlainWeights& weights, const WideTile& tile, const Stretch<kTokens>& stretch,
             const float* const* x_scales, float* const* out) {
  constexpr size_t kCols = kBytes * Format::kCodesPerByte;
  constexpr size_t kPieceCols = kCols / kPieces;
  const __mmask16 is_there = FirstLanes(tile.row_count);
  const size_t ahead = kWideRows * weights.cols / Format::kCodesPerByte;
  __m512 sums[kTokens];
  const Arranged* x[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    sums[t] = stretch.col == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(is_there, out[t]);
    x[t] = stretch.x[t];
  }
  const float* w_scales = stretch.w_scales;
  __m512i dots[kTokens][4];
  size_t col = 0;
  for (; col + kCols <= stretch.col_count; col += kCols) {
    DotRows<Format, kTokens>(tile.codes, (stretch.col + col) / Format::kCodesPerByte, ~__mmask64{0},
                             ahead, x, dots);
    for (size_t t = 0; t < kTokens; ++t) {
      sums[t] = AddPieces<Format, kPieces>(dots[t], w_scales,
                                           x_scales[t] + (stretch.col + col) / kActivationBlock,
                                           kPieces, sums[t]);
      ++x[t];
    }
    w_scales += kPieces * kWideRows;
  }
  if (col < stretch.col_count) {
    const size_t left = stretch.col_count - col;
    const __mmask64 there = (__mmask64{1} << left / Format::kCodesPerByte) - 1;
    DotRows<Format, kTokens>(tile.codes, (stretch.col + col) / Format::kCodesPerByte, there, ahead,
                             x, dots);
    for (size_t t = 0; t < kTokens; ++t) {
      sums[t] = AddPieces<Format, kPieces>(dots[t], w_scales,
                                           x_scales[t] + (stretch.col + col) / kActivationBlock,
                                           left / kPieceCols, sums[t]);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) _mm512_mask_storeu_ps(out[t], is_there, sums[t]);
}

// kTokens tokens from `token` on. Between two stretches of columns the sums wait in the output.
template <class Format, size_t kPieces, size_t kTokens>
void MatMulTokens(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                  size_t token) {
  constexpr size_t kCols = kBytes * Format::kCodesPerByte;
  constexpr size_t kPieceCols = kCols / kPieces;
  constexpr size_t kStretchCols = Stretch<kTokens>::kVectors * kCols;
  Stretch<kTokens> stretch;
  for (stretch.col = 0; stretch.col < weights.cols; stretch.col += kStretchCols) {
    stretch.col_count = Min(kStretchCols, weights.cols - stretch.col);
    const float* x_scales[kTokens];
    for (size_t t = 0; t < kTokens; ++t) {
      ArrangeStretch<Format>(x.codes + (token + t) * x.col_stride + stretch.col, stretch.col_count,
                             stretch.x[t]);
      x_scales[t] = x.scales + (token + t) * (x.col_stride / kActivationBlock);
    }
    for (size_t row = y.row_begin; row < y.row_end; row += kWideRows) {
      const WideTile tile = MakeWideTile(weights, row, y.row_end);
      PrefetchScales(weights, row + kWideRows);
      DecodeScalesAvx512(weights, tile, kPieceCols, stretch.col / kPieceCols,
                         stretch.col_count / kPieceCols, stretch.w_scales);
      float* out[kTokens];
      for (size_t t = 0; t < kTokens; ++t) out[t] = y.out + (token + t) * y.out_stride + row;
      AddTile<Format, kPieces, kTokens>(weights, tile, stretch, x_scales, out);
    }
  }
}

template <class Format, size_t kPieces>
void MatMul(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  size_t token = 0;
  for (; token + 4 <= x.token_count; token += 4) {
    MatMulTokens<Format, kPieces, 4>(weights, x, y, token);
  }
  const size_t left = x.token_count - token;
  if (left == 3) MatMulTokens<Format, kPieces, 3>(weights, x, y, token);
  if (left == 2) MatMulTokens<Format, kPieces, 2>(weights, x, y, token);
  if (left == 1) MatMulTokens<Format, kPieces, 1>(weights, x, y, token);
}

// Eight groups of sixteen rows: `there` says which of the eight exist.
[[gnu::always_inline]] inline void TransposeScales(const uint8_t* const* rows, size_t group,
                                                   __mmask8 there, __m512 unit, __m512* out) {
  const auto load = [&](size_t row) {
    const uint8_t* at = rows[row] + group * 2;
    return there == 0xff ? Load128(at) : _mm_maskz_loadu_epi16(there, at);
  };
  __m512i four[4];  // four[i]: rows i, i + 4, i + 8, i + 12
  for (size_t i = 0; i < 4; ++i) {
    __m512i all = _mm512_castsi128_si512(load(i));
    all = _mm512_inserti32x4(all, load(i + 4), 1);
    all = _mm512_inserti32x4(all, load(i + 8), 2);
    four[i] = _mm512_inserti32x4(all, load(i + 12), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi16(four[0], four[1]);
  const __m512i high01 = _mm512_unpackhi_epi16(four[0], four[1]);
  const __m512i low23 = _mm512_unpacklo_epi16(four[2], four[3]);
  const __m512i high23 = _mm512_unpackhi_epi16(four[2], four[3]);
  // In each 128-bit part four rows of one group, then the same four of the next.
  const __m512i two_groups[4] = {
      _mm512_unpacklo_epi32(low01, low23), _mm512_unpackhi_epi32(low01, low23),
      _mm512_unpacklo_epi32(high01, high23), _mm512_unpackhi_epi32(high01, high23)};
  const __m512i by_group = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  for (size_t i = 0; i < 4; ++i) {
    const __m512i ordered = _mm512_permutexvar_epi64(by_group, two_groups[i]);
    const __m512 even = _mm512_cvtph_ps(_mm512_castsi512_si256(ordered));
    const __m512 odd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(ordered, 1));
    out[2 * i] = _mm512_mul_ps(even, unit);
    out[2 * i + 1] = _mm512_mul_ps(odd, unit);
  }
}

// DecodeScalesAvx512 where each piece is a group.
void DecodeGroups(const uint8_t* const* rows, size_t first, size_t count, float unit, float* out) {
  const __m512 factor = _mm512_set1_ps(unit);
  __m512 scales[8];
  size_t done = 0;
  for (; done + 8 <= count; done += 8) {
    TransposeScales(rows, first + done, 0xff, factor, scales);
    for (size_t i = 0; i < 8; ++i) _mm512_store_ps(out + (done + i) * kWideRows, scales[i]);
  }
  if (done == count) return;
  const auto there = static_cast<__mmask8>((1u << (count - done)) - 1);
  TransposeScales(rows, first + done, there, factor, scales);
  for (size_t i = 0; done < count; ++i, ++done) _mm512_store_ps(out + done * kWideRows, scales[i]);
}

}  // namespace

WideTile MakeWideTile(const PlainWeights& weights, size_t row, size_t row_end) {
  const int codes_shift = weights.format == WeightFormat::kSmoeQ4 ? 1 : 2;  // 2 or 4 in a byte
  WideTile tile;
  tile.row_count = Min(kWideRows, row_end - row);
  for (size_t i = 0; i < kWideRows; ++i) {
    tile.row[i] = row + Min(i, tile.row_count - 1);
    tile.codes[i] = weights.data + (tile.row[i] * weights.cols >> codes_shift);
  }
  return tile;
}

void DecodeScalesAvx512(const PlainWeights& weights, const WideTile& tile, size_t piece_cols,
                        size_t first, size_t count, float* out) {
  const float unit = weights.format == WeightFormat::kSmoeQ4 ? kQ4Unit : kQ2Unit;
  const size_t repeat = weights.group_size / piece_cols;  // pieces that share a group
  const size_t end = first + count;
  if (weights.cols % weights.group_size == 0) {
    const uint8_t* rows[kWideRows];
    for (size_t i = 0; i < kWideRows; ++i) {
      rows[i] = weights.scales + tile.row[i] * (weights.cols / weights.group_size) * 2;
    }
    if (repeat == 1) return DecodeGroups(rows, first, count, unit, out);
    const size_t group_end = (end - 1) / repeat + 1;
    for (size_t group = first / repeat; group < group_end; group += 8) {
      const size_t groups = Min(8, group_end - group);
      __m512 scales[8];
      TransposeScales(rows, group, static_cast<__mmask8>((1u << groups) - 1), _mm512_set1_ps(unit),
                      scales);
      for (size_t i = 0; i < groups; ++i) {
        const size_t from = (group + i) * repeat;
        const size_t piece_end = Min(from + repeat, end);
        for (size_t piece = from < first ? first : from; piece < piece_end; ++piece) {
          _mm512_store_ps(out + (piece - first) * kWideRows, scales[i]);
        }
      }
    }
    return;
  }
  for (size_t i = 0; i < kWideRows; ++i) {
    for (size_t piece = first; piece < end; ++piece) {
      const uint64_t flat = tile.row[i] * weights.cols + piece * piece_cols;
      const float scale = ScaleAt(weights.scales, flat / weights.group_size);
      out[(piece - first) * kWideRows + i] = scale * unit;
    }
  }
}

// Rows of whole blocks, and groups of 32 or any multiple of 64; the rest is rarer and left to AVX2.
void MatMulInt8Avx512(const tensor::WeightView& view, const QuantisedRows& x,
                      const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (weights.format == WeightFormat::kNvfp4) {
    if (weights.rows < kNvfp4IntRowsMin) return MatMulInt8Scalar(view, x, y);
    return MatMulInt8Nvfp4Avx512(weights, x, y);
  }
  if (weights.format == WeightFormat::kInt8) return MatMulInt8TilesAvx512(weights, x, y);
  const bool is_wide = weights.group_size % kActivationBlock == 0;
  if (weights.cols == 0 || weights.cols % kActivationBlock != 0 ||
      !(is_wide || weights.group_size == 32)) {
    return MatMulInt8Avx2(view, x, y);
  }
  if (x.token_count >= kWideBatchTokensMin) return MatMulInt8BatchAvx512(weights, x, y);
  if (weights.format == WeightFormat::kSmoeQ4) {
    if (is_wide) return MatMul<Q4, 2>(weights, x, y);
    return MatMul<Q4, 4>(weights, x, y);
  }
  if (is_wide) return MatMul<Q2, 4>(weights, x, y);
  MatMulInt8Avx2(view, x, y);
}

}  // namespace smoe::kernels
#endif
