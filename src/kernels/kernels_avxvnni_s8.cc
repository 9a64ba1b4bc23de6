// int8 matrices for many tokens with vpdpbusd in 256-bit registers; kernels_avxvnni.cc has the
// table, and tensor/weights.h says how the tiles lie: two registers are one tile, their lanes are
// its rows.
//
// vpdpbusd multiplies unsigned by signed bytes, so the activations are moved up by 128, once for a
// panel of rows, and 128 times the sum of the weights is taken away again.
#include "kernels/avx2.h"

#if defined(__x86_64__)
#if !defined(__AVXVNNI__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

#include "kernels/int8_tiles.h"

namespace smoe::kernels {

namespace {

constexpr size_t kHalves = 2;       // registers of eight rows
constexpr size_t kPanelBlocks = 2;  // that use the activations before they are overwritten
constexpr size_t kTokenBatch = 64;
constexpr size_t kTokensTogether = 6;  // twelve sums in registers

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// An empty instruction that changes the sum as far as g++ 12 knows: without it the compiler copies
// every sum in each step of the loop.
void KeepInRegister(__m256i* sum) { asm("" : "+x"(*sum)); }

__m256i Load256(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

// One group of the activations of a batch, moved up by 128.
struct Batch {
  alignas(32) uint8_t codes[kTokenBatch][kGroupCols];
  float scales[kTokenBatch];
};

void LoadBatch(const QuantisedRows& x, size_t token, size_t count, size_t group, Batch* batch) {
  const size_t groups = x.col_stride / kGroupCols;
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
  for (size_t t = 0; t < count; ++t) {
    const int8_t* at = x.codes + (token + t) * x.col_stride + group * kGroupCols;
    // Rows of activations are far apart; the processor does not guess the next group's line.
    _mm_prefetch(reinterpret_cast<const char*>(at + kGroupCols), _MM_HINT_T0);
    for (size_t half = 0; half < kHalves; ++half) {
      auto* to = reinterpret_cast<__m256i*>(batch->codes[t]) + half;
      _mm256_store_si256(to, _mm256_xor_si256(Load256(at + half * sizeof(__m256i)), offset));
    }
    batch->scales[t] = x.scales[(token + t) * groups + group];
  }
}

// One group of a block of rows.
struct Panel {
  const uint8_t* codes;
  __m256i start[kHalves];  // -128 times the sum of the codes
  __m256 scales[kHalves];

  explicit Panel(const Place& place) : codes(place.codes) {
    const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
    for (size_t half = 0; half < kHalves; ++half) {
      __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (size_t i = 0; i < kTiles; ++i) {
        const __m256i tile = Load256(codes + i * kTileBytes + half * sizeof(__m256i));
        sums[i % 2] = _mm256_dpbusd_avx_epi32(sums[i % 2], offset, tile);
      }
      start[half] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_add_epi32(sums[0], sums[1]));
      scales[half] = _mm256_castsi256_ps(Load256(place.scales + half * (kScaleBytes / kHalves)));
    }
  }
};

using Sums = float[kHalves][kRows / kHalves];  // of one token

// The loops over tokens are unrolled by request: left to itself, g++ 12 does it after it has
// decided that the sums lie in memory.
template <size_t kTokens>
void AddTokens(const Panel& panel, const Batch& batch, size_t token, Sums* sums) {
  __m256i dots[kTokens][kHalves];
#pragma GCC unroll 6
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t half = 0; half < kHalves; ++half) dots[t][half] = panel.start[half];
  }
  for (size_t i = 0; i < kTiles; ++i) {
    __m256i tile[kHalves];
    for (size_t half = 0; half < kHalves; ++half) {
      tile[half] = Load256(panel.codes + i * kTileBytes + half * sizeof(__m256i));
    }
#pragma GCC unroll 6
    for (size_t t = 0; t < kTokens; ++t) {
      int32_t four;
      __builtin_memcpy(&four, batch.codes[token + t] + i * kTileCols, sizeof(four));
      const __m256i codes = _mm256_set1_epi32(four);
      for (size_t half = 0; half < kHalves; ++half) {
        dots[t][half] = _mm256_dpbusd_avx_epi32(dots[t][half], codes, tile[half]);
        KeepInRegister(&dots[t][half]);
      }
    }
  }
#pragma GCC unroll 6
  for (size_t t = 0; t < kTokens; ++t) {
    const __m256 x_scale = _mm256_set1_ps(batch.scales[token + t]);
    for (size_t half = 0; half < kHalves; ++half) {
      float* at = sums[token + t][half];
      const __m256 scale = _mm256_mul_ps(panel.scales[half], x_scale);
      const __m256 dot = _mm256_cvtepi32_ps(dots[t][half]);
      _mm256_store_ps(at, _mm256_fmadd_ps(dot, scale, _mm256_load_ps(at)));
    }
  }
}

void AddBatch(const Panel& panel, const Batch& batch, size_t count, Sums* sums) {
  size_t t = 0;
  for (; t + kTokensTogether <= count; t += kTokensTogether) {
    AddTokens<kTokensTogether>(panel, batch, t, sums);
  }
  if (count - t == 5) AddTokens<5>(panel, batch, t, sums);
  if (count - t == 4) AddTokens<4>(panel, batch, t, sums);
  if (count - t == 3) AddTokens<3>(panel, batch, t, sums);
  if (count - t == 2) AddTokens<2>(panel, batch, t, sums);
  if (count - t == 1) AddTokens<1>(panel, batch, t, sums);
}

// Sums of a block's rows to those that the range has.
void StoreRows(const MatMulRange& y, size_t block, size_t token, const Sums& sums) {
  const size_t first = block * kRows;
  const size_t begin = first < y.row_begin ? y.row_begin - first : 0;
  const size_t end = Min(y.row_end - first, kRows);
  float* out = y.out + token * y.out_stride + first;
  if (end - begin < kRows) {
    for (size_t row = begin; row < end; ++row) out[row] = sums[row / 8][row % 8];
    return;
  }
  _mm256_storeu_ps(out, _mm256_load_ps(sums[0]));
  _mm256_storeu_ps(out + 8, _mm256_load_ps(sums[1]));
}

// `blocks` blocks of rows from `block` on for all tokens: while the weights are near, every batch
// uses them.
void MultiplyPanel(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                   size_t block, size_t blocks) {
  const size_t groups = x.col_stride / kGroupCols;
  alignas(32) Sums sums[kPanelBlocks][kTokenBatch];
  Batch batch;
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const size_t count = Min(kTokenBatch, x.token_count - token);
    Place places[kPanelBlocks] = {Place(weights, block), Place(weights, block + blocks - 1)};
    __builtin_memset(sums, 0, sizeof(sums));
    for (size_t group = 0; group < groups; ++group) {
      LoadBatch(x, token, count, group, &batch);
      for (size_t b = 0; b < blocks; ++b) {
        PrefetchAhead(places[b]);
        AddBatch(Panel(places[b]), batch, count, sums[b]);
        places[b].ToNextGroup();
      }
    }
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t t = 0; t < count; ++t) StoreRows(y, block + b, token + t, sums[b][t]);
    }
  }
}

}  // namespace

void MatMulInt8TilesAvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  if (x.token_count < kTilesManyTokensMin) return MatMulInt8TilesAvx2(weights, x, y);
  if (y.row_begin >= y.row_end) return;
  const size_t block_end = (y.row_end + kRows - 1) / kRows;
  for (size_t block = y.row_begin / kRows; block < block_end; block += kPanelBlocks) {
    MultiplyPanel(weights, x, y, block, Min(kPanelBlocks, block_end - block));
  }
}

}  // namespace smoe::kernels
#endif
