// NVFP4 matrices in integers; kernels_avx512.cc says what holds for all of the table, and
// kernels_avx2_nvfp4.cc how the records lie.
//
// Four byte rows of 64 weight rows are interleaved, so that a 32-bit lane holds eight columns of
// one weight row; their low and high nibbles, looked up as 12 + 2 E2M1, meet the even and the odd
// activations in one dpbusd each. Lanes stay in the order that interleaving gives, in the sums too,
// until the last column: vector i, part l holds the rows 16 l + 4 i to 16 l + 4 i + 3.
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

constexpr size_t kTileRows = 64;
constexpr size_t kVectors = kTileRows / 16;
constexpr size_t kGroupCols = tensor::kNvfp4Group;
constexpr size_t kGroupBytes = kGroupCols / 2;  // byte rows of a group
constexpr int kOffset = 12;                     // makes twice an E2M1 value unsigned

// clang-format off
alignas(16) constexpr uint8_t kOffsetCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                  12, 11, 10,  9,  8,  6,  4,  0};
// Of eight columns the four even ones, then the four odd ones.
alignas(16) constexpr uint8_t kByFours[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
// clang-format on

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// One token's activations of one group.
struct GroupCodes {
  alignas(16) int32_t fours[4];  // as kByFours orders them
  int32_t start;                 // -kOffset * their sum
  float x_scale;
};

void ArrangeCodes(const int8_t* codes, float x_scale, GroupCodes* out) {
  const __m128i loaded = Load128(codes);
  _mm_store_si128(reinterpret_cast<__m128i*>(out->fours),
                  _mm_shuffle_epi8(loaded, Load128(kByFours)));
  __m128i sum = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(kOffset), loaded);
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

// What the next group of these rows will need: each thread's stretch of a byte row is short, and
// the processor guesses only to its end. A prefetch cannot fault.
void PrefetchNextGroup(const GroupTile& tile) {
  const auto codes = reinterpret_cast<uintptr_t>(tile.codes) + kGroupBytes * tile.stride;
  for (size_t i = 0; i < kGroupBytes; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + i * tile.stride), _MM_HINT_T0);
  }
  _mm_prefetch(
      reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(tile.scales) + tile.stride),
      _MM_HINT_T0);
}

// Where all rows are taken together, groups lie behind one another, so that what comes kFarBytes
// after the next group can be fetched line by line, into the second cache: in that order the
// processor fetches on by itself.
constexpr size_t kFarBytes = 8192;

void PrefetchFar(uintptr_t group_codes, size_t group_bytes, size_t tile_index) {
  constexpr size_t kTileBytes = kGroupBytes * kTileRows;
  const uintptr_t first = group_codes + group_bytes + kFarBytes + tile_index * kTileBytes;
  for (size_t i = 0; i < kTileBytes; i += kTileRows) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i), _MM_HINT_T1);
  }
}

// Eight columns of the tile, from `byte_row` on, looked up. Inlined, as is all that follows: the
// struct would go through memory.
struct EightCols {
  __m512i even[kVectors];
  __m512i odd[kVectors];
};

[[gnu::always_inline]] inline EightCols LookUp(const GroupTile& tile, size_t byte_row) {
  const __m512i mask = _mm512_set1_epi8(0x0f);
  const __m512i table = _mm512_broadcast_i32x4(Load128(kOffsetCodes));
  const uint8_t* at = tile.codes + byte_row * tile.stride;
  const __m512i rows[4] = {_mm512_loadu_si512(at), _mm512_loadu_si512(at + tile.stride),
                           _mm512_loadu_si512(at + 2 * tile.stride),
                           _mm512_loadu_si512(at + 3 * tile.stride)};
  const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]);
  const __m512i high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
  const __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]);
  const __m512i high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
  const __m512i bytes[kVectors] = {
      _mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
      _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
  EightCols cols;
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512i high = _mm512_srli_epi16(bytes[i], 4);
    cols.even[i] = _mm512_shuffle_epi8(table, _mm512_and_si512(bytes[i], mask));
    cols.odd[i] = _mm512_shuffle_epi8(table, _mm512_and_si512(high, mask));
  }
  return cols;
}

// The tile's scales times 2^-8, in the order of the sums: E4M3 bytes become f16 bits that mean that
// much, subnormals included, since both have four bits of exponent here. NaN stays NaN.
[[gnu::always_inline]] inline void DecodeScales(const uint8_t* scales, __m512* out) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(scales));
  const __m512i keep = _mm512_set1_epi16(static_cast<short>(0xbf80));
  const __m512i nan = _mm512_set1_epi16(0x3f80);
  const __m256i halves[2] = {_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1)};
  for (size_t i = 0; i < 2; ++i) {
    const __m512i wide = _mm512_slli_epi16(_mm512_cvtepi8_epi16(halves[i]), 7);
    __m512i f16 = _mm512_and_si512(wide, keep);
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(wide, nan), nan);
    f16 = _mm512_mask_mov_epi16(f16, is_nan, _mm512_set1_epi16(0x7fff));
    out[2 * i] = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
    out[2 * i + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
  }
}

// One group of one tile for kTokens tokens; sums of token t at sums + t * stride.
template <size_t kTokens>
[[gnu::always_inline]] inline void AddGroup(const GroupTile& tile, const GroupCodes* x,
                                            const __m512* w_scales, float* sums, size_t stride) {
  __m512i dots[kTokens][kVectors];
  for (size_t t = 0; t < kTokens; ++t) {
    for (__m512i& dot : dots[t]) dot = _mm512_set1_epi32(x[t].start);
  }
  for (size_t half = 0; half < 2; ++half) {
    const EightCols cols = LookUp(tile, half * 4);
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512i even = _mm512_set1_epi32(x[t].fours[2 * half]);
      const __m512i odd = _mm512_set1_epi32(x[t].fours[2 * half + 1]);
      for (size_t i = 0; i < kVectors; ++i) {
        dots[t][i] = _mm512_dpbusd_epi32(dots[t][i], cols.even[i], even);
        dots[t][i] = _mm512_dpbusd_epi32(dots[t][i], cols.odd[i], odd);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    const __m512 factor = _mm512_set1_ps(x[t].x_scale);
    for (size_t i = 0; i < kVectors; ++i) {
      float* at = sums + t * stride + 16 * i;
      _mm512_storeu_ps(
          at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][i]), _mm512_mul_ps(w_scales[i], factor),
                              _mm512_loadu_ps(at)));
    }
  }
}

constexpr size_t kFewTokensMax = 4;  // as many as share what LookUp leaves in registers
constexpr size_t kSumsMax = 4096;    // of a block of rows: 16 KiB, half of a small L1

// The tile's sums in the order of rows, times the last factor.
void FinishTile(__m512 factor, float* sums) {
  __m512 v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    v[i] = _mm512_mul_ps(_mm512_loadu_ps(sums + 16 * i), factor);
  }
  const __m512 low01 = _mm512_shuffle_f32x4(v[0], v[1], 0x44);  // parts 0 1, 0 1
  const __m512 high01 = _mm512_shuffle_f32x4(v[0], v[1], 0xee);
  const __m512 low23 = _mm512_shuffle_f32x4(v[2], v[3], 0x44);
  const __m512 high23 = _mm512_shuffle_f32x4(v[2], v[3], 0xee);
  _mm512_storeu_ps(sums, _mm512_shuffle_f32x4(low01, low23, 0x88));
  _mm512_storeu_ps(sums + 16, _mm512_shuffle_f32x4(low01, low23, 0xdd));
  _mm512_storeu_ps(sums + 32, _mm512_shuffle_f32x4(high01, high23, 0x88));
  _mm512_storeu_ps(sums + 48, _mm512_shuffle_f32x4(high01, high23, 0xdd));
}

// All columns of `tile_count` tiles of rows from `row` on, for all tokens, kTokens of them; sums,
// those of token t at sums + t * stride, are set.
template <size_t kTokens, bool kAllRows>
void SumTiles(const PlainWeights& weights, const QuantisedRows& x, size_t row, size_t tile_count,
              float* sums, size_t stride) {
  const size_t blocks = x.col_stride / kActivationBlock;
  for (size_t t = 0; t < kTokens; ++t) {
    __builtin_memset(sums + t * stride, 0, tile_count * kTileRows * sizeof(float));
  }
  GroupCodes codes[kTokens];
  for (size_t col = 0; col < weights.cols; col += kGroupCols) {
    for (size_t t = 0; t < kTokens; ++t) {
      const float x_scale = x.scales[t * blocks + col / kActivationBlock];
      ArrangeCodes(x.codes + t * x.col_stride + col, x_scale, &codes[t]);
    }
    GroupTile tile = {.codes = weights.data + col / 2 * weights.rows + row,
                      .scales = weights.scales + col / kGroupCols * weights.rows + row,
                      .stride = weights.rows};
    const auto group_codes = reinterpret_cast<uintptr_t>(tile.codes);
    for (size_t i = 0; i < tile_count; ++i) {
      __m512 w_scales[kVectors];
      DecodeScales(tile.scales, w_scales);
      PrefetchNextGroup(tile);
      if (kAllRows) PrefetchFar(group_codes, kGroupBytes * weights.rows, i);
      AddGroup<kTokens>(tile, codes, w_scales, sums + i * kTileRows, stride);
      tile.codes += kTileRows;
      tile.scales += kTileRows;
    }
  }
  const __m512 factor = _mm512_set1_ps(weights.scale2 * kNvfp4SumUnit);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < tile_count; ++i) FinishTile(factor, sums + t * stride + i * kTileRows);
  }
}

template <size_t kTokens>
void MultiplyFew(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  const size_t tiles_max = kSumsMax / kTokens / kTileRows;
  for (size_t row = y.row_begin; row < y.row_end;) {
    const size_t tile_count = Min(tiles_max, (y.row_end - row) / kTileRows);
    if (tile_count * kTileRows == weights.rows) {
      SumTiles<kTokens, true>(weights, x, row, tile_count, y.out + row, y.out_stride);
    } else {
      SumTiles<kTokens, false>(weights, x, row, tile_count, y.out + row, y.out_stride);
    }
    row += tile_count * kTileRows;
  }
}

// Many tokens: the codes of one tile are looked up once for a batch of them and wait in the nearest
// cache, group by group, so that sums stay in registers over a stretch of columns.
constexpr size_t kStretchGroups = 8;
constexpr size_t kQuadsPerGroup = kGroupCols / 4;
constexpr size_t kTokenBatch = 64;

struct Stretch {
  alignas(64) uint8_t quads[kStretchGroups][kVectors][kQuadsPerGroup][64];
  alignas(64) float w_scales[kStretchGroups][kVectors][16];
  GroupCodes codes[kTokenBatch][kStretchGroups];
  size_t group_count;
};

// The groups of one tile; the next tile's bytes, which lie behind these, are fetched.
void LookUpTile(const PlainWeights& weights, size_t col, size_t row, Stretch* stretch) {
  for (size_t group = 0; group < stretch->group_count; ++group) {
    const size_t group_col = col + group * kGroupCols;
    const GroupTile tile = {.codes = weights.data + group_col / 2 * weights.rows + row,
                            .scales = weights.scales + group_col / kGroupCols * weights.rows + row,
                            .stride = weights.rows};
    __m512 w_scales[kVectors];
    DecodeScales(tile.scales, w_scales);
    for (size_t i = 0; i < kVectors; ++i) _mm512_store_ps(stretch->w_scales[group][i], w_scales[i]);
    for (size_t half = 0; half < 2; ++half) {
      const EightCols cols = LookUp(tile, half * 4);
      for (size_t i = 0; i < kVectors; ++i) {
        _mm512_store_si512(stretch->quads[group][i][2 * half], cols.even[i]);
        _mm512_store_si512(stretch->quads[group][i][2 * half + 1], cols.odd[i]);
      }
    }
    for (size_t i = 0; i < kGroupBytes; ++i) {
      const auto next = reinterpret_cast<uintptr_t>(tile.codes) + i * tile.stride + kTileRows;
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
    }
  }
}

// kCount vectors from the first-th on, for kTokens tokens from the slot-th of the batch on; their
// sums at sums + t * stride.
template <size_t kTokens, size_t kCount>
void AddVectors(const Stretch& stretch, size_t slot, size_t first, float* sums, size_t stride) {
  __m512 totals[kTokens][kCount];
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kCount; ++i) {
      totals[t][i] = _mm512_loadu_ps(sums + t * stride + 16 * (first + i));
    }
  }
  for (size_t group = 0; group < stretch.group_count; ++group) {
    const auto* quads = stretch.quads[group] + first;
    __m512i dots[kTokens][kCount];
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < kCount; ++i) {
        dots[t][i] = _mm512_set1_epi32(stretch.codes[slot + t][group].start);
      }
    }
    for (size_t quad = 0; quad < kQuadsPerGroup; ++quad) {
      __m512i codes[kCount];
      for (size_t i = 0; i < kCount; ++i) codes[i] = _mm512_load_si512(quads[i][quad]);
      for (size_t t = 0; t < kTokens; ++t) {
        const __m512i four = _mm512_set1_epi32(stretch.codes[slot + t][group].fours[quad]);
        for (size_t i = 0; i < kCount; ++i) {
          dots[t][i] = _mm512_dpbusd_epi32(dots[t][i], codes[i], four);
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m512 x_scale = _mm512_set1_ps(stretch.codes[slot + t][group].x_scale);
      for (size_t i = 0; i < kCount; ++i) {
        const __m512 w_scale = _mm512_load_ps(stretch.w_scales[group][first + i]);
        totals[t][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][i]),
                                       _mm512_mul_ps(w_scale, x_scale), totals[t][i]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kCount; ++i) {
      _mm512_storeu_ps(sums + t * stride + 16 * (first + i), totals[t][i]);
    }
  }
}

// Eight to sixteen sums at a time hide the latency of dpbusd.
void AddTokens(const Stretch& stretch, size_t batch, float* sums, size_t stride) {
  size_t slot = 0;
  for (; slot + 4 <= batch; slot += 4) {
    AddVectors<4, 2>(stretch, slot, 0, sums + slot * stride, stride);
    AddVectors<4, 2>(stretch, slot, 2, sums + slot * stride, stride);
  }
  const size_t left = batch - slot;
  if (left == 3) AddVectors<3, 4>(stretch, slot, 0, sums + slot * stride, stride);
  if (left == 2) AddVectors<2, 4>(stretch, slot, 0, sums + slot * stride, stride);
  if (left == 1) AddVectors<1, 4>(stretch, slot, 0, sums + slot * stride, stride);
}

void MultiplyBatch(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                   size_t token, size_t batch) {
  const size_t blocks = x.col_stride / kActivationBlock;
  float* out = y.out + token * y.out_stride;
  for (size_t t = 0; t < batch; ++t) {
    __builtin_memset(out + t * y.out_stride + y.row_begin, 0,
                     (y.row_end - y.row_begin) * sizeof(float));
  }
  Stretch stretch;
  for (size_t col = 0; col < weights.cols; col += stretch.group_count * kGroupCols) {
    stretch.group_count = Min(kStretchGroups, (weights.cols - col) / kGroupCols);
    for (size_t t = 0; t < batch; ++t) {
      const int8_t* codes = x.codes + (token + t) * x.col_stride + col;
      const float* scales = x.scales + (token + t) * blocks;
      for (size_t group = 0; group < stretch.group_count; ++group) {
        ArrangeCodes(codes + group * kGroupCols,
                     scales[(col + group * kGroupCols) / kActivationBlock],
                     &stretch.codes[t][group]);
      }
    }
    for (size_t row = y.row_begin; row < y.row_end; row += kTileRows) {
      LookUpTile(weights, col, row, &stretch);
      AddTokens(stretch, batch, out + row, y.out_stride);
    }
  }
  const __m512 factor = _mm512_set1_ps(weights.scale2 * kNvfp4SumUnit);
  for (size_t t = 0; t < batch; ++t) {
    for (size_t row = y.row_begin; row < y.row_end; row += kTileRows) {
      FinishTile(factor, out + t * y.out_stride + row);
    }
  }
}

}  // namespace

void MatMulInt8Nvfp4Avx512(const PlainWeights& weights, const QuantisedRows& x,
                           const MatMulRange& y) {
  const size_t whole_end = y.row_begin + (y.row_end - y.row_begin) / kTileRows * kTileRows;
  MatMulRange whole = y;
  whole.row_end = static_cast<uint32_t>(whole_end);
  if (x.token_count <= kFewTokensMax) {
    if (x.token_count == 1) MultiplyFew<1>(weights, x, whole);
    if (x.token_count == 2) MultiplyFew<2>(weights, x, whole);
    if (x.token_count == 3) MultiplyFew<3>(weights, x, whole);
    if (x.token_count == 4) MultiplyFew<4>(weights, x, whole);
  } else {
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      MultiplyBatch(weights, x, whole, token, Min(kTokenBatch, x.token_count - token));
    }
  }
  if (whole_end == y.row_end) return;
  MatMulRange rest = y;
  rest.row_begin = static_cast<uint32_t>(whole_end);
  MatMulInt8Nvfp4Avx2(weights, x, rest);
}

}  // namespace smoe::kernels
#endif
