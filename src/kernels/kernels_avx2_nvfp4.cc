// NVFP4 matrices, read as records hold them; kernels_avx2.cc says what holds for all of the table.
//
// Transposed, neighbouring bytes are neighbouring rows, so rows lie in the lanes from the start.
// Integers: two byte rows of 32 weight rows are interleaved, so that a byte's neighbour belongs to
// the same weight row, two columns on; low and high nibbles are looked up as 12 + 2 E2M1, which is
// unsigned, and multiplied with pairs of activations. A sum starts at -12 times the sum of the
// group's activations: it may wrap on its way, but ends within 12 * 127 * 16 = 24384.
#include "kernels/avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>

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
// Of four columns the two even ones, then the two odd ones.
alignas(16) constexpr uint8_t kByPairs[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
// clang-format on

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
__m256i Load256(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// E4M3 bytes, each in 16 bits with its sign extended, to f16 bits that mean 2^-8 of their value,
// subnormals included: both have four bits of exponent here. NaN stays NaN.
__m256i HalvesFromE4M3(__m256i bytes) {
  const __m256i half =
      _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i nan = _mm256_set1_epi16(0x3f80);
  return _mm256_or_si256(half, _mm256_cmpeq_epi16(_mm256_and_si256(half, nan), nan));
}

// ---- Integers ----

// One token's activations of one group.
struct GroupCodes {
  alignas(32) int32_t pairs[kGroupBytes];  // each pair of kByPairs twice, as a broadcast wants it
  int32_t start;                           // -kOffset * their sum
  float x_scale;
};

void ArrangeCodes(const int8_t* codes, float x_scale, GroupCodes* out) {
  const __m128i loaded = Load128(codes);
  const __m128i pairs = _mm_shuffle_epi8(loaded, Load128(kByPairs));
  auto* to = reinterpret_cast<__m128i*>(out->pairs);
  _mm_store_si128(to, _mm_unpacklo_epi16(pairs, pairs));
  _mm_store_si128(to + 1, _mm_unpackhi_epi16(pairs, pairs));
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

// Four columns of the tile, looked up. [0]: rows 0..7 and 16..23, [1]: rows 8..15 and 24..31.
struct FourCols {
  __m256i even[2];
  __m256i odd[2];
};

FourCols LookUp(const GroupTile& tile, size_t byte_row) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  const __m256i table = _mm256_broadcastsi128_si256(Load128(kOffsetCodes));
  const __m256i first = Load256(tile.codes + byte_row * tile.stride);
  const __m256i second = Load256(tile.codes + (byte_row + 1) * tile.stride);
  const __m256i bytes[2] = {_mm256_unpacklo_epi8(first, second),
                            _mm256_unpackhi_epi8(first, second)};
  FourCols cols;
  for (size_t i = 0; i < 2; ++i) {
    const __m256i high = _mm256_srli_epi16(bytes[i], 4);
    cols.even[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes[i], mask));
    cols.odd[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(high, mask));
  }
  return cols;
}

// sums[kTileRows] += dots * (w_scales * x_scale).
void AddDots(const __m256i* dots, const __m256* w_scales, float x_scale, float* sums) {
  const __m128i halves[kTileVectors] = {
      _mm256_castsi256_si128(dots[0]), _mm256_castsi256_si128(dots[1]),
      _mm256_extracti128_si256(dots[0], 1), _mm256_extracti128_si256(dots[1], 1)};
  const __m256 factor = _mm256_set1_ps(x_scale);
  for (size_t i = 0; i < kTileVectors; ++i) {
    const __m256 dot = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(halves[i]));
    const __m256 sum = _mm256_loadu_ps(sums + 8 * i);
    _mm256_storeu_ps(sums + 8 * i, _mm256_fmadd_ps(dot, _mm256_mul_ps(w_scales[i], factor), sum));
  }
}

// The same rows of the next group: their addresses are too far apart for the processor to foresee.
// A tile is half a cache line wide, so every other one asks for a line. A prefetch cannot fault.
void PrefetchNextGroup(const GroupTile& tile, size_t tile_index) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(tile.codes) +
                          (kGroupBytes + tile_index % 2 * (kGroupBytes / 2)) * tile.stride;
  for (size_t i = 0; i < kGroupBytes / 2; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i * tile.stride), _MM_HINT_T0);
  }
}

// One group of one tile for kTokens tokens; sums of token t at sums + t * stride.
template <size_t kTokens>
void AddGroup(const GroupTile& tile, const GroupCodes* x, const __m256* w_scales, float* sums,
              size_t stride) {
  __m256i dots[kTokens][2];
  for (size_t t = 0; t < kTokens; ++t) {
    dots[t][0] = dots[t][1] = _mm256_set1_epi16(static_cast<short>(x[t].start));
  }
  for (size_t byte_row = 0; byte_row < kGroupBytes; byte_row += 2) {
    const FourCols cols = LookUp(tile, byte_row);
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256i even = _mm256_set1_epi32(x[t].pairs[byte_row]);
      const __m256i odd = _mm256_set1_epi32(x[t].pairs[byte_row + 1]);
      for (size_t i = 0; i < 2; ++i) {
        const __m256i four = _mm256_add_epi16(_mm256_maddubs_epi16(cols.even[i], even),
                                              _mm256_maddubs_epi16(cols.odd[i], odd));
        dots[t][i] = _mm256_add_epi16(dots[t][i], four);
        // As in kernels_avx2_batch.cc: g++ 12 would collect products and run out of registers.
        __asm__("" : "+x"(dots[t][i]));
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) AddDots(dots[t], w_scales, x[t].x_scale, sums + t * stride);
}

constexpr size_t kTokensTogether = 4;
constexpr size_t kTokenBatch = 16;
constexpr size_t kSumsMax = 4096;  // of a block of rows: 16 KiB, half of a small L1

// One group of one tile for `batch` tokens.
void AddTile(const GroupTile& tile, const GroupCodes* x, size_t batch, float* sums, size_t stride) {
  __m256 w_scales[kTileVectors];
  for (size_t i = 0; i < 2; ++i) {
    const __m256i halves = HalvesFromE4M3(_mm256_cvtepi8_epi16(Load128(tile.scales + i * 16)));
    w_scales[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    w_scales[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
  for (; batch >= kTokensTogether; batch -= kTokensTogether) {
    AddGroup<kTokensTogether>(tile, x, w_scales, sums, stride);
    x += kTokensTogether;
    sums += kTokensTogether * stride;
  }
  if (batch == 3) AddGroup<3>(tile, x, w_scales, sums, stride);
  if (batch == 2) AddGroup<2>(tile, x, w_scales, sums, stride);
  if (batch == 1) AddGroup<1>(tile, x, w_scales, sums, stride);
}

// All columns of `tile_count` tiles of rows from `row` on, for `batch` tokens from `token` on;
// sums, those of token t at sums + t * stride, are set.
void SumTiles(const PlainWeights& weights, const QuantisedRows& x, size_t token, size_t batch,
              size_t row, size_t tile_count, float* sums, size_t stride) {
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
    for (size_t i = 0; i < tile_count; ++i) {
      PrefetchNextGroup(tile, i);
      AddTile(tile, codes, batch, sums + i * kTileRows, stride);
      tile.codes += kTileRows;
      tile.scales += kTileRows;
    }
  }
  const __m256 factor = _mm256_set1_ps(weights.scale2 * kNvfp4SumUnit);
  for (size_t t = 0; t < batch; ++t) {
    for (size_t i = 0; i < tile_count * kTileRows; i += 8) {
      float* at = sums + t * stride + i;
      _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), factor));
    }
  }
}

// Fewer than kTileRows rows are left of the range: the tile reaches over its border, or back from
// the end of the matrix, and its sums are kept apart.
void SumPartOfTile(const PlainWeights& weights, const QuantisedRows& x, size_t token, size_t batch,
                   size_t row, const MatMulRange& y) {
  float sums[kTokenBatch * kTileRows];
  const size_t tile_row = Min(row, weights.rows - kTileRows);
  SumTiles(weights, x, token, batch, tile_row, 1, sums, kTileRows);
  for (size_t t = 0; t < batch; ++t) {
    __builtin_memcpy(y.out + (token + t) * y.out_stride + row,
                     sums + t * kTileRows + (row - tile_row), (y.row_end - row) * sizeof(float));
  }
}

// ---- Sums in f32 ----

constexpr size_t kFloatRows = kNvfp4FloatRowsMin;
constexpr size_t kStretchCols = 256;  // columns decoded at once: 8 KiB

// Columns [col, col + count) of kFloatRows rows: out[column][row].
void DecodeColumns(const PlainWeights& weights, size_t row, size_t col, size_t count,
                   float (*out)[kFloatRows]) {
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256 scale2 = _mm256_set1_ps(weights.scale2);
  __m256 scale = _mm256_setzero_ps();
  for (size_t i = 0; i < count; i += 2) {
    if (i % kGroupCols == 0) {
      const uint8_t* at = weights.scales + (col + i) / kGroupCols * weights.rows + row;
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
      const __m256i halves = HalvesFromE4M3(_mm256_cvtepi8_epi16(bytes));
      const __m256 small = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      scale = _mm256_mul_ps(small, _mm256_set1_ps(1 / kNvfp4ScaleUnit));
    }
    const uint8_t* at = weights.data + (col + i) / 2 * weights.rows + row;
    const __m256i bytes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    const __m256i codes[2] = {bytes, _mm256_srli_epi32(bytes, 4)};
    for (size_t k = 0; k < 2; ++k) {
      const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, codes[k]);
      const __m256i minus = _mm256_and_si256(_mm256_slli_epi32(codes[k], 28), sign);
      const __m256 value = _mm256_xor_ps(magnitude, _mm256_castsi256_ps(minus));
      _mm256_storeu_ps(out[i + k], _mm256_mul_ps(_mm256_mul_ps(value, scale), scale2));
    }
  }
}

// lanes[kSumLanes][row] += decoded columns * x, partial sum by partial sum.
void AddColumns(const float (*columns)[kFloatRows], const float* x, size_t count,
                float (*lanes)[kFloatRows]) {
  constexpr size_t kTogether = 8;  // accumulators that hide the latency of the multiply-add
  for (size_t first = 0; first < kSumLanes; first += kTogether) {
    __m256 sums[kTogether];
    for (size_t i = 0; i < kTogether; ++i) sums[i] = _mm256_loadu_ps(lanes[first + i]);
    for (size_t col = first; col < count; col += kSumLanes) {
      for (size_t i = 0; i < kTogether; ++i) {
        sums[i] =
            _mm256_fmadd_ps(_mm256_loadu_ps(columns[col + i]), _mm256_set1_ps(x[col + i]), sums[i]);
      }
    }
    for (size_t i = 0; i < kTogether; ++i) _mm256_storeu_ps(lanes[first + i], sums[i]);
  }
}

// The tree of kernels.h, a row in each lane.
__m256 SumLanes(const float (*lanes)[kFloatRows]) {
  __m256 sums[kSumLanes];
  for (size_t i = 0; i < kSumLanes; ++i) sums[i] = _mm256_loadu_ps(lanes[i]);
  for (size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] = _mm256_add_ps(sums[i], sums[i + width]);
  }
  return sums[0];
}

}  // namespace

void MatMulInt8Nvfp4Avx2(const PlainWeights& weights, const QuantisedRows& x,
                         const MatMulRange& y) {
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const size_t batch = Min(kTokenBatch, x.token_count - token);
    const size_t tiles_max = kSumsMax / batch / kTileRows;
    size_t row = y.row_begin;
    while (row + kTileRows <= y.row_end) {
      const size_t tile_count = Min(tiles_max, (y.row_end - row) / kTileRows);
      float* sums = y.out + token * y.out_stride + row;
      SumTiles(weights, x, token, batch, row, tile_count, sums, y.out_stride);
      row += tile_count * kTileRows;
    }
    if (row < y.row_end) SumPartOfTile(weights, x, token, batch, row, y);
  }
}

void MatMulF32Nvfp4Avx2(const PlainWeights& weights, const FloatRows& x, const MatMulRange& y) {
  float columns[kStretchCols][kFloatRows];
  float lanes[kTokenBatch][kSumLanes][kFloatRows];
  for (size_t row = y.row_begin; row < y.row_end; row += kFloatRows) {
    const size_t row_count = Min(kFloatRows, y.row_end - row);
    const size_t tile_row = Min(row, weights.rows - kFloatRows);
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      const size_t batch = Min(kTokenBatch, x.token_count - token);
      __builtin_memset(lanes, 0, sizeof(lanes[0]) * batch);
      for (size_t col = 0; col < weights.cols; col += kStretchCols) {
        const size_t count = Min(kStretchCols, weights.cols - col);
        DecodeColumns(weights, tile_row, col, count, columns);
        for (size_t t = 0; t < batch; ++t) {
          AddColumns(columns, x.data + (token + t) * x.stride + col, count, lanes[t]);
        }
      }
      for (size_t t = 0; t < batch; ++t) {
        float sums[kFloatRows];
        _mm256_storeu_ps(sums, SumLanes(lanes[t]));
        __builtin_memcpy(y.out + (token + t) * y.out_stride + row, sums + (row - tile_row),
                         row_count * sizeof(float));
      }
    }
  }
}

}  // namespace smoe::kernels
#endif
