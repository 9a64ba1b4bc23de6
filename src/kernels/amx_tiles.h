// kernels/amx_tiles.h: how the files of the AMX table multiply tiles.
//
// A tile register holds sixteen rows of 64 bytes. One of weights is a piece of sixteen rows of W in
// quads, [quad][row of W][4 columns]; one of activations is sixteen tokens' codes in the columns of
// the piece. tdpbssd makes of the two all of their dot products, [token][row of W] in int32. They
// go through memory to the vector registers, where scales and sums are. That takes longer than the
// products do, so both are done side by side: while the tiles of some tokens are multiplied, what
// those before gave is added, a quarter at a time.
//
// Text, not machine code: the files of the table each compile it for themselves, in an unnamed
// namespace.
#pragma once

#include "kernels/batch_512.h"
#include "kernels/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

constexpr size_t kTileTokens = 16;
constexpr size_t kTileRows = 16;  // of W
constexpr size_t kTileBytes = 64;
constexpr size_t kPassPieces = 2;
constexpr size_t kPassTiles = 2;  // of rows of W
constexpr size_t kPanelRows = kPassTiles * kTileRows;
constexpr size_t kBatchTokens = 256;  // whose sums wait near the core: 32 KiB

// Tile registers: 0 to 3 for weights, 4 and 5 for activations, 6 and 7 for dot products. The
// processor has more behind these names.
constexpr size_t kFirstOfActivations = 4;
constexpr size_t kFirstOfDots = 6;
constexpr size_t kTileRegisters = 8;

using PanelAhead = LinesAhead<2>;  // a panel is larger than the first cache
using Dots = int32_t[kTileTokens][kTileRows];
using Sums = float[kPassTiles][kTileRows];  // of one token

// g++ 12 does not know that loading a tile, or the shapes of tiles, reads memory.
inline void WriteBeforeTilesAreLoaded() { asm volatile("" ::: "memory"); }

// The shapes of tiles on this thread, until the end of the scope: then they are given up, so that
// nobody has to save eight KiB of registers when threads change.
class TileShapes {
 public:
  // For tiles of `tokens` tokens.
  TileShapes(size_t tokens, size_t piece_cols) {
    for (size_t i = 0; i < kFirstOfActivations; ++i) Set(i, piece_cols / kQuadCols, kTileBytes);
    for (size_t i = kFirstOfActivations; i < kFirstOfDots; ++i) Set(i, tokens, piece_cols);
    for (size_t i = kFirstOfDots; i < kTileRegisters; ++i) Set(i, tokens, kTileBytes);
    asm volatile("" ::"r"(&shapes_) : "memory");
    _tile_loadconfig(&shapes_);
  }
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;

 private:
  struct alignas(64) Shapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Shapes) == 64);

  void Set(size_t tile, size_t rows, size_t row_bytes) {
    shapes_.rows[tile] = static_cast<uint8_t>(rows);
    shapes_.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }

  Shapes shapes_;
};

// Tokens [begin, end) of the activations, which are used where they lie.
struct Batch {
  const QuantisedRows& x;
  size_t begin;
  size_t end;

  size_t blocks() const { return x.col_stride / kActivationBlock; }
  // The first of the tokens whose tile has `token`: what would be left at the end is filled up with
  // tokens before it, whose products nobody looks at.
  size_t TileBegin(size_t token) const {
    if (token + kTileTokens <= x.token_count) return token;
    return x.token_count < kTileTokens ? 0 : x.token_count - kTileTokens;
  }
};

// The weights of a pass: for each of its tiles of rows the quads and the scales of its pieces.
struct PassWeights {
  const uint8_t* quads[kPassTiles];
  const uint8_t* scales[kPassTiles];  // f32, [piece][row]
};

// Dot products that are yet to be added: those of tokens [begin, end).
struct Pending {
  const Dots* dots = nullptr;  // [piece][tile of rows]
  size_t first = 0;            // the token of the first row
  size_t begin = 0;
  size_t end = 0;
};

// Adds dot products, times the scales of their piece, to the sums of their tokens.
template <size_t kPieces, size_t kPieceCols>
struct Adder {
  const float* x_scales;  // of the batch's first token, in the first piece's block
  size_t blocks;          // of a token
  size_t first_token;
  Sums* sums;
  __m512 w_scales[kPieces][kPassTiles];

  Adder(const Batch& batch, size_t col, const PassWeights& weights, Sums* to)
      : x_scales(batch.x.scales + batch.begin * batch.blocks() + col / kActivationBlock),
        blocks(batch.blocks()),
        first_token(batch.begin),
        sums(to) {
    for (size_t p = 0; p < kPieces; ++p) {
      for (size_t r = 0; r < kPassTiles; ++r) {
        w_scales[p][r] = _mm512_loadu_ps(weights.scales[r] + p * sizeof(__m512));
      }
    }
  }

  // `at` counts from the batch's first token.
  [[gnu::always_inline]] void AddToken(const Dots* dots, size_t row, size_t at) const {
    __m512 sum[kPassTiles] = {_mm512_load_ps(sums[at][0]), _mm512_load_ps(sums[at][1])};
#pragma GCC unroll 2
    for (size_t p = 0; p < kPieces; ++p) {
      const size_t block = p * kPieceCols / kActivationBlock;
      const __m512 x_scale = _mm512_set1_ps(x_scales[at * blocks + block]);
#pragma GCC unroll 2
      for (size_t r = 0; r < kPassTiles; ++r) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[p * kPassTiles + r][row]));
        sum[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(w_scales[p][r], x_scale), sum[r]);
      }
    }
    for (size_t r = 0; r < kPassTiles; ++r) _mm512_store_ps(sums[at][r], sum[r]);
  }

  // Those of four rows that are pending.
  [[gnu::always_inline]] void AddQuarter(const Pending& pending, size_t quarter) const {
    constexpr size_t kTokens = kTileTokens / 4;
    const size_t row = quarter * kTokens;
    const size_t from = pending.first + row;
    if (from >= pending.begin && from + kTokens <= pending.end) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kTokens; ++i) AddToken(pending.dots, row + i, from + i - first_token);
      return;
    }
    for (size_t i = 0; i < kTokens; ++i) {
      if (from + i < pending.begin || from + i >= pending.end) continue;
      AddToken(pending.dots, row + i, from + i - first_token);
    }
  }
};

// Adds kPieces pieces from column `col` on to the sums of the batch.
template <size_t kPieces, size_t kPieceCols>
void AddPass(const Batch& batch, size_t col, const PassWeights& weights, Sums* sums,
             PanelAhead* ahead) {
  constexpr size_t kWeightBytes = kPieceCols * kTileRows;
  alignas(64) Dots dots[2][kPieces * kPassTiles];
  const Adder<kPieces, kPieceCols> adder(batch, col, weights, sums);
  const size_t stride = batch.x.col_stride;
  _tile_loadd(0, weights.quads[0], kTileBytes);
  _tile_loadd(1, weights.quads[1], kTileBytes);
  if constexpr (kPieces > 1) {
    _tile_loadd(2, weights.quads[0] + kWeightBytes, kTileBytes);
    _tile_loadd(3, weights.quads[1] + kWeightBytes, kTileBytes);
  }
  Pending pending;
  for (size_t token = batch.begin; token < batch.end; token += kTileTokens) {
    const size_t first = batch.TileBegin(token);
    const int8_t* const codes = batch.x.codes + first * stride + col;
    Dots* const to = dots[(token - batch.begin) / kTileTokens % 2];
    ahead->Step();
    _tile_loadd(4, codes, stride);
    _tile_zero(6);
    _tile_dpbssd(6, 4, 0);
    adder.AddQuarter(pending, 0);
    _tile_zero(7);
    _tile_dpbssd(7, 4, 1);
    _tile_stored(6, to[0], kTileBytes);
    adder.AddQuarter(pending, 1);
    if constexpr (kPieces > 1) {
      _tile_loadd(5, codes + kPieceCols, stride);
      _tile_zero(6);
      _tile_dpbssd(6, 5, 2);
    }
    _tile_stored(7, to[1], kTileBytes);
    adder.AddQuarter(pending, 2);
    if constexpr (kPieces > 1) {
      _tile_zero(7);
      _tile_dpbssd(7, 5, 3);
      _tile_stored(6, to[2], kTileBytes);
    }
    adder.AddQuarter(pending, 3);
    if constexpr (kPieces > 1) _tile_stored(7, to[3], kTileBytes);
    pending = {
        .dots = to, .first = first, .begin = token, .end = Min(token + kTileTokens, batch.end)};
  }
  for (size_t quarter = 0; quarter < 4; ++quarter) adder.AddQuarter(pending, quarter);
}

// Writes the sums of a panel, whose first row is `row`, in the range or not.
inline void StoreSums(const Batch& batch, const Sums* sums, const MatMulRange& y, size_t row) {
  for (size_t r = 0; r < kPassTiles; ++r, row += kTileRows) {
    const size_t skip = row < y.row_begin ? Min(y.row_begin - row, kTileRows) : 0;
    const size_t end = row < y.row_end ? Min(y.row_end - row, kTileRows) : skip;
    const auto there = static_cast<__mmask16>((1u << end) - (1u << skip));
    for (size_t token = batch.begin; token < batch.end; ++token) {
      _mm512_mask_storeu_ps(y.out + token * y.out_stride + row, there,
                            _mm512_load_ps(sums[token - batch.begin][r]));
    }
  }
}

// All rows of the range, panel by panel from `first_row` on, for all tokens. `panels` has the
// weights:
//   PanelAhead Begin(row, steps)      goes to the panel of `row`; gives the next one's lines, to be
//                                     fetched in `steps`
//   PassWeights Take<kPieces>(piece)  pieces of the panel, from the piece-th on
// Requires rows in the range, columns and tokens.
template <size_t kPieceCols, class Panels>
void MultiplyPanels(const QuantisedRows& x, const MatMulRange& y, size_t first_row,
                    size_t piece_count, Panels* panels) {
  const TileShapes shapes(Min(kTileTokens, x.token_count), kPieceCols);
  const size_t batch_tokens = Parts(x.token_count, Parts(x.token_count, kBatchTokens));
  const size_t steps = Parts(x.token_count, kTileTokens) * Parts(piece_count, kPassPieces);
  alignas(64) Sums sums[kBatchTokens];
  for (size_t row = first_row; row < y.row_end; row += kPanelRows) {
    PanelAhead ahead = panels->Begin(row, steps);
    for (size_t token = 0; token < x.token_count; token += batch_tokens) {
      const Batch batch = {.x = x, .begin = token, .end = Min(token + batch_tokens, x.token_count)};
      __builtin_memset(sums, 0, (batch.end - batch.begin) * sizeof(sums[0]));
      size_t piece = 0;
      for (; piece + kPassPieces <= piece_count; piece += kPassPieces) {
        const PassWeights weights = panels->template Take<kPassPieces>(piece);
        AddPass<kPassPieces, kPieceCols>(batch, piece * kPieceCols, weights, sums, &ahead);
      }
      if (piece < piece_count) {
        const PassWeights weights = panels->template Take<1>(piece);
        AddPass<1, kPieceCols>(batch, piece * kPieceCols, weights, sums, &ahead);
      }
      StoreSums(batch, sums, y, row);
    }
  }
}

}  // namespace

}  // namespace smoe::kernels
#endif
