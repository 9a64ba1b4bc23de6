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

#include "kernels/int8_panels_256.h"

namespace smoe::kernels {

namespace {

constexpr size_t kTokensTogether = 6;  // twelve sums in registers

// One group of the activations of a batch, moved up by 128.
struct Batch {
  alignas(32) uint8_t codes[kTokenBatch][kGroupCols];
  float scales[kTokenBatch];

  void Set(size_t t, size_t half, __m256i signed_codes) {
    const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
    auto* to = reinterpret_cast<__m256i*>(codes[t]) + half;
    _mm256_store_si256(to, _mm256_xor_si256(signed_codes, offset));
  }
};

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
      scales[half] = LoadScales(place.scales, half);
    }
  }
};

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
      float* at = sums[token + t] + 8 * half;
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

}  // namespace

void MatMulInt8TilesAvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  if (x.token_count < kTilesManyTokensMin) return MatMulInt8TilesAvx2(weights, x, y);
  if (y.row_begin >= y.row_end) return;
  MultiplyPanels<Panel, Batch>(weights, x, y);
}

}  // namespace smoe::kernels
#endif
