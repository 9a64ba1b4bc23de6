// int8 matrices; kernels_avx2.cc says what holds for all of the table, and tensor/weights.h how the
// tiles lie: two registers are one tile, their lanes are its rows.
//
// One or two tokens: maddubs of |weight| and the activation with the weight's sign, in 16 bits:
// at most 2 * 128 * 127 = 32512, and so exact. Four operations for 32 products, three of which only
// two of a core's three vector ports do, and one for the weights alone.
// Many tokens: weights and activations are widened to 16 bits, once for all that use them; then
// madd and add, two operations for 16 products and two ports for only one of them: 24 products in a
// cycle where there are three ports, which is the most that AVX2 gives (maddubs: 21).
#include "kernels/avx2.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

#include "kernels/int8_panels_256.h"

namespace smoe::kernels {

namespace {

int32_t Load32(const void* at) {
  int32_t word;
  __builtin_memcpy(&word, at, sizeof(word));
  return word;
}

// ---- Few tokens ----

template <size_t kTokens>
void MultiplyFew(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                 size_t token, size_t block) {
  const size_t groups = x.col_stride / kGroupCols;
  const __m256i ones = _mm256_set1_epi16(1);
  Place place(weights, block);
  __m256 sums[kTokens][kHalves];
  for (size_t t = 0; t < kTokens; ++t) {
    for (__m256& sum : sums[t]) sum = _mm256_setzero_ps();
  }
  for (size_t group = 0; group < groups; ++group) {
    PrefetchAhead(place);
    __m256i dots[kTokens][kHalves];
    for (size_t t = 0; t < kTokens; ++t) {
      for (__m256i& dot : dots[t]) dot = _mm256_setzero_si256();
    }
    for (size_t i = 0; i < kTiles; ++i) {
      for (size_t half = 0; half < kHalves; ++half) {
        const __m256i tile = Load256(place.codes + i * kTileBytes + half * sizeof(__m256i));
        const __m256i magnitude = _mm256_abs_epi8(tile);
        for (size_t t = 0; t < kTokens; ++t) {
          const int8_t* codes = x.codes + (token + t) * x.col_stride + group * kGroupCols;
          const __m256i four = _mm256_set1_epi32(Load32(codes + i * kTileCols));
          const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, tile));
          dots[t][half] = _mm256_add_epi32(dots[t][half], _mm256_madd_epi16(pairs, ones));
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256 x_scale = _mm256_set1_ps(x.scales[(token + t) * groups + group]);
      for (size_t half = 0; half < kHalves; ++half) {
        const __m256 scale = _mm256_mul_ps(LoadScales(place.scales, half), x_scale);
        sums[t][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t][half]), scale, sums[t][half]);
      }
    }
    place.ToNextGroup();
  }
  for (size_t t = 0; t < kTokens; ++t) {
    alignas(32) Sums rows;
    _mm256_store_ps(rows, sums[t][0]);
    _mm256_store_ps(rows + 8, sums[t][1]);
    StoreRows(y, block, token + t, rows);
  }
}

// ---- Many tokens ----

constexpr size_t kTokensTogether = 4;  // eight sums in registers
constexpr size_t kPairs = 2 * kTiles;  // of columns in a group

// The even and the odd bytes, each widened: lanes of (column 0, column 2) and (column 1, column 3).
__m256i WidenEven(__m256i bytes) { return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8); }
__m256i WidenOdd(__m256i bytes) { return _mm256_srai_epi16(bytes, 8); }

// One group of the activations of a batch.
struct Batch {
  alignas(32) int32_t pairs[kTokenBatch][kPairs];  // the even ones of each tile, then the odd ones
  float scales[kTokenBatch];

  void Set(size_t t, size_t half, __m256i codes) {
    auto* to = reinterpret_cast<__m256i*>(pairs[t]) + half;
    _mm256_store_si256(to, WidenEven(codes));
    _mm256_store_si256(to + kHalves, WidenOdd(codes));
  }
};

// One group of a block of rows.
struct Widened {
  __m256i pairs[kPairs][kHalves];  // in the order of Batch
  __m256 scales[kHalves];

  explicit Widened(const Place& place) {
    for (size_t i = 0; i < kTiles; ++i) {
      for (size_t half = 0; half < kHalves; ++half) {
        const __m256i tile = Load256(place.codes + i * kTileBytes + half * sizeof(__m256i));
        pairs[i][half] = WidenEven(tile);
        pairs[kTiles + i][half] = WidenOdd(tile);
      }
    }
    for (size_t half = 0; half < kHalves; ++half) scales[half] = LoadScales(place.scales, half);
  }
};

template <size_t kTokens>
void AddTokens(const Widened& weights, const Batch& batch, size_t token, Sums* sums) {
  constexpr size_t kDots = kTokens * kHalves;
  __m256i dots[kDots];
  for (__m256i& dot : dots) dot = _mm256_setzero_si256();
  for (size_t i = 0; i < kPairs; ++i) {
    for (size_t n = 0; n < kDots; ++n) {
      const __m256i codes = _mm256_set1_epi32(batch.pairs[token + n / kHalves][i]);
      const __m256i products = _mm256_madd_epi16(weights.pairs[i][n % kHalves], codes);
      dots[n] = _mm256_add_epi32(dots[n], products);
      KeepInRegister(&dots[n]);
    }
  }
  for (size_t n = 0; n < kDots; ++n) {
    const size_t t = token + n / kHalves;
    const size_t half = n % kHalves;
    float* at = sums[t] + 8 * half;
    const __m256 scale = _mm256_mul_ps(weights.scales[half], _mm256_set1_ps(batch.scales[t]));
    const __m256 dot = _mm256_cvtepi32_ps(dots[n]);
    _mm256_store_ps(at, _mm256_fmadd_ps(dot, scale, _mm256_load_ps(at)));
  }
}

void AddBatch(const Widened& weights, const Batch& batch, size_t count, Sums* sums) {
  size_t t = 0;
  for (; t + kTokensTogether <= count; t += kTokensTogether) {
    AddTokens<kTokensTogether>(weights, batch, t, sums);
  }
  if (count - t == 3) AddTokens<3>(weights, batch, t, sums);
  if (count - t == 2) AddTokens<2>(weights, batch, t, sums);
  if (count - t == 1) AddTokens<1>(weights, batch, t, sums);
}

}  // namespace

void MatMulInt8TilesAvx2(const PlainWeights& weights, const QuantisedRows& x,
                         const MatMulRange& y) {
  if (y.row_begin >= y.row_end) return;
  if (x.token_count >= kTilesManyTokensMin) {
    return MultiplyPanels<Widened, Batch>(weights, x, y);
  }
  const size_t block_end = (y.row_end + kRows - 1) / kRows;
  for (size_t block = y.row_begin / kRows; block < block_end; ++block) {
    if (x.token_count == 1) MultiplyFew<1>(weights, x, y, 0, block);
    if (x.token_count == 2) MultiplyFew<2>(weights, x, y, 0, block);
    if (x.token_count == 3) MultiplyFew<3>(weights, x, y, 0, block);
  }
}

// Eight columns at a time: two tiles' words of the row. A stretch starts at a multiple of 64.
size_t DecodeTilesAvx2(const PlainWeights& weights, uint64_t row, size_t col, size_t count,
                       float* out) {
  Place place(weights, row / kRows);
  const size_t first_group = col / kGroupCols;
  const size_t whole = count & ~size_t{7};
  for (size_t i = 0; i < whole; i += 8) {
    const size_t group = first_group + i / kGroupCols;
    const uint8_t* words =
        place.codes + (col + i) / kTileCols * kTileBytes + row % kRows * kTileCols;
    const __m128i codes =
        _mm_insert_epi32(_mm_cvtsi32_si128(Load32(words)), Load32(words + kTileBytes), 1);
    float scale;
    __builtin_memcpy(&scale, place.scales + group * kScaleBytes + row % kRows * sizeof(scale),
                     sizeof(scale));
    const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(values, _mm256_set1_ps(scale)));
  }
  return whole;
}

}  // namespace smoe::kernels
#endif
