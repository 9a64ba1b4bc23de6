// kernels/int8_panels_256.h: int8 matrices for many tokens, in 256-bit registers.
//
// Two registers are one tile, their lanes are its rows (tensor/weights.h). A panel of blocks of
// rows is multiplied with a batch of tokens, group by group of columns: what is made of a group's
// activations is made once for all blocks, what is made of its weights once for all tokens.
//
// Text, not machine code: kernels_avx2_s8.cc and kernels_avxvnni_s8.cc each compile it for
// themselves, and bring
//
//   Batch      one group of the activations of up to kTokenBatch tokens: scales, and
//              Set(token, half, codes) for half of a token's codes
//   Weights    one group of a block of rows, made of its Place
//   AddBatch   (weights, batch, count, sums): the group's products to the sums of `count` tokens
#pragma once

#include "kernels/int8_tiles.h"
#include "kernels/simd_256.h"

#if defined(__AVX2__)

namespace smoe::kernels {

namespace {

constexpr size_t kHalves = 2;       // registers of eight rows
constexpr size_t kPanelBlocks = 2;  // that use the activations before they are overwritten
constexpr size_t kTokenBatch = 64;

using Sums = float[kRows];  // of one token

// An empty instruction that changes the sum as far as g++ 12 knows: without it the compiler copies
// every sum in each step of the loop.
inline void KeepInRegister(__m256i* sum) { asm("" : "+x"(*sum)); }

inline __m256 LoadScales(const uint8_t* at, size_t half) {
  return _mm256_castsi256_ps(Load256(at + half * (kScaleBytes / kHalves)));
}

// Sums of a block's rows to those that the range has.
inline void StoreRows(const MatMulRange& y, size_t block, size_t token, const Sums& sums) {
  const size_t first = block * kRows;
  const size_t begin = first < y.row_begin ? y.row_begin - first : 0;
  const size_t end = Min(y.row_end - first, kRows);
  float* out = y.out + token * y.out_stride + first;
  if (end - begin < kRows) {
    for (size_t row = begin; row < end; ++row) out[row] = sums[row];
    return;
  }
  _mm256_storeu_ps(out, _mm256_load_ps(sums));
  _mm256_storeu_ps(out + 8, _mm256_load_ps(sums + 8));
}

template <class Batch>
void LoadBatch(const QuantisedRows& x, size_t token, size_t count, size_t group, Batch* batch) {
  const size_t groups = x.col_stride / kGroupCols;
  for (size_t t = 0; t < count; ++t) {
    const int8_t* at = x.codes + (token + t) * x.col_stride + group * kGroupCols;
    // Rows of activations are far apart; the processor does not guess the next group's line.
    _mm_prefetch(reinterpret_cast<const char*>(at + kGroupCols), _MM_HINT_T0);
    for (size_t half = 0; half < kHalves; ++half) {
      batch->Set(t, half, Load256(at + half * sizeof(__m256i)));
    }
    batch->scales[t] = x.scales[(token + t) * groups + group];
  }
}

// `blocks` blocks of rows from `block` on for all tokens: while the weights are near, every batch
// uses them.
template <class Weights, class Batch>
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
        AddBatch(Weights(places[b]), batch, count, sums[b]);
        places[b].ToNextGroup();
      }
    }
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t t = 0; t < count; ++t) StoreRows(y, block + b, token + t, sums[b][t]);
    }
  }
}

template <class Weights, class Batch>
void MultiplyPanels(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  const size_t block_end = (y.row_end + kRows - 1) / kRows;
  for (size_t block = y.row_begin / kRows; block < block_end; block += kPanelBlocks) {
    MultiplyPanel<Weights, Batch>(weights, x, y, block, Min(kPanelBlocks, block_end - block));
  }
}

}  // namespace

}  // namespace smoe::kernels
#endif
