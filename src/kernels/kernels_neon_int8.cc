// Integer products with dot products of four bytes; kernels_neon.cc says what holds for all tables
// of 64-bit ARM.
//
// Sixteen bytes of a row become registers of twice (code - Z), s8, each multiplied with the
// activations of the same columns. Each 32-bit lane then has the sum over a quarter of these
// bytes. Pairwise adds bring four rows into the four lanes, and on the way the halves of sixteen
// bytes can be told apart: so a piece is half a register of bytes or any number of registers.
//
// Many tokens use rows that were decoded to s8 once; these are read like a format of their own.
#include "kernels/neon.h"

#if defined(__aarch64__)
#if !defined(__ARM_FEATURE_DOTPROD)
#error "CMakeLists.txt must give this file the flags of what its table claims"
#endif
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

// clang-format off
constexpr int8_t kQ4Twice[16] = {-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15};
// Of four bits that hold two codes: the low one's value, and the high one's.
constexpr int8_t kQ2TwiceLow[16] = {-3, -1, 1, 3, -3, -1, 1, 3, -3, -1, 1, 3, -3, -1, 1, 3};
constexpr int8_t kQ2TwiceHigh[16] = {-3, -3, -3, -3, -1, -1, -1, -1, 1, 1, 1, 1, 3, 3, 3, 3};
// clang-format on

constexpr size_t kBytes = 16;         // of a row at a time
constexpr size_t kScaleEntries = 64;  // pieces whose scales are decoded at once
constexpr size_t kFew = 2;            // tokens that use codes straight from the matrix
constexpr size_t kMany = 4;           // tokens that use decoded rows together
constexpr size_t kTokenBatch = 32;    // tokens that use decoded rows before these are overwritten

size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// Each format: what sixteen bytes of a row hold, as kPhases registers, and the activations of the
// same columns in the same order.
struct Q4 {
  static constexpr size_t kCols = 32;
  static constexpr size_t kPhases = 2;  // even columns, odd columns

  static void Weights(const uint8_t* at, int8x16_t* w) {
    const uint8x16_t bytes = vld1q_u8(at);
    const int8x16_t table = vld1q_s8(kQ4Twice);
    w[0] = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
    w[1] = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
  }
  static void Activations(const int8_t* codes, int8x16_t* x) {
    const int8x16x2_t two = vld2q_s8(codes);
    for (size_t i = 0; i < kPhases; ++i) x[i] = two.val[i];
  }
  static void Decode(const uint8_t* at, int8_t* out) {
    int8x16x2_t w;
    Weights(at, w.val);
    vst2q_s8(out, w);
  }
};

struct Q2 {
  static constexpr size_t kCols = 64;
  static constexpr size_t kPhases = 4;  // phase k: columns 4 j + k

  static void Weights(const uint8_t* at, int8x16_t* w) {
    const uint8x16_t bytes = vld1q_u8(at);
    const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15));
    const uint8x16_t high = vshrq_n_u8(bytes, 4);
    w[0] = vqtbl1q_s8(vld1q_s8(kQ2TwiceLow), low);
    w[1] = vqtbl1q_s8(vld1q_s8(kQ2TwiceHigh), low);
    w[2] = vqtbl1q_s8(vld1q_s8(kQ2TwiceLow), high);
    w[3] = vqtbl1q_s8(vld1q_s8(kQ2TwiceHigh), high);
  }
  static void Activations(const int8_t* codes, int8x16_t* x) {
    const int8x16x4_t four = vld4q_s8(codes);
    for (size_t i = 0; i < kPhases; ++i) x[i] = four.val[i];
  }
  static void Decode(const uint8_t* at, int8_t* out) {
    int8x16x4_t w;
    Weights(at, w.val);
    vst4q_s8(out, w);
  }
};

struct Decoded {
  static constexpr size_t kCols = 16;
  static constexpr size_t kPhases = 1;

  static void Weights(const uint8_t* at, int8x16_t* w) { *w = vreinterpretq_s8_u8(vld1q_u8(at)); }
  static void Activations(const int8_t* codes, int8x16_t* x) { *x = vld1q_s8(codes); }
};

float32x4_t AddPiece(int32x4_t dot, const float* w_scales, float32x4_t x_scale, float32x4_t sum) {
  return vfmaq_f32(sum, vcvtq_f32_s32(dot), vmulq_f32(vld1q_f32(w_scales), x_scale));
}

// What AddColumns reads; codes and scales from the stretch's first column on.
template <size_t kTokens>
struct Stretch {
  const uint8_t* const* rows;
  const float (*w_scales)[kNeonRows];
  size_t count;  // of columns, a multiple of kActivationBlock
  const int8_t* codes[kTokens];
  const float* x_scales[kTokens];
};

// Adds one stretch of kRows rows, from the tile's row `first` on, for kTokens tokens. A piece has
// kHalves times half of what kBytes hold.
template <class Format, size_t kHalves, size_t kRows, size_t kTokens>
void AddColumns(const Stretch<kTokens>& stretch, size_t first, float32x4_t (*sums)[kRows / 4]) {
  constexpr size_t kVectors = kHalves < 2 ? 1 : kHalves / 2;
  constexpr size_t kPieces = kHalves < 2 ? 2 : 1;  // in so many
  size_t piece = 0;
  for (size_t col = 0; col < stretch.count; col += kVectors * Format::kCols) {
    int32x4_t dots[kTokens][kRows];
    for (size_t t = 0; t < kTokens; ++t) {
      for (int32x4_t& dot : dots[t]) dot = vdupq_n_s32(0);
    }
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t at = col + v * Format::kCols;
      int8x16_t x[kTokens][Format::kPhases];
      for (size_t t = 0; t < kTokens; ++t) Format::Activations(stretch.codes[t] + at, x[t]);
      for (size_t r = 0; r < kRows; ++r) {
        int8x16_t w[Format::kPhases];
        Format::Weights(stretch.rows[first + r] + at / Format::kCols * kBytes, w);
        for (size_t t = 0; t < kTokens; ++t) {
          for (size_t i = 0; i < Format::kPhases; ++i) {
            dots[t][r] = vdotq_s32(dots[t][r], w[i], x[t][i]);
          }
        }
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      const float32x4_t x_scale = vdupq_n_f32(stretch.x_scales[t][col / kActivationBlock]);
      for (size_t q = 0; q < kRows / 4; ++q) {
        const int32x4_t rows01 = vpaddq_s32(dots[t][4 * q], dots[t][4 * q + 1]);
        const int32x4_t rows23 = vpaddq_s32(dots[t][4 * q + 2], dots[t][4 * q + 3]);
        const float* w_scales = stretch.w_scales[piece] + first + 4 * q;
        float32x4_t& sum = sums[t][q];
        if constexpr (kPieces == 1) {
          sum = AddPiece(vpaddq_s32(rows01, rows23), w_scales, x_scale, sum);
        } else {
          sum = AddPiece(vuzp1q_s32(rows01, rows23), w_scales, x_scale, sum);
          sum = AddPiece(vuzp2q_s32(rows01, rows23), w_scales + kNeonRows, x_scale, sum);
        }
      }
    }
    piece += kPieces;
  }
}

template <size_t kTokens>
void SetActivations(const QuantisedRows& x, size_t token, size_t col, Stretch<kTokens>* stretch) {
  const size_t blocks = x.col_stride / kActivationBlock;
  for (size_t t = 0; t < kTokens; ++t) {
    stretch->codes[t] = x.codes + (token + t) * x.col_stride + col;
    stretch->x_scales[t] = x.scales + (token + t) * blocks + col / kActivationBlock;
  }
}

// All of kTokens tokens, codes straight from the matrix.
template <class Format, size_t kHalves, size_t kTokens>
void MultiplyFew(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  constexpr size_t kPieceCols = kHalves * Format::kCols / 2;
  float w_scales[kScaleEntries][kNeonRows];
  for (size_t row = y.row_begin; row < y.row_end; row += kNeonRows) {
    const NeonTile tile = MakeNeonTile(weights, row, y.row_end);
    float32x4_t sums[kTokens][kNeonRows / 4] = {};
    for (size_t col = 0; col < weights.cols; col += kScaleEntries * kPieceCols) {
      const size_t count = Min(kScaleEntries * kPieceCols, weights.cols - col);
      DecodeScalesNeon(weights, tile, kPieceCols, col / kPieceCols, count / kPieceCols, w_scales);
      const uint8_t* rows[kNeonRows];
      for (size_t r = 0; r < kNeonRows; ++r) {
        rows[r] = tile.codes[r] + col / Format::kCols * kBytes;
      }
      Stretch<kTokens> stretch = {
          .rows = rows, .w_scales = w_scales, .count = count, .codes = {}, .x_scales = {}};
      SetActivations(x, 0, col, &stretch);
      AddColumns<Format, kHalves, kNeonRows, kTokens>(stretch, 0, sums);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      float out[kNeonRows];
      for (size_t q = 0; q < kNeonRows / 4; ++q) vst1q_f32(out + 4 * q, sums[t][q]);
      __builtin_memcpy(y.out + t * y.out_stride + row, out, tile.row_count * sizeof(float));
    }
  }
}

// One stretch of decoded rows for kTokens tokens from `token` on, kRows rows at a time.
template <size_t kHalves, size_t kRows, size_t kTokens>
void AddDecoded(const uint8_t* const* rows, const float (*w_scales)[kNeonRows],
                const QuantisedRows& x, size_t token, size_t col, size_t count,
                float (*sums)[kNeonRows]) {
  Stretch<kTokens> stretch = {
      .rows = rows, .w_scales = w_scales, .count = count, .codes = {}, .x_scales = {}};
  SetActivations(x, token, col, &stretch);
  for (size_t first = 0; first < kNeonRows; first += kRows) {
    float32x4_t added[kTokens][kRows / 4];
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t q = 0; q < kRows / 4; ++q) added[t][q] = vld1q_f32(sums[t] + first + 4 * q);
    }
    AddColumns<Decoded, kHalves, kRows, kTokens>(stretch, first, added);
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t q = 0; q < kRows / 4; ++q) vst1q_f32(sums[t] + first + 4 * q, added[t][q]);
    }
  }
}

template <size_t kHalves>
void MultiplyMany(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  constexpr size_t kPieceCols = kHalves * Decoded::kCols / 2;
  int8_t decoded[kNeonRows][kNeonStretchCols];
  const uint8_t* rows[kNeonRows];
  for (size_t r = 0; r < kNeonRows; ++r) rows[r] = reinterpret_cast<const uint8_t*>(decoded[r]);
  float w_scales[kNeonStretchCols / kPieceCols][kNeonRows];
  float sums[kTokenBatch][kNeonRows];
  for (size_t row = y.row_begin; row < y.row_end; row += kNeonRows) {
    const NeonTile tile = MakeNeonTile(weights, row, y.row_end);
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      const size_t batch = Min(kTokenBatch, x.token_count - token);
      __builtin_memset(sums, 0, sizeof(sums));
      for (size_t col = 0; col < weights.cols; col += kNeonStretchCols) {
        const size_t count = Min(kNeonStretchCols, weights.cols - col);
        DecodeCodesNeon(weights, tile, col, count, decoded);
        DecodeScalesNeon(weights, tile, kPieceCols, col / kPieceCols, count / kPieceCols, w_scales);
        size_t t = 0;
        for (; t + kMany <= batch; t += kMany) {
          AddDecoded<kHalves, 4, kMany>(rows, w_scales, x, token + t, col, count, sums + t);
        }
        for (; t < batch; ++t) {
          AddDecoded<kHalves, kNeonRows, 1>(rows, w_scales, x, token + t, col, count, sums + t);
        }
      }
      for (size_t t = 0; t < batch; ++t) {
        float* out = y.out + (token + t) * y.out_stride + row;
        __builtin_memcpy(out, sums[t], tile.row_count * sizeof(float));
      }
    }
  }
}

void MultiplyMany(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  switch (NeonPieceCols(weights)) {
    case 8:
      return MultiplyMany<1>(weights, x, y);
    case 16:
      return MultiplyMany<2>(weights, x, y);
    case 32:
      return MultiplyMany<4>(weights, x, y);
    default:
      return MultiplyMany<8>(weights, x, y);
  }
}

template <class Format, size_t kHalves>
void MultiplyFew(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y) {
  if (x.token_count == 1) MultiplyFew<Format, kHalves, 1>(weights, x, y);
  if (x.token_count == kFew) MultiplyFew<Format, kHalves, kFew>(weights, x, y);
}

template <class Format>
void DecodeRows(const NeonTile& tile, size_t col, size_t count, int8_t (*out)[kNeonStretchCols]) {
  for (size_t r = 0; r < kNeonRows; ++r) {
    for (size_t i = 0; i < count; i += Format::kCols) {
      // Sixteen bytes of Q4 are half a block, of Q2 a whole one: no row ends inside.
      Format::Decode(tile.codes[r] + (col + i) / Format::kCols * kBytes, out[r] + i);
    }
  }
}

uint16x8_t LoadScales(const uint8_t* at) { return vreinterpretq_u16_u8(vld1q_u8(at)); }

// Scales of eight neighbouring groups of eight rows, rows[r] pointing at the first:
// out[group][row].
void TransposeScales(const uint8_t* const* rows, float unit, float (*out)[kNeonRows]) {
  uint16x8_t from[8];
  uint16x8_t to[8];
  for (size_t i = 0; i < 8; ++i) from[i] = LoadScales(rows[i]);
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 4; ++i) {
      to[2 * i] = vzip1q_u16(from[i], from[i + 4]);
      to[2 * i + 1] = vzip2q_u16(from[i], from[i + 4]);
    }
    for (size_t i = 0; i < 8; ++i) from[i] = to[i];
  }
  for (size_t i = 0; i < 8; ++i) {
    const float16x8_t halves = vreinterpretq_f16_u16(from[i]);
    vst1q_f32(out[i], vmulq_n_f32(vcvt_f32_f16(vget_low_f16(halves)), unit));
    vst1q_f32(out[i] + 4, vmulq_n_f32(vcvt_f32_f16(vget_high_f16(halves)), unit));
  }
}

}  // namespace

NeonTile MakeNeonTile(const PlainWeights& weights, size_t row, size_t row_end) {
  const size_t codes_per_byte = weights.format == WeightFormat::kSmoeQ4 ? 2 : 4;
  NeonTile tile;
  tile.row_count = Min(kNeonRows, row_end - row);
  for (size_t i = 0; i < kNeonRows; ++i) {
    tile.row[i] = row + Min(i, tile.row_count - 1);
    tile.codes[i] = weights.data + tile.row[i] * weights.cols / codes_per_byte;
  }
  return tile;
}

void DecodeScalesNeon(const PlainWeights& weights, const NeonTile& tile, size_t piece_cols,
                      size_t first, size_t count, float (*out)[kNeonRows]) {
  const float unit = weights.format == WeightFormat::kSmoeQ4 ? kQ4Unit : kQ2Unit;
  size_t done = 0;
  if (weights.group_size == piece_cols) {  // then rows begin with a group
    for (; done + 8 <= count; done += 8) {
      const uint8_t* rows[kNeonRows];
      for (size_t r = 0; r < kNeonRows; ++r) {
        const uint64_t flat = tile.row[r] * weights.cols + (first + done) * piece_cols;
        rows[r] = weights.scales + flat / piece_cols * 2;
      }
      TransposeScales(rows, unit, out + done);
    }
  }
  for (size_t r = 0; r < kNeonRows; ++r) {
    for (size_t i = done; i < count; ++i) {
      const uint64_t flat = tile.row[r] * weights.cols + (first + i) * piece_cols;
      uint16_t bits;
      __builtin_memcpy(&bits, weights.scales + flat / weights.group_size * 2, sizeof(bits));
      const float16x4_t half = vreinterpret_f16_u16(vdup_n_u16(bits));
      out[i][r] = vgetq_lane_f32(vcvt_f32_f16(half), 0) * unit;
    }
  }
}

void DecodeCodesNeon(const PlainWeights& weights, const NeonTile& tile, size_t col, size_t count,
                     int8_t (*out)[kNeonStretchCols]) {
  if (weights.format == WeightFormat::kSmoeQ4) return DecodeRows<Q4>(tile, col, count, out);
  DecodeRows<Q2>(tile, col, count, out);
}

size_t NeonPieceCols(const PlainWeights& weights) {
  if (weights.cols == 0 || weights.cols % kActivationBlock != 0) return 0;
  const size_t group = weights.group_size;
  if (group == 8 || group == 16 || group == 32) return group;
  return group % kActivationBlock == 0 ? kActivationBlock : 0;
}

void MatMulInt8NeonDot(const tensor::WeightView& view, const QuantisedRows& x,
                       const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (weights.format == WeightFormat::kNvfp4) {
    if (weights.rows < kNeonNvfp4Rows) return MatMulInt8Scalar(view, x, y);
    return MatMulInt8Nvfp4NeonDot(weights, x, y);
  }
  if (weights.format == WeightFormat::kInt8) return MatMulInt8TilesNeonDot(weights, x, y);
  const size_t piece_cols = NeonPieceCols(weights);
  if (piece_cols == 0) return MatMulInt8Scalar(view, x, y);
  const bool is_q4 = weights.format == WeightFormat::kSmoeQ4;
  const size_t bytes = piece_cols / (is_q4 ? 2 : 4);
  if (x.token_count > kFew || bytes < kBytes / 2) return MultiplyMany(weights, x, y);
  if (is_q4 && bytes == 2 * kBytes) return MultiplyFew<Q4, 4>(weights, x, y);
  if (is_q4 && bytes == kBytes) return MultiplyFew<Q4, 2>(weights, x, y);
  if (is_q4) return MultiplyFew<Q4, 1>(weights, x, y);
  if (bytes == kBytes) return MultiplyFew<Q2, 2>(weights, x, y);
  MultiplyFew<Q2, 1>(weights, x, y);
}

}  // namespace smoe::kernels
#endif
