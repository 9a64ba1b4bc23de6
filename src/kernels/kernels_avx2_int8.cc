// Integer products for one or two tokens; kernels_avx2.cc says what holds for all of the table.
//
// Eight rows together. A register of 16-bit sums holds one row's products; two rounds of horizontal
// adds leave, in each 128-bit half, [row 0: A B][row 1: A B][row 2: A B][row 3: A B], where A and B
// are the first and second half of the columns that this 128-bit half of the codes covers. With
// Z2 = 15 or 3, 2 A - Z2 * (sum of the activations in A) is at most 15 * 127 * 16 = 30480 in
// magnitude for Q4 (16 columns), 3 * 127 * 32 for Q2 (32 columns): it fits, and may wrap before.
#include "kernels/avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

// clang-format off
alignas(16) constexpr uint8_t kEvenThenOdd[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                  1, 3, 5, 7, 9, 11, 13, 15};
alignas(16) constexpr uint8_t kByPhase[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
// clang-format on

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
__m256i Load256(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
size_t Min(size_t a, size_t b) { return a < b ? a : b; }

float ScaleAt(const uint8_t* scales, uint64_t group) {
  uint16_t bits;
  __builtin_memcpy(&bits, scales + group * 2, sizeof(bits));
  return _cvtsh_ss(bits);
}

constexpr size_t kScaleEntries = 128;  // vectors of eight row scales decoded at once: 4 KiB

struct Activations {
  __m256i phase[4];   // codes as the weights' bytes want them; Q4 uses the first two
  __m256i zero_part;  // Z2 * sums, in the layout above
};

__m256i SumPhases(const __m256i* phase, const __m256i* codes, int phase_count) {
  __m256i sum = _mm256_maddubs_epi16(codes[0], phase[0]);
  for (int i = 1; i < phase_count; ++i) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[i], phase[i]));
  }
  return sum;
}

void SetZeroPart(Activations* x, int phase_count, int16_t zero2) {
  const __m256i one = _mm256_set1_epi8(1);
  const __m256i ones[4] = {one, one, one, one};
  __m256i sum = SumPhases(x->phase, ones, phase_count);
  sum = _mm256_hadd_epi16(sum, sum);
  sum = _mm256_hadd_epi16(sum, sum);
  x->zero_part = _mm256_mullo_epi16(sum, _mm256_set1_epi16(zero2));
}

// 64 columns: phase 0 are the even ones, phase 1 the odd ones.
struct Q4 {
  static constexpr size_t kBlocks = 1;  // blocks of 64 columns in 32 bytes of a row
  static constexpr size_t kCodesPerByte = 2;

  static Activations Arrange(const int8_t* codes) {
    const __m256i shuffle = _mm256_broadcastsi128_si256(Load128(kEvenThenOdd));
    __m256i first = _mm256_shuffle_epi8(Load256(codes), shuffle);
    __m256i second = _mm256_shuffle_epi8(Load256(codes + 32), shuffle);
    first = _mm256_permute4x64_epi64(first, 0xd8);
    second = _mm256_permute4x64_epi64(second, 0xd8);
    Activations x;
    x.phase[0] = _mm256_permute2x128_si256(first, second, 0x20);
    x.phase[1] = _mm256_permute2x128_si256(first, second, 0x31);
    SetZeroPart(&x, 2, tensor::kSmoeQ4Zero2);
    return x;
  }

  static __m256i RowSums(__m256i bytes, const Activations& x) {
    const __m256i mask = _mm256_set1_epi8(0x0f);
    const __m256i codes[2] = {_mm256_and_si256(bytes, mask),
                              _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask)};
    return SumPhases(x.phase, codes, 2);
  }
};

// 128 columns, two blocks of activations, one in each 128-bit half. Phase k: columns 4 j + k.
struct Q2 {
  static constexpr size_t kBlocks = 2;
  static constexpr size_t kCodesPerByte = 4;

  static Activations Arrange(const int8_t* codes) {
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
    Activations x;
    x.phase[0] = _mm256_unpacklo_epi64(low01, low23);
    x.phase[1] = _mm256_unpackhi_epi64(low01, low23);
    x.phase[2] = _mm256_unpacklo_epi64(high01, high23);
    x.phase[3] = _mm256_unpackhi_epi64(high01, high23);
    SetZeroPart(&x, 4, tensor::kSmoeQ2Zero2);
    return x;
  }

  static __m256i RowSums(__m256i bytes, const Activations& x) {
    const __m256i mask = _mm256_set1_epi8(0x03);
    const __m256i codes[4] = {_mm256_and_si256(bytes, mask),
                              _mm256_and_si256(_mm256_srli_epi16(bytes, 2), mask),
                              _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask),
                              _mm256_and_si256(_mm256_srli_epi16(bytes, 6), mask)};
    return SumPhases(x.phase, codes, 4);
  }
};

struct Dots {
  __m256i rows03;  // 16-bit sums in the layout above, zero part taken off
  __m256i rows47;
};

template <class Format>
Dots DotRows(const uint8_t* const* rows, size_t offset, const Activations& x) {
  __m256i pair[4];
  for (int i = 0; i < 4; ++i) {
    pair[i] = _mm256_hadd_epi16(Format::RowSums(Load256(rows[2 * i] + offset), x),
                                Format::RowSums(Load256(rows[2 * i + 1] + offset), x));
  }
  const __m256i rows03 = _mm256_hadd_epi16(pair[0], pair[1]);
  const __m256i rows47 = _mm256_hadd_epi16(pair[2], pair[3]);
  return {_mm256_sub_epi16(_mm256_add_epi16(rows03, rows03), x.zero_part),
          _mm256_sub_epi16(_mm256_add_epi16(rows47, rows47), x.zero_part)};
}

// One 128-bit half of both: a row in each lane.
__m256i FirstHalves(__m256i rows03, __m256i rows47) {
  return _mm256_permute2x128_si256(rows03, rows47, 0x20);
}
__m256i SecondHalves(__m256i rows03, __m256i rows47) {
  return _mm256_permute2x128_si256(rows03, rows47, 0x31);
}
__m256i OnlyA(__m256i sums) { return _mm256_srai_epi32(_mm256_slli_epi32(sums, 16), 16); }
__m256i OnlyB(__m256i sums) { return _mm256_srai_epi32(sums, 16); }
__m256i BothAB(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

__m256 AddPiece(__m256i dot, const float* w_scales, __m256 x_scale, __m256 sum) {
  const __m256 scale = _mm256_mul_ps(_mm256_load_ps(w_scales), x_scale);
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
}

// The pieces of the 32 bytes in the order of their columns. A piece is one, a half or a quarter of
// them, whatever shares a group and a block. `is_half`: only the first half is there.
template <class Format, int kPieces>
__m256 AddPieces(const Dots& dots, const float* w_scales, const float* x_scales, bool is_half,
                 __m256 sum) {
  const __m256 x_first = _mm256_broadcast_ss(x_scales);
  if constexpr (kPieces == 1) {
    const __m256i rows03 = BothAB(dots.rows03);
    const __m256i rows47 = BothAB(dots.rows47);
    const __m256i dot = _mm256_add_epi32(FirstHalves(rows03, rows47), SecondHalves(rows03, rows47));
    return AddPiece(dot, w_scales, x_first, sum);
  }
  const __m256 x_second = is_half ? x_first : _mm256_broadcast_ss(x_scales + (Format::kBlocks - 1));
  if constexpr (kPieces == 2) {
    const __m256i rows03 = BothAB(dots.rows03);
    const __m256i rows47 = BothAB(dots.rows47);
    sum = AddPiece(FirstHalves(rows03, rows47), w_scales, x_first, sum);
    if (is_half) return sum;
    return AddPiece(SecondHalves(rows03, rows47), w_scales + kIntRows, x_second, sum);
  }
  const __m256i a03 = OnlyA(dots.rows03);
  const __m256i b03 = OnlyB(dots.rows03);
  const __m256i a47 = OnlyA(dots.rows47);
  const __m256i b47 = OnlyB(dots.rows47);
  sum = AddPiece(FirstHalves(a03, a47), w_scales, x_first, sum);
  sum = AddPiece(FirstHalves(b03, b47), w_scales + kIntRows, x_first, sum);
  if (is_half) return sum;
  sum = AddPiece(SecondHalves(a03, a47), w_scales + 2 * kIntRows, x_second, sum);
  return AddPiece(SecondHalves(b03, b47), w_scales + 3 * kIntRows, x_second, sum);
}

// Eight short streams look random to the processor, but rows lie behind one another: a tile is one
// stretch of memory, and what comes kPrefetchBytes behind its columns so far is wanted soon. An
// address behind the matrix is harmless, since a prefetch cannot fault.
constexpr size_t kPrefetchBytes = 4096;

void PrefetchRows(const uint8_t* first_row, size_t offset) {
  const auto at = reinterpret_cast<uintptr_t>(first_row) + offset * kIntRows + kPrefetchBytes;
  for (size_t i = 0; i < 32 * kIntRows; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T0);
  }
}

// Adds the columns [col, col_end) of eight rows for one token. Requires multiples of 64, and col a
// multiple of what 32 bytes hold.
template <class Format, int kPieces>
__m256 AddColumns(const uint8_t* const* rows, const int8_t* codes, const float* x_scales,
                  const float* w_scales, size_t col, size_t col_end, __m256 sum) {
  constexpr size_t kCols = Format::kBlocks * kActivationBlock;
  for (; col + kCols <= col_end; col += kCols) {
    PrefetchRows(rows[0], col / Format::kCodesPerByte);
    const Activations x = Format::Arrange(codes + col);
    const Dots dots = DotRows<Format>(rows, col / Format::kCodesPerByte, x);
    sum = AddPieces<Format, kPieces>(dots, w_scales, x_scales + col / kActivationBlock, false, sum);
    w_scales += kPieces * kIntRows;
  }
  if (col == col_end) return sum;
  // Half of 32 bytes is left: the last of the matrix, perhaps, so it is copied before it is loaded.
  uint8_t bytes[kIntRows][32] = {};
  const uint8_t* half_rows[kIntRows];
  for (size_t row = 0; row < kIntRows; ++row) {
    __builtin_memcpy(bytes[row], rows[row] + col / Format::kCodesPerByte, 16);
    half_rows[row] = bytes[row];
  }
  int8_t half_codes[kCols] = {};
  __builtin_memcpy(half_codes, codes + col, kActivationBlock);
  const Dots dots = DotRows<Format>(half_rows, 0, Format::Arrange(half_codes));
  return AddPieces<Format, kPieces>(dots, w_scales, x_scales + col / kActivationBlock, true, sum);
}

// The scales of eight groups of eight rows, a row per lane; rows[i] points at row i's first.
void TransposeScales(const uint8_t* const* rows, size_t group, __m256 unit, __m256* out) {
  __m128i r[8];
  __m128i t[8];
  for (size_t i = 0; i < 8; ++i) r[i] = Load128(rows[i] + group * 2);
  for (size_t i = 0; i < 4; ++i) {
    t[i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
    t[i + 4] = _mm_unpackhi_epi16(r[i], r[i + 4]);
  }
  for (size_t i = 0; i < 8; i += 4) {
    r[i] = _mm_unpacklo_epi16(t[i], t[i + 2]);
    r[i + 1] = _mm_unpackhi_epi16(t[i], t[i + 2]);
    r[i + 2] = _mm_unpacklo_epi16(t[i + 1], t[i + 3]);
    r[i + 3] = _mm_unpackhi_epi16(t[i + 1], t[i + 3]);
  }
  // r[0], r[1]: groups 0..3 of rows 0, 2, 4, 6; r[2], r[3]: of rows 1, 3, 5, 7; r[4..7]:
  // groups 4..7.
  for (size_t i = 0; i < 8; i += 4) {
    t[i] = _mm_unpacklo_epi16(r[i], r[i + 2]);
    t[i + 1] = _mm_unpackhi_epi16(r[i], r[i + 2]);
    t[i + 2] = _mm_unpacklo_epi16(r[i + 1], r[i + 3]);
    t[i + 3] = _mm_unpackhi_epi16(r[i + 1], r[i + 3]);
  }
  for (size_t i = 0; i < 8; ++i) out[i] = _mm256_mul_ps(_mm256_cvtph_ps(t[i]), unit);
}

template <class Format, int kPieces>
void MatMulTiles(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  constexpr size_t kPieceCols = Format::kBlocks * kActivationBlock / kPieces;
  alignas(32) float w_scales[kScaleEntries * kIntRows];
  for (size_t row = y.row_begin; row < y.row_end; row += kIntRows) {
    const IntTile tile = MakeTile(weights, row, y.row_end);
    const __m256i is_there = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(tile.row_count)),
                                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const size_t pieces = weights.cols / kPieceCols;
    for (size_t first = 0; first < pieces; first += kScaleEntries) {
      const size_t count = Min(kScaleEntries, pieces - first);
      DecodeScalesAvx2(weights, tile, kPieceCols, first, count, w_scales);
      for (size_t token = 0; token < x.token_count; ++token) {
        // Between two stretches of columns the sums wait in the output.
        float* out = y.out + token * y.out_stride + row;
        __m256 sum = first == 0 ? _mm256_setzero_ps() : _mm256_maskload_ps(out, is_there);
        sum = AddColumns<Format, kPieces>(tile.codes, x.codes + token * x.col_stride,
                                          x.scales + token * (x.col_stride / kActivationBlock),
                                          w_scales, first * kPieceCols,
                                          (first + count) * kPieceCols, sum);
        _mm256_maskstore_ps(out, is_there, sum);
      }
    }
  }
}

// Stores eight codes for each of the eight registers' floats.
void StoreCodes(const __m256* values, int8_t* codes) {
  __m256i words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = _mm256_packs_epi32(_mm256_cvtps_epi32(values[2 * i]),
                                  _mm256_cvtps_epi32(values[2 * i + 1]));
  }
  // Packing goes by 128-bit halves: each result holds the dwords 0 2 4 6 of the first half's
  // registers and 1 3 5 7, in this order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = _mm256_packs_epi16(words[2 * i], words[2 * i + 1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 32 * i),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
}

bool QuantiseBlock(const float* x, int8_t* codes, float* scale) {
  __m256 values[8];
  __m256i magnitude_max = _mm256_setzero_si256();
  for (size_t i = 0; i < 8; ++i) {
    values[i] = _mm256_loadu_ps(x + 8 * i);
    const __m256i magnitude =
        _mm256_and_si256(_mm256_castps_si256(values[i]), _mm256_set1_epi32(0x7fffffff));
    magnitude_max = _mm256_max_epi32(magnitude_max, magnitude);
  }
  __m128i max = _mm_max_epi32(_mm256_castsi256_si128(magnitude_max),
                              _mm256_extracti128_si256(magnitude_max, 1));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4e));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0xb1));
  if (_mm_cvtsi128_si32(max) >= 0x7f800000) return false;
  const float absmax = _mm_cvtss_f32(_mm_castsi128_ps(max));
  const bool is_zero = absmax < kQuantiseMin;
  *scale = is_zero ? 0 : absmax / 127;
  const __m256 inverse = _mm256_set1_ps(is_zero ? 0 : 127 / absmax);
  for (__m256& value : values) value = _mm256_mul_ps(value, inverse);
  StoreCodes(values, codes);
  return true;
}

}  // namespace

IntTile MakeTile(const PlainWeights& weights, size_t row, size_t row_end) {
  const size_t codes_per_byte = weights.format == WeightFormat::kSmoeQ4 ? 2 : 4;
  IntTile tile;
  tile.row_count = Min(kIntRows, row_end - row);
  for (size_t i = 0; i < kIntRows; ++i) {
    tile.row[i] = row + Min(i, tile.row_count - 1);
    tile.codes[i] = weights.data + tile.row[i] * weights.cols / codes_per_byte;
  }
  return tile;
}

void DecodeScalesAvx2(const PlainWeights& weights, const IntTile& tile, size_t piece_cols,
                      size_t first, size_t count, float* out) {
  const float unit = weights.format == WeightFormat::kSmoeQ4 ? kQ4Unit : kQ2Unit;
  const size_t repeat = weights.group_size / piece_cols;  // pieces that share a group
  const size_t last_group = (first + count - 1) / repeat;
  size_t group = first / repeat;
  if (weights.cols % weights.group_size == 0 && last_group - group + 1 >= 8) {
    const uint8_t* rows[kIntRows];
    for (size_t i = 0; i < kIntRows; ++i) {
      rows[i] = weights.scales + tile.row[i] * (weights.cols / weights.group_size) * 2;
    }
    while (group <= last_group) {
      group = Min(group, last_group - 7);  // the last eight may overlap those before
      __m256 scales[8];
      TransposeScales(rows, group, _mm256_set1_ps(unit), scales);
      for (size_t i = 0; i < 8; ++i, ++group) {
        size_t piece = group * repeat;
        const size_t end = Min(piece + repeat, first + count);
        if (piece < first) piece = first;
        for (; piece < end; ++piece) _mm256_store_ps(out + (piece - first) * kIntRows, scales[i]);
      }
    }
    return;
  }
  for (size_t i = 0; i < kIntRows; ++i) {
    for (size_t piece = first; piece < first + count; ++piece) {
      const uint64_t flat = tile.row[i] * weights.cols + piece * piece_cols;
      const float scale = ScaleAt(weights.scales, flat / weights.group_size);
      out[(piece - first) * kIntRows + i] = scale * unit;
    }
  }
}

// Rows of whole blocks, and groups of 8, 16, 32, or any multiple of 64; the rest is rare and left
// to the scalar code.
void MatMulInt8Avx2(const tensor::WeightView& view, const QuantisedRows& x, const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (weights.format == WeightFormat::kNvfp4) {
    if (weights.rows < kNvfp4IntRowsMin) return MatMulInt8Scalar(view, x, y);
    return MatMulInt8Nvfp4Avx2(weights, x, y);
  }
  if (weights.format == WeightFormat::kInt8) return MatMulInt8Scalar(view, x, y);
  const uint64_t group = weights.group_size;
  const bool is_wide = group % kActivationBlock == 0;
  const bool is_regular = is_wide || group == 32 || group == 16 || group == 8;
  if (weights.cols == 0 || weights.cols % kActivationBlock != 0 || !is_regular) {
    return MatMulInt8Scalar(view, x, y);
  }
  if (x.token_count >= kBatchTokensMin) return MatMulInt8BatchAvx2(weights, x, y);
  if (weights.format == WeightFormat::kSmoeQ4) {
    if (is_wide) return MatMulTiles<Q4, 1>(weights, x, y);
    if (group == 32) return MatMulTiles<Q4, 2>(weights, x, y);
    if (group == 16) return MatMulTiles<Q4, 4>(weights, x, y);
  } else {
    if (is_wide) return MatMulTiles<Q2, 2>(weights, x, y);
    if (group == 32) return MatMulTiles<Q2, 4>(weights, x, y);
  }
  MatMulInt8BatchAvx2(weights, x, y);
}

bool QuantiseRowAvx2(const float* x, size_t cols, int8_t* codes, float* scales) {
  size_t col = 0;
  for (; col + kActivationBlock <= cols; col += kActivationBlock) {
    if (!QuantiseBlock(x + col, codes + col, scales + col / kActivationBlock)) return false;
  }
  if (col == cols) return true;
  float padded[kActivationBlock] = {};
  __builtin_memcpy(padded, x + col, (cols - col) * sizeof(float));
  return QuantiseBlock(padded, codes + col, scales + col / kActivationBlock);
}

}  // namespace smoe::kernels
#endif
