// int8 matrices in integers; kernels_avx512.cc says what holds for all of the table, and
// tensor/weights.h how the tiles lie: a register is one tile, its lanes are sixteen rows.
//
// dpbusd multiplies unsigned by signed bytes, so one side is moved up by 128, and 128 times the
// other side's sum is taken away again. For one token the weights are moved, in registers. For many
// the activations are, once for a panel of rows, and the sums of weights serve all of them.
#include "kernels/avx512.h"

#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VNNI__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

#include "kernels/int8_tiles.h"

namespace smoe::kernels {

namespace {

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// An empty instruction that changes the sum as far as g++ 12 knows: without it the compiler copies
// every sum twice in each step of the loop, for half of the speed.
void KeepInRegister(__m512i* sum) { asm("" : "+v"(*sum)); }

__m512i Spread(const void* four_codes) {
  int32_t codes;
  __builtin_memcpy(&codes, four_codes, sizeof(codes));
  return _mm512_set1_epi32(codes);
}

// The rows of a block that the range has.
struct Output {
  float* at;  // the block's first row, in the range or not
  __mmask16 rows;

  Output(const MatMulRange& y, size_t block) {
    const size_t first = block * kRows;
    const size_t skip = first < y.row_begin ? y.row_begin - first : 0;
    const size_t end = Min(y.row_end - first, kRows);
    at = y.out + first;
    rows = static_cast<__mmask16>((1u << end) - (1u << skip));
  }
};

// ---- One token ----

__m512i DotGroup(const uint8_t* tiles, const int8_t* x) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i dots[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  __m512i excess = _mm512_setzero_si512();
  for (size_t i = 0; i < kTiles; i += 2) {
    for (size_t chain = 0; chain < 2; ++chain) {
      const __m512i codes = Spread(x + (i + chain) * kTileCols);
      const __m512i weights = _mm512_loadu_si512(tiles + (i + chain) * kTileBytes);
      dots[chain] = _mm512_dpbusd_epi32(dots[chain], _mm512_xor_si512(weights, offset), codes);
      excess = _mm512_dpbusd_epi32(excess, offset, codes);
    }
  }
  return _mm512_sub_epi32(_mm512_add_epi32(dots[0], dots[1]), excess);
}

void MultiplyOne(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  const size_t groups = x.col_stride / kGroupCols;
  for (size_t block = y.row_begin / kRows; block * kRows < y.row_end; ++block) {
    Place place(weights, block);
    __m512 sum = _mm512_setzero_ps();
    for (size_t group = 0; group < groups; ++group) {
      PrefetchAhead(place);
      const __m512 dot = _mm512_cvtepi32_ps(DotGroup(place.codes, x.codes + group * kGroupCols));
      const __m512 x_scale = _mm512_set1_ps(x.scales[group]);
      sum = _mm512_fmadd_ps(dot, _mm512_mul_ps(_mm512_loadu_ps(place.scales), x_scale), sum);
      place.ToNextGroup();
    }
    const Output out(y, block);
    _mm512_mask_storeu_ps(out.at, out.rows, sum);
  }
}

// ---- Many tokens ----

constexpr size_t kPanelBlocks = 2;
constexpr size_t kTokenBatch = 64;
constexpr size_t kTokensTogether = 8;  // sixteen sums in registers

// One group of the activations of a batch, moved up by 128.
struct Batch {
  alignas(64) uint8_t codes[kTokenBatch][kGroupCols];
  float scales[kTokenBatch];
};

void LoadBatch(const QuantisedRows& x, size_t token, size_t count, size_t group, Batch* batch) {
  const size_t groups = x.col_stride / kGroupCols;
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
  for (size_t t = 0; t < count; ++t) {
    const int8_t* at = x.codes + (token + t) * x.col_stride + group * kGroupCols;
    _mm512_store_si512(batch->codes[t], _mm512_xor_si512(_mm512_loadu_si512(at), offset));
    batch->scales[t] = x.scales[(token + t) * groups + group];
  }
}

// A group of kBlocks blocks of rows.
template <size_t kBlocks>
struct Panel {
  const uint8_t* codes[kBlocks];
  __m512i start[kBlocks];  // -128 times the sum of the codes
  __m512 scales[kBlocks];

  explicit Panel(const Place* places) {
    const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
    for (size_t b = 0; b < kBlocks; ++b) {
      codes[b] = places[b].codes;
      scales[b] = _mm512_loadu_ps(places[b].scales);
      __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
      for (size_t i = 0; i < kTiles; ++i) {
        const __m512i tile = _mm512_loadu_si512(codes[b] + i * kTileBytes);
        sums[i % 2] = _mm512_dpbusd_epi32(sums[i % 2], offset, tile);
      }
      start[b] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(sums[0], sums[1]));
    }
  }
};

using Sums = float[kPanelBlocks][kRows];  // of one token

template <size_t kBlocks, size_t kTokens>
void AddTokens(const Panel<kBlocks>& panel, const Batch& batch, size_t token, Sums* sums) {
  constexpr size_t kDots = kTokens * kBlocks;
  __m512i dots[kDots];
  for (size_t n = 0; n < kDots; ++n) dots[n] = panel.start[n % kBlocks];
  for (size_t i = 0; i < kTiles; ++i) {
    __m512i tile[kBlocks];
    for (size_t b = 0; b < kBlocks; ++b) {
      tile[b] = _mm512_loadu_si512(panel.codes[b] + i * kTileBytes);
    }
    for (size_t n = 0; n < kDots; ++n) {
      const __m512i codes = Spread(batch.codes[token + n / kBlocks] + i * kTileCols);
      dots[n] = _mm512_dpbusd_epi32(dots[n], codes, tile[n % kBlocks]);
      KeepInRegister(&dots[n]);
    }
  }
  for (size_t n = 0; n < kDots; ++n) {
    const size_t t = token + n / kBlocks;
    float* at = sums[t][n % kBlocks];
    const __m512 scale = _mm512_mul_ps(panel.scales[n % kBlocks], _mm512_set1_ps(batch.scales[t]));
    const __m512 dot = _mm512_cvtepi32_ps(dots[n]);
    _mm512_store_ps(at, _mm512_fmadd_ps(dot, scale, _mm512_load_ps(at)));
  }
}

template <size_t kBlocks>
void AddBatch(const Panel<kBlocks>& panel, const Batch& batch, size_t count, Sums* sums) {
  size_t t = 0;
  for (; t + kTokensTogether <= count; t += kTokensTogether) {
    AddTokens<kBlocks, kTokensTogether>(panel, batch, t, sums);
  }
  if (count - t >= 4) {
    AddTokens<kBlocks, 4>(panel, batch, t, sums);
    t += 4;
  }
  if (count - t == 3) AddTokens<kBlocks, 3>(panel, batch, t, sums);
  if (count - t == 2) AddTokens<kBlocks, 2>(panel, batch, t, sums);
  if (count - t == 1) AddTokens<kBlocks, 1>(panel, batch, t, sums);
}

// kBlocks blocks of rows from `block` on for all tokens: while the weights are near, every batch
// uses them.
template <size_t kBlocks>
void MultiplyPanel(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y,
                   size_t block) {
  const size_t groups = x.col_stride / kGroupCols;
  alignas(64) Sums sums[kTokenBatch];
  Batch batch;
  for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
    const size_t count = Min(kTokenBatch, x.token_count - token);
    __builtin_memset(sums, 0, count * sizeof(sums[0]));
    Place places[2] = {Place(weights, block), Place(weights, block + kBlocks - 1)};
    for (size_t group = 0; group < groups; ++group) {
      LoadBatch(x, token, count, group, &batch);
      for (size_t b = 0; b < kBlocks; ++b) PrefetchAhead(places[b]);
      AddBatch(Panel<kBlocks>(places), batch, count, sums);
      for (Place& place : places) place.ToNextGroup();
    }
    for (size_t b = 0; b < kBlocks; ++b) {
      const Output out(y, block + b);
      for (size_t t = 0; t < count; ++t) {
        _mm512_mask_storeu_ps(out.at + (token + t) * y.out_stride, out.rows,
                              _mm512_load_ps(sums[t][b]));
      }
    }
  }
}

}  // namespace

void MatMulInt8TilesAvx512(const PlainWeights& weights, const QuantisedRows& x,
                           const MatMulRange& y) {
  if (y.row_begin >= y.row_end) return;
  if (x.token_count == 1) return MultiplyOne(weights, x, y);
  const size_t block_end = (y.row_end + kRows - 1) / kRows;
  size_t block = y.row_begin / kRows;
  for (; block + kPanelBlocks <= block_end; block += kPanelBlocks) {
    MultiplyPanel<kPanelBlocks>(weights, x, y, block);
  }
  if (block < block_end) MultiplyPanel<1>(weights, x, y, block);
}

}  // namespace smoe::kernels
#endif
