// kernels/int8_nvfp4_256.h: integer products of NVFP4 in 256-bit registers; see simd_256.h.
//
// Transposed, neighbouring bytes are neighbouring rows, so rows lie in the lanes from the start.
// Byte rows of 32 weight rows are interleaved, so that a byte's neighbours belong to the same
// weight row, two columns on each; low and high nibbles are looked up as 12 + 2 E2M1, which is
// unsigned, and multiplied with activations, broadcast. A sum starts at -12 times the sum of the
// group's activations.
//
// With 16-bit sums two byte rows are interleaved; a sum may wrap on its way, but ends within
// 12 * 127 * 16 = 24384. With vpdpbusd it is four, and sums have 32 bits; rows then lie in the
// lanes as two interleavings of 128-bit halves leave them, 0..3 16..19, 4..7 20..23, and so on,
// and are put in order at the end of the columns.
#pragma once

#include "kernels/simd_256.h"

#if defined(__AVX2__)

namespace smoe::kernels {

namespace {

constexpr size_t kTileRows = kNvfp4IntRowsMin;
constexpr size_t kTileVectors = kTileRows / 8;
constexpr size_t kGroupCols = tensor::kNvfp4Group;
constexpr size_t kGroupBytes = kGroupCols / 2;  // byte rows of a group
constexpr int kOffset = 12;                     // makes twice an E2M1 value unsigned

// clang-format off
alignas(16) constexpr uint8_t kOffsetCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                  12, 11, 10,  9,  8,  6,  4,  0};
#if defined(__AVXVNNI__)
// Of eight columns the four even ones, then the four odd ones.
constexpr size_t kTogetherCols = 8;
alignas(16) constexpr uint8_t kNibbleOrder[16] = {0, 2, 4, 6, 1, 3, 5, 7,
                                               8, 10, 12, 14, 9, 11, 13, 15};
#else
// Of four columns the two even ones, then the two odd ones.
constexpr size_t kTogetherCols = 4;
alignas(16) constexpr uint8_t kNibbleOrder[16] = {0, 2, 1, 3, 4, 6, 5, 7,
                                               8, 10, 9, 11, 12, 14, 13, 15};
#endif
// clang-format on
constexpr size_t kLookUps = kGroupCols / kTogetherCols;  // of a group
constexpr size_t kDots = kTogetherCols / 2;              // registers of sums of a tile
constexpr size_t kTokensTogether = kDots == 2 ? 4 : 3;   // what fits the registers

// E4M3 bytes, each in 16 bits with its sign extended, to f16 bits that mean 2^-8 of their value,
// subnormals included: both have four bits of exponent here. NaN stays NaN.
inline __m256i HalvesFromE4M3(__m256i bytes) {
  const __m256i half =
      _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i nan = _mm256_set1_epi16(0x3f80);
  return _mm256_or_si256(half, _mm256_cmpeq_epi16(_mm256_and_si256(half, nan), nan));
}

// One token's activations of one group.
struct GroupCodes {
  alignas(32) int32_t even[kLookUps];  // as a broadcast wants them: pairs stand twice
  int32_t odd[kLookUps];
  int32_t start;  // -kOffset * their sum
  float x_scale;
};

inline void ArrangeCodes(const int8_t* codes, float x_scale, GroupCodes* out) {
  const __m128i loaded = Load128(codes);
  const __m128i together = _mm_shuffle_epi8(loaded, Load128(kNibbleOrder));
#if defined(__AVXVNNI__)
  const __m128i by_kind = _mm_shuffle_epi32(together, 0xd8);
  _mm_store_si128(reinterpret_cast<__m128i*>(out->even), by_kind);
#else
  const __m128i low = _mm_unpacklo_epi16(together, together);
  const __m128i high = _mm_unpackhi_epi16(together, together);
  const __m128 low_ps = _mm_castsi128_ps(low);
  const __m128 high_ps = _mm_castsi128_ps(high);
  _mm_storeu_ps(reinterpret_cast<float*>(out->even), _mm_shuffle_ps(low_ps, high_ps, 0x88));
  _mm_storeu_ps(reinterpret_cast<float*>(out->odd), _mm_shuffle_ps(low_ps, high_ps, 0xdd));
#endif
  __m128i sum = _mm_maddubs_epi16(_mm_set1_epi8(kOffset), loaded);
  sum = _mm_madd_epi16(sum, _mm_set1_epi16(1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  out->start = -_mm_cvtsi128_si32(sum);
  out->x_scale = x_scale;
}

// Where one group of kTileRows rows lies.
struct GroupTile {
  const uint8_t* codes;  // [kGroupBytes], `stride` apart
  const uint8_t* scales;
  size_t stride;
};

// kTogetherCols columns of the tile, looked up; register i of each belongs to the i-th of sums.
struct LookedUp {
  __m256i even[kDots];
  __m256i odd[kDots];
};

[[gnu::always_inline]] inline LookedUp LookUp(const GroupTile& tile, size_t index) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  const __m256i table = _mm256_broadcastsi128_si256(Load128(kOffsetCodes));
  const uint8_t* at = tile.codes + index * (kTogetherCols / 2) * tile.stride;
  __m256i bytes[kDots];
  const __m256i first = Load256(at);
  const __m256i second = Load256(at + tile.stride);
#if defined(__AVXVNNI__)
  const __m256i third = Load256(at + 2 * tile.stride);
  const __m256i fourth = Load256(at + 3 * tile.stride);
  const __m256i low[2] = {_mm256_unpacklo_epi8(first, second), _mm256_unpacklo_epi8(third, fourth)};
  const __m256i high[2] = {_mm256_unpackhi_epi8(first, second),
                           _mm256_unpackhi_epi8(third, fourth)};
  bytes[0] = _mm256_unpacklo_epi16(low[0], low[1]);
  bytes[1] = _mm256_unpackhi_epi16(low[0], low[1]);
  bytes[2] = _mm256_unpacklo_epi16(high[0], high[1]);
  bytes[3] = _mm256_unpackhi_epi16(high[0], high[1]);
#else
  bytes[0] = _mm256_unpacklo_epi8(first, second);  // rows 0..7 and 16..23
  bytes[1] = _mm256_unpackhi_epi8(first, second);  // rows 8..15 and 24..31
#endif
  LookedUp cols;
  for (size_t i = 0; i < kDots; ++i) {
    const __m256i nibbles = _mm256_srli_epi16(bytes[i], 4);
    cols.even[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes[i], mask));
    cols.odd[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(nibbles, mask));
  }
  return cols;
}

// Four registers of 32-bit sums from one token's registers.
[[gnu::always_inline]] inline void WidenDots(const __m256i* dots, __m256i* wide) {
#if defined(__AVXVNNI__)
  for (size_t i = 0; i < kTileVectors; ++i) wide[i] = dots[i];
#else
  wide[0] = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(dots[0]));
  wide[1] = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(dots[1]));
  wide[2] = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(dots[0], 1));
  wide[3] = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(dots[1], 1));
#endif
}

// Scales of a tile's rows, in the order in which its sums lie.
inline void DecodeScales(const uint8_t* scales, __m256* out) {
  __m256i bytes = Load256(scales);
#if defined(__AVXVNNI__)
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
  const __m128i parts[2] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
  for (size_t i = 0; i < 2; ++i) {
    const __m256i halves = HalvesFromE4M3(_mm256_cvtepi8_epi16(parts[i]));
    out[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    out[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
}

// sums[kTileRows] += dots * (w_scales * x_scale).
[[gnu::always_inline]] inline void AddDots(const __m256i* dots, const __m256* w_scales,
                                           float x_scale, float* sums) {
  __m256i wide[kTileVectors];
  WidenDots(dots, wide);
  const __m256 factor = _mm256_set1_ps(x_scale);
  for (size_t i = 0; i < kTileVectors; ++i) {
    const __m256 dot = _mm256_cvtepi32_ps(wide[i]);
    const __m256 sum = _mm256_loadu_ps(sums + 8 * i);
    _mm256_storeu_ps(sums + 8 * i, _mm256_fmadd_ps(dot, _mm256_mul_ps(w_scales[i], factor), sum));
  }
}

// The tile's sums, from the order of the lanes to that of the rows, times `factor`.
inline void FinishSums(__m256 factor, float* sums) {
  __m256 vectors[kTileVectors];
  for (size_t i = 0; i < kTileVectors; ++i) {
    vectors[i] = _mm256_mul_ps(_mm256_loadu_ps(sums + 8 * i), factor);
  }
#if defined(__AVXVNNI__)
  _mm256_storeu_ps(sums, _mm256_permute2f128_ps(vectors[0], vectors[1], 0x20));
  _mm256_storeu_ps(sums + 8, _mm256_permute2f128_ps(vectors[2], vectors[3], 0x20));
  _mm256_storeu_ps(sums + 16, _mm256_permute2f128_ps(vectors[0], vectors[1], 0x31));
  _mm256_storeu_ps(sums + 24, _mm256_permute2f128_ps(vectors[2], vectors[3], 0x31));
#else
  for (size_t i = 0; i < kTileVectors; ++i) _mm256_storeu_ps(sums + 8 * i, vectors[i]);
#endif
}

// The same rows of the next group: their addresses are too far apart for the processor to foresee.
// A tile is half a cache line wide, so every other one asks for a line. A prefetch cannot fault.
inline void PrefetchNextGroup(const GroupTile& tile, size_t tile_index) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(tile.codes) +
                          (kGroupBytes + tile_index % 2 * (kGroupBytes / 2)) * tile.stride;
  for (size_t i = 0; i < kGroupBytes / 2; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i * tile.stride), _MM_HINT_T0);
  }
}

// One group of one tile for kTokens tokens; sums of token t at sums + t * stride. `look_up(i)`
// gives the i-th LookedUp of the group.
template <size_t kTokens, class LookUpFunction>
[[gnu::always_inline]] inline void AddGroup(const LookUpFunction& look_up, const GroupCodes* x,
                                            const __m256* w_scales, float* sums, size_t stride) {
  __m256i dots[kTokens][kDots];
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kDots; ++i) {
      dots[t][i] = kDots == 2 ? _mm256_set1_epi16(static_cast<short>(x[t].start))
                              : _mm256_set1_epi32(x[t].start);
    }
  }
  for (size_t index = 0; index < kLookUps; ++index) {
    const LookedUp& cols = look_up(index);  // a copy would go through narrow registers
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256i even = _mm256_set1_epi32(x[t].even[index]);
      const __m256i odd = _mm256_set1_epi32(x[t].odd[index]);
      for (size_t i = 0; i < kDots; ++i) {
#if defined(__AVXVNNI__)
        dots[t][i] = _mm256_dpbusd_avx_epi32(dots[t][i], cols.even[i], even);
        dots[t][i] = _mm256_dpbusd_avx_epi32(dots[t][i], cols.odd[i], odd);
#else
        const __m256i four = _mm256_add_epi16(_mm256_maddubs_epi16(cols.even[i], even),
                                              _mm256_maddubs_epi16(cols.odd[i], odd));
        dots[t][i] = _mm256_add_epi16(dots[t][i], four);
#endif
        // As in int8_batch_256.h: g++ 12 would collect products and run out of registers.
        __asm__("" : "+x"(dots[t][i]));
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) AddDots(dots[t], w_scales, x[t].x_scale, sums + t * stride);
}

template <class LookUpFunction>
[[gnu::always_inline]] inline void AddFewTokens(size_t batch, const LookUpFunction& look_up,
                                                const GroupCodes* x, const __m256* w_scales,
                                                float* sums, size_t stride) {
  if (batch == 4) AddGroup<kTokensTogether>(look_up, x, w_scales, sums, stride);
  if (batch == 3) AddGroup<3>(look_up, x, w_scales, sums, stride);
  if (batch == 2) AddGroup<2>(look_up, x, w_scales, sums, stride);
  if (batch == 1) AddGroup<1>(look_up, x, w_scales, sums, stride);
}

constexpr size_t kTokenBatch = 16;
constexpr size_t kSumsMax = 4096;  // of a block of rows: 16 KiB, half of a small L1

// One group of one tile for `batch` tokens. What is looked up waits in memory if more tokens want
// it than fit the registers.
inline void AddTile(const GroupTile& tile, const GroupCodes* x, size_t batch, float* sums,
                    size_t stride) {
  __m256 w_scales[kTileVectors];
  DecodeScales(tile.scales, w_scales);
  if (batch <= kTokensTogether) {
    const auto now = [&](size_t index) __attribute__((always_inline)) {
      return LookUp(tile, index);
    };
    return AddFewTokens(batch, now, x, w_scales, sums, stride);
  }
  LookedUp cols[kLookUps];
  for (size_t index = 0; index < kLookUps; ++index) cols[index] = LookUp(tile, index);
  const auto before = [&](size_t index) __attribute__((always_inline))->const LookedUp& {
    return cols[index];
  };
  while (batch > 0) {  // in even parts: a single token would not hide the latencies
    const size_t part_count = (batch + kTokensTogether - 1) / kTokensTogether;
    const size_t part = (batch + part_count - 1) / part_count;
    AddFewTokens(part, before, x, w_scales, sums, stride);
    x += part;
    sums += part * stride;
    batch -= part;
  }
}

// Where all rows are taken together, groups lie behind one another, so that what comes kFarBytes
// after the next group can be fetched line by line, into the second cache: in that order the
// processor fetches on by itself. Where byte rows are longer than kFarRowsMax it does so unasked.
constexpr size_t kFarBytes = 8192;
constexpr size_t kFarRowsMax = 1024;

inline void PrefetchFar(const GroupTile& first_tile, size_t tile_index) {
  constexpr size_t kTileBytes = kGroupBytes * kTileRows;
  constexpr size_t kLine = 64;
  const uintptr_t first = reinterpret_cast<uintptr_t>(first_tile.codes) +
                          kGroupBytes * first_tile.stride + kFarBytes + tile_index * kTileBytes;
  for (size_t i = 0; i < kTileBytes; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i), _MM_HINT_T1);
  }
  const auto scales = reinterpret_cast<uintptr_t>(first_tile.scales) + first_tile.stride;
  _mm_prefetch(reinterpret_cast<const char*>(scales + tile_index * kTileRows), _MM_HINT_T0);
}

// All columns of `tile_count` tiles of rows from `row` on, for `batch` tokens from `token` on;
// sums, those of token t at sums + t * stride, are set. kBatch, unless 0, is `batch`: constants
// then stay in registers from tile to tile.
template <size_t kBatch>
void SumTiles(const PlainWeights& weights, const QuantisedRows& x, size_t token, size_t batch,
              size_t row, size_t tile_count, float* sums, size_t stride) {
  if (kBatch != 0) batch = kBatch;
  const bool far = tile_count * kTileRows == weights.rows && weights.rows <= kFarRowsMax;
  const size_t blocks = x.col_stride / kActivationBlock;
  for (size_t t = 0; t < batch; ++t) {
    __builtin_memset(sums + t * stride, 0, tile_count * kTileRows * sizeof(float));
  }
  GroupCodes codes[kTokenBatch];
  for (size_t col = 0; col < weights.cols; col += kGroupCols) {
    for (size_t t = 0; t < batch; ++t) {
      const float x_scale = x.scales[(token + t) * blocks + col / kActivationBlock];
      ArrangeCodes(x.codes + (token + t) * x.col_stride + col, x_scale, &codes[t]);
    }
    GroupTile tile = {.codes = weights.data + col / 2 * weights.rows + row,
                      .scales = weights.scales + col / kGroupCols * weights.rows + row,
                      .stride = weights.rows};
    const GroupTile first_tile = tile;
    for (size_t i = 0; i < tile_count; ++i) {
      PrefetchNextGroup(tile, i);
      if (far) PrefetchFar(first_tile, i);
      AddTile(tile, codes, batch, sums + i * kTileRows, stride);
      tile.codes += kTileRows;
      tile.scales += kTileRows;
    }
  }
  const __m256 factor = _mm256_set1_ps(weights.scale2 * kNvfp4SumUnit);
  for (size_t t = 0; t < batch; ++t) {
    for (size_t i = 0; i < tile_count; ++i) FinishSums(factor, sums + t * stride + i * kTileRows);
  }
}

// Requires at least kNvfp4IntRowsMin rows of W, whatever the range. Sums are made in a place of
// their own: tokens' outputs may lie such distances apart that they displace each other from the
// cache. A last tile of fewer rows reaches over the border of the range, or back from the end of
// the matrix.
inline void MatMulInt8Nvfp4(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  alignas(32) float sums[kSumsMax];
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const size_t batch = Min(kTokenBatch, x.token_count - token);
    const size_t tiles_max = kSumsMax / batch / kTileRows;
    for (size_t row = y.row_begin; row < y.row_end;) {
      const size_t rows_left = y.row_end - row;
      const size_t tile_count = rows_left < kTileRows ? 1 : Min(tiles_max, rows_left / kTileRows);
      const size_t stride = tile_count * kTileRows;
      const size_t row_count = Min(rows_left, stride);
      const size_t tile_row = Min(row, weights.rows - stride);
      if (batch == 1) {
        SumTiles<1>(weights, x, token, batch, tile_row, tile_count, sums, stride);
      } else {
        SumTiles<0>(weights, x, token, batch, tile_row, tile_count, sums, stride);
      }
      for (size_t t = 0; t < batch; ++t) {
        __builtin_memcpy(y.out + (token + t) * y.out_stride + row,
                         sums + t * stride + (row - tile_row), row_count * sizeof(float));
      }
      row += row_count;
    }
  }
}

}  // namespace

}  // namespace smoe::kernels
#endif
