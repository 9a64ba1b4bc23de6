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
constexpr size_t kGroups = 8;           // whose scales are transposed together
constexpr size_t kUnitsTogether = 4;    // whole ones, for whose pieces that is done at once

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Scales stay f16 until a piece is added: [piece][row].
using ScaleBits = uint16_t[kWideRows];

__m512 LoadScales(const ScaleBits& bits, float unit) {
  const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  return _mm512_mul_ps(_mm512_cvtph_ps(sixteen), _mm512_set1_ps(unit));
}

// The scales of eight groups of sixteen rows, a row per lane: out[i] holds groups 2 i and 2 i + 1.
// `load(row)` gives the row's eight.
template <class Load>
[[gnu::always_inline]] inline void TransposeScales(const Load& load, __m512i* out) {
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
  for (size_t i = 0; i < 4; ++i) out[i] = _mm512_permutexvar_epi64(by_group, two_groups[i]);
}

// Eight groups of sixteen rows whose scales lie `stride` bytes apart.
[[gnu::always_inline]] inline void DecodeEight(const uint8_t* scales, size_t stride,
                                               ScaleBits* out) {
  __m512i two_groups[kGroups / 2];
  TransposeScales([&](size_t row) { return Load128(scales + row * stride); }, two_groups);
  for (size_t i = 0; i < kGroups / 2; ++i) _mm512_storeu_si512(out[2 * i], two_groups[i]);
}

// The scales of the pieces [first, first + count), wherever groups begin and end.
void DecodeScales(const PlainWeights& weights, const WideTile& tile, size_t piece_cols,
                  size_t first, size_t count, ScaleBits* out) {
  const size_t repeat = weights.group_size / piece_cols;  // pieces that share a group
  const size_t end = first + count;
  if (weights.cols % weights.group_size != 0) {
    for (size_t i = 0; i < kWideRows; ++i) {
      for (size_t piece = first; piece < end; ++piece) {
        const uint64_t flat = tile.row[i] * weights.cols + piece * piece_cols;
        __builtin_memcpy(&out[piece - first][i], weights.scales + flat / weights.group_size * 2,
                         sizeof(uint16_t));
      }
    }
    return;
  }
  const uint8_t* rows[kWideRows];
  for (size_t i = 0; i < kWideRows; ++i) {
    rows[i] = weights.scales + tile.row[i] * (weights.cols / weights.group_size) * 2;
  }
  const size_t group_end = (end - 1) / repeat + 1;
  for (size_t group = first / repeat; group < group_end; group += kGroups) {
    const size_t groups = Min(kGroups, group_end - group);
    const auto there = static_cast<__mmask8>((1u << groups) - 1);
    __m512i two_groups[kGroups / 2];
    TransposeScales([&](size_t row) { return _mm_maskz_loadu_epi16(there, rows[row] + group * 2); },
                    two_groups);
    for (size_t i = 0; i < groups; ++i) {
      const __m256i bits = i % 2 == 0 ? _mm512_castsi512_si256(two_groups[i / 2])
                                      : _mm512_extracti64x4_epi64(two_groups[i / 2], 1);
      const size_t from = (group + i) * repeat;
      const size_t piece_end = Min(from + repeat, end);
      for (size_t piece = from < first ? first : from; piece < piece_end; ++piece) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[piece - first]), bits);
      }
    }
  }
}

// The first `count` of 16 lanes.
__mmask16 FirstLanes(size_t count) { return static_cast<__mmask16>((1u << Min(count, 16)) - 1); }

// Activations of one unit as the weights' bytes want them.
template <class Format>
struct Arranged {
  __m512i phase[Format::kPhases];
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
  static constexpr float kScaleUnit = kQ4Unit;

  static void Arrange(const int8_t* codes, __m512i* phases) {
    const __m512i first = _mm512_loadu_si512(codes);
    const __m512i second = _mm512_loadu_si512(codes + 64);
    phases[0] = Low(_mm512_cvtepi16_epi8(first), _mm512_cvtepi16_epi8(second));
    phases[1] = Low(_mm512_cvtepi16_epi8(_mm512_srli_epi16(first, 8)),
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
  static constexpr float kScaleUnit = kQ2Unit;

  static void Arrange(const int8_t* codes, __m512i* phases) {
    for (unsigned phase = 0; phase < kPhases; ++phase) {
      __m128i quarter[4];
      for (size_t i = 0; i < 4; ++i) {
        const __m512i columns = _mm512_loadu_si512(codes + 64 * i);
        quarter[i] = _mm512_cvtepi32_epi8(_mm512_srli_epi32(columns, 8 * phase));
      }
      phases[phase] =
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
void ArrangeStretch(const int8_t* codes, size_t count, Arranged<Format>* out) {
  constexpr size_t kCols = kBytes * Format::kCodesPerByte;
  for (size_t col = 0; col < count; col += kCols, ++out) {
    int8_t padded[kCols] = {};
    const bool is_whole = col + kCols <= count;
    if (!is_whole) __builtin_memcpy(padded, codes + col, count - col);
    Format::Arrange(is_whole ? codes + col : padded, out->phase);
    __m512i sum = _mm512_setzero_si512();
    for (size_t i = 0; i < Format::kPhases; ++i) {
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), out->phase[i]);
    }
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    out->zero_part = _mm512_mullo_epi32(sum, _mm512_set1_epi32(-Format::kZero2));
  }
}

// Rows lie behind one another: sixteen of them are one stretch of memory, and the next sixteen the
// next. Where whole rows are taken, the lines of the latter are asked for in their order, one for
// each line that is taken; else the same columns of each row. They go to the second cache, which
// lets more of them be under way than the first one does; what is taken next comes from there to
// the first. A prefetch cannot fault.
struct Ahead {
  uintptr_t at;
  size_t line_step;  // from a line to the next
  size_t unit_step;
};
constexpr size_t kNearBytes = 128;

[[gnu::always_inline]] inline const char* Address(uintptr_t at) {
  return reinterpret_cast<const char*>(at);
}

// One unit of sixteen rows that lie `stride` apart: dots[token][i], of the rows 4 i to 4 i + 3, as
// said above.
template <class Format, size_t kTokens>
[[gnu::always_inline]] inline void DotRows(const uint8_t* rows, size_t stride, const Ahead& ahead,
                                           const Arranged<Format>* const* x, __m512i (*dots)[4]) {
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i two = _mm512_set1_epi16(2);
  uintptr_t wanted_soon = ahead.at;
  for (size_t i = 0; i < 4; ++i) {
    __m512i pairs[kTokens][2];
    for (size_t pair = 0; pair < 2; ++pair) {
      __m512i sums[kTokens][2];
      for (size_t row = 0; row < 2; ++row) {
        const size_t place = 2 * pair + row;
        const uint8_t* const at = rows + place * stride;
        _mm_prefetch(Address(wanted_soon + place * ahead.line_step), _MM_HINT_T1);
        _mm_prefetch(Address(reinterpret_cast<uintptr_t>(at) + kNearBytes), _MM_HINT_T0);
        __m512i codes[Format::kPhases];
        Format::Split(_mm512_loadu_si512(at), codes);
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
    rows += 4 * stride;
    wanted_soon += 4 * ahead.line_step;
    // Keeps g++ 12 from holding sixteen addresses, and from asking for all lines at once.
    asm("" : "+r"(rows), "+r"(wanted_soon));
  }
}

// From the parts of four rows each to a row in each lane. kPieces = 2: parts 0 and 1 are one piece,
// 2 and 3 the other. kPieces = 4: each part is one.
template <size_t kPieces>
[[gnu::always_inline]] inline void GatherPieces(const __m512i* dots, __m512i* pieces) {
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
[[gnu::always_inline]] inline __m512 AddPieces(const __m512i* dots, const ScaleBits* w_scales,
                                               const float* x_scales, size_t count, __m512 sum) {
  constexpr size_t kPieceCols = kBytes * Format::kCodesPerByte / kPieces;
  __m512i pieces[kPieces];
  GatherPieces<kPieces>(dots, pieces);
  for (size_t i = 0; i < kPieces; ++i) {
    if (i >= count) break;
    const __m512 x_scale = _mm512_set1_ps(x_scales[i * kPieceCols / kActivationBlock]);
    const __m512 scale = _mm512_mul_ps(LoadScales(w_scales[i], Format::kScaleUnit), x_scale);
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(pieces[i]), scale, sum);
  }
  return sum;
}

// One stretch of columns, and the scales of sixteen rows there.
template <class Format, size_t kTokens>
struct Stretch {
  static constexpr size_t kVectors = (kTokens <= 2 ? 2 : 1) * kStretchVectors;
  size_t col;
  size_t col_count;  // a multiple of kActivationBlock
  Arranged<Format> x[kTokens][kVectors];
  const float* x_scales[kTokens];
  alignas(64) ScaleBits w_scales[kVectors * kPiecesMax];
};

inline void PrefetchScales(const PlainWeights& weights, size_t row) {
  const size_t row_bytes = weights.cols / weights.group_size * 2;
  const uintptr_t at = reinterpret_cast<uintptr_t>(weights.scales) + row * row_bytes;
  for (size_t i = 0; i < kWideRows * row_bytes; i += 64) {
    _mm_prefetch(Address(at + i), _MM_HINT_T0);
  }
}

// The sums of one tile so far, and what the next unit adds to them.
template <class Format, size_t kPieces, size_t kTokens>
struct Adder {
  static constexpr size_t kCols = kBytes * Format::kCodesPerByte;
  static constexpr size_t kPieceCols = kCols / kPieces;

  __m512 sums[kTokens];
  const Arranged<Format>* x[kTokens];
  const float* x_scales[kTokens];
  const ScaleBits* w_scales;
  Ahead ahead;

  [[gnu::always_inline]] void AddUnit(const uint8_t* rows, size_t stride, size_t piece_count) {
    __m512i dots[kTokens][4];
    DotRows<Format, kTokens>(rows, stride, ahead, x, dots);
    for (size_t t = 0; t < kTokens; ++t) {
      sums[t] = AddPieces<Format, kPieces>(dots[t], w_scales, x_scales[t], piece_count, sums[t]);
      ++x[t];
      x_scales[t] += kCols / kActivationBlock;
    }
    w_scales += kPieces;
    ahead.at += ahead.unit_step;
  }
};

// Sixteen rows, fewer at the end of the range. Between two stretches of columns the sums wait in
// the output.
template <class Format, size_t kPieces, size_t kTokens>
void AddTile(const PlainWeights& weights, size_t row, const MatMulRange& y, size_t token,
             Stretch<Format, kTokens>* stretch) {
  using TileAdder = Adder<Format, kPieces, kTokens>;
  constexpr size_t kCols = TileAdder::kCols;
  constexpr size_t kPieceCols = TileAdder::kPieceCols;
  const size_t row_count = Min(kWideRows, y.row_end - row);
  const __mmask16 is_there = FirstLanes(row_count);
  const size_t stride = weights.cols / Format::kCodesPerByte;
  const uint8_t* rows = weights.data + row * stride + stretch->col / Format::kCodesPerByte;
  const bool is_whole_rows = stretch->col_count == weights.cols;
  float* const out = y.out + token * y.out_stride + row;
  TileAdder adder;
  adder.w_scales = stretch->w_scales;
  adder.ahead = {.at = reinterpret_cast<uintptr_t>(rows) + kWideRows * stride,
                 .line_step = is_whole_rows ? kBytes : stride,
                 .unit_step = is_whole_rows ? kWideRows * kBytes : kBytes};
  for (size_t t = 0; t < kTokens; ++t) {
    adder.sums[t] = stretch->col == 0 ? _mm512_setzero_ps()
                                      : _mm512_maskz_loadu_ps(is_there, out + t * y.out_stride);
    adder.x[t] = stretch->x[t];
    adder.x_scales[t] = stretch->x_scales[t];
  }
  const size_t piece = stretch->col / kPieceCols;
  const size_t piece_count = stretch->col_count / kPieceCols;
  size_t col = 0;
  if (row_count == kWideRows && weights.group_size == kPieceCols && piece_count >= kGroups &&
      stretch->col_count % kCols == 0) {
    const size_t scale_stride = weights.cols / kPieceCols * 2;
    const uint8_t* const scales = weights.scales + row * scale_stride + piece * 2;
    while (col < stretch->col_count) {
      for (size_t i = 0; i < kUnitsTogether * kPieces; i += kGroups) {
        // The last eight may overlap those before.
        const size_t at = Min(col / kPieceCols + i, piece_count - kGroups);
        DecodeEight(scales + at * 2, scale_stride, stretch->w_scales + at);
      }
      const size_t end = Min(col + kUnitsTogether * kCols, stretch->col_count);
      for (; col < end; col += kCols, rows += kBytes) adder.AddUnit(rows, stride, kPieces);
    }
  } else {
    DecodeScales(weights, MakeWideTile(weights, row, y.row_end), kPieceCols, piece, piece_count,
                 stretch->w_scales);
  }
  if (row_count == kWideRows) {
    for (; col + kCols <= stretch->col_count; col += kCols, rows += kBytes) {
      adder.AddUnit(rows, stride, kPieces);
    }
  }
  // Perhaps the last bytes of the matrix, so they are copied before they are loaded.
  for (; col < stretch->col_count; col += kCols, rows += kBytes) {
    const size_t left = Min(kCols, stretch->col_count - col);
    uint8_t bytes[kWideRows][kBytes] = {};
    for (size_t i = 0; i < row_count; ++i) {
      __builtin_memcpy(bytes[i], rows + i * stride, left / Format::kCodesPerByte);
    }
    adder.AddUnit(bytes[0], kBytes, left / kPieceCols);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    _mm512_mask_storeu_ps(out + t * y.out_stride, is_there, adder.sums[t]);
  }
}

// kTokens tokens from `token` on.
template <class Format, size_t kPieces, size_t kTokens>
void MatMulTokens(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                  size_t token) {
  constexpr size_t kStretchCols =
      Stretch<Format, kTokens>::kVectors * kBytes * Format::kCodesPerByte;
  Stretch<Format, kTokens> stretch;
  for (stretch.col = 0; stretch.col < weights.cols; stretch.col += kStretchCols) {
    stretch.col_count = Min(kStretchCols, weights.cols - stretch.col);
    for (size_t t = 0; t < kTokens; ++t) {
      ArrangeStretch<Format>(x.codes + (token + t) * x.col_stride + stretch.col, stretch.col_count,
                             stretch.x[t]);
      stretch.x_scales[t] = x.scales + (token + t) * (x.col_stride / kActivationBlock) +
                            stretch.col / kActivationBlock;
    }
    for (size_t row = y.row_begin; row < y.row_end; row += kWideRows) {
      PrefetchScales(weights, row + kWideRows);
      AddTile<Format, kPieces, kTokens>(weights, row, y, token, &stretch);
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
  constexpr size_t kTogether = 32;
  ScaleBits bits[kTogether];
  for (size_t done = 0; done < count; done += kTogether) {
    const size_t together = Min(kTogether, count - done);
    DecodeScales(weights, tile, piece_cols, first + done, together, bits);
    for (size_t i = 0; i < together; ++i) {
      _mm512_store_ps(out + (done + i) * kWideRows, LoadScales(bits[i], unit));
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
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  if (x.token_count >= (is_q4 ? kWideBatchTokensMinQ4 : kWideBatchTokensMinQ2)) {
    return MatMulInt8BatchAvx512(weights, x, y);
  }
  if (is_q4) {
    if (is_wide) return MatMul<Q4, 2>(weights, x, y);
    return MatMul<Q4, 4>(weights, x, y);
  }
  if (is_wide) return MatMul<Q2, 4>(weights, x, y);
  MatMulInt8Avx2(view, x, y);
}

}  // namespace smoe::kernels
#endif
