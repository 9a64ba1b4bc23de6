// Compiled with -mavx2 -mfma -mf16c like kernels_avx2_*.cc, and nothing else is: no inline
// function of a shared header may be used here, or the linker may give our copy of it to the whole
// program. tests/CMakeLists.txt looks at the symbols. The bits are those of scalar.cc; comments
// there are not repeated.
#include "kernels/avx2.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif
#include <immintrin.h>

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
size_t Min(size_t a, size_t b) { return a < b ? a : b; }

float ScaleAt(const uint8_t* scales, uint64_t group) {
  uint16_t bits;
  __builtin_memcpy(&bits, scales + group * 2, sizeof(bits));
  return _cvtsh_ss(bits);
}

// ---- Sums in f32 ----

// The tree over partial sums 0..7 and 8..15.
float SumLanes(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
float SumLanes(const float* lanes) {
  return SumLanes(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
}

constexpr size_t kTileRows = 4;  // eight accumulators hide the latency of the multiply-add

// What is left behind the last whole kSumLanes columns.
void AddTail(const float* const* rows, const float* x, size_t count, float* lanes) {
  const size_t begin = count - count % kSumLanes;
  for (size_t row = 0; row < kTileRows; ++row) {
    float* row_lanes = lanes + row * kSumLanes;
    for (size_t i = begin; i < count; ++i) {
      row_lanes[i - begin] = __builtin_fmaf(rows[row][i], x[i], row_lanes[i - begin]);
    }
  }
}

// lanes [kTileRows][kSumLanes] += rows * x. Stretches start at multiples of kSumLanes.
void AddProducts(const float* const* rows, const float* x, size_t count, float* lanes) {
  __m256 low[kTileRows];
  __m256 high[kTileRows];
  for (size_t row = 0; row < kTileRows; ++row) {
    low[row] = _mm256_loadu_ps(lanes + row * kSumLanes);
    high[row] = _mm256_loadu_ps(lanes + row * kSumLanes + 8);
  }
  for (size_t i = 0; i + kSumLanes <= count; i += kSumLanes) {
    const __m256 x_low = _mm256_loadu_ps(x + i);
    const __m256 x_high = _mm256_loadu_ps(x + i + 8);
    for (size_t row = 0; row < kTileRows; ++row) {
      low[row] = _mm256_fmadd_ps(_mm256_loadu_ps(rows[row] + i), x_low, low[row]);
      high[row] = _mm256_fmadd_ps(_mm256_loadu_ps(rows[row] + i + 8), x_high, high[row]);
    }
  }
  for (size_t row = 0; row < kTileRows; ++row) {
    _mm256_storeu_ps(lanes + row * kSumLanes, low[row]);
    _mm256_storeu_ps(lanes + row * kSumLanes + 8, high[row]);
  }
  AddTail(rows, x, count, lanes);
}

// The same for kTileTokens tokens: seven loads for twelve multiply-adds instead of ten for eight.
// Registers suffice for one half of the lanes at a time.
constexpr size_t kTileTokens = 3;

void AddProductsHalf(const float* const* rows, const float* const* x, size_t count, size_t half,
                     float* const* lanes) {
  __m256 sums[kTileTokens][kTileRows];
  for (size_t t = 0; t < kTileTokens; ++t) {
    for (size_t row = 0; row < kTileRows; ++row) {
      sums[t][row] = _mm256_loadu_ps(lanes[t] + row * kSumLanes + half);
    }
  }
  for (size_t i = half; i + kSumLanes <= count + half; i += kSumLanes) {
    __m256 in[kTileTokens];
    for (size_t t = 0; t < kTileTokens; ++t) in[t] = _mm256_loadu_ps(x[t] + i);
    for (size_t row = 0; row < kTileRows; ++row) {
      const __m256 w = _mm256_loadu_ps(rows[row] + i);
      for (size_t t = 0; t < kTileTokens; ++t) {
        sums[t][row] = _mm256_fmadd_ps(w, in[t], sums[t][row]);
      }
    }
  }
  for (size_t t = 0; t < kTileTokens; ++t) {
    for (size_t row = 0; row < kTileRows; ++row) {
      _mm256_storeu_ps(lanes[t] + row * kSumLanes + half, sums[t][row]);
    }
  }
}

// ---- Weights to f32 ----

// Eight codes at a time; the stretch starts at a byte, and groups are multiples of eight.
void DecodeQ4(const PlainWeights& weights, uint64_t first, size_t count, float* out) {
  const __m256 levels_low = _mm256_loadu_ps(kQ4Levels);
  const __m256 levels_high = _mm256_loadu_ps(kQ4Levels + 8);
  const __m256i to_bottom = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const __m256i to_top = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  for (size_t i = 0; i < count;) {
    const uint64_t group = (first + i) / weights.group_size;
    const size_t end = Min(count, (group + 1) * weights.group_size - first);
    const __m256 scale = _mm256_set1_ps(ScaleAt(weights.scales, group));
    for (; i < end; i += 8) {
      int word;
      __builtin_memcpy(&word, weights.data + (first + i) / 2, sizeof(word));
      const __m256i codes = _mm256_set1_epi32(word);
      // The permutation looks at three bits; the fourth, moved to the sign, chooses the half.
      const __m256i index = _mm256_srlv_epi32(codes, to_bottom);
      const __m256 half = _mm256_castsi256_ps(_mm256_sllv_epi32(codes, to_top));
      const __m256 level = _mm256_blendv_ps(_mm256_permutevar8x32_ps(levels_low, index),
                                            _mm256_permutevar8x32_ps(levels_high, index), half);
      _mm256_storeu_ps(out + i, _mm256_mul_ps(level, scale));
    }
  }
}

void DecodeQ2(const PlainWeights& weights, uint64_t first, size_t count, float* out) {
  // Four levels twice: the permutation looks at three bits, the third is the next code's.
  const __m128 four = _mm_loadu_ps(kQ2Levels);
  const __m256 levels = _mm256_set_m128(four, four);
  const __m256i to_bottom = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  for (size_t i = 0; i < count;) {
    const uint64_t group = (first + i) / weights.group_size;
    const size_t end = Min(count, (group + 1) * weights.group_size - first);
    const __m256 scale = _mm256_set1_ps(ScaleAt(weights.scales, group));
    for (; i < end; i += 8) {
      uint16_t word;
      __builtin_memcpy(&word, weights.data + (first + i) / 4, sizeof(word));
      const __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(word), to_bottom);
      _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_permutevar8x32_ps(levels, index), scale));
    }
  }
}

// The next tile of rows, one line of memory per 32 elements of two bytes: the processor guesses
// only to the end of a row's stretch. A prefetch cannot fault, so the last tile needs no care.
void PrefetchNextTile(const PlainWeights& weights, uint64_t element) {
  const auto at =
      reinterpret_cast<uintptr_t>(weights.data) + (element + kTileRows * weights.cols) * 2;
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}

void DecodeWeights(const PlainWeights& weights, uint64_t first, size_t count, float* out) {
  size_t fast = count & ~size_t{7};
  switch (weights.format) {
    case WeightFormat::kF32:
      __builtin_memcpy(out, weights.data + first * 4, count * 4);
      return;
    case WeightFormat::kF16:
      for (size_t i = 0; i < fast; i += 8) {
        if (i % 32 == 0) PrefetchNextTile(weights, first + i);
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(Load128(weights.data + (first + i) * 2)));
      }
      break;
    case WeightFormat::kBF16:
      for (size_t i = 0; i < fast; i += 8) {
        if (i % 32 == 0) PrefetchNextTile(weights, first + i);
        const __m256i wide = _mm256_cvtepu16_epi32(Load128(weights.data + (first + i) * 2));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
      }
      break;
    case WeightFormat::kSmoeQ4:
    case WeightFormat::kSmoeQ2:
      if (first % 8 != 0 || weights.group_size % 8 != 0) fast = 0;
      if (weights.format == WeightFormat::kSmoeQ4) DecodeQ4(weights, first, fast, out);
      if (weights.format == WeightFormat::kSmoeQ2) DecodeQ2(weights, first, fast, out);
      break;
    case WeightFormat::kNvfp4:
      fast = 0;  // only matrices of very few rows get here
      break;
    case WeightFormat::kInt8:
      fast = DecodeTilesAvx2(weights, first / weights.cols, first % weights.cols, count, out);
      break;
  }
  if (fast < count) DecodeWeightsScalar(weights, first + fast, count - fast, out + fast);
}

constexpr size_t kTokenBatch = 16;  // tokens that use decoded weights before they are overwritten
constexpr size_t kLanes = kTileRows * kSumLanes;

// One stretch of columns for `batch` tokens from `token` on.
void AddBatch(const float* const* rows, const FloatRows& x, size_t token, size_t batch, size_t col,
              size_t count, float (*lanes)[kLanes]) {
  size_t i = 0;
  for (; i + kTileTokens <= batch; i += kTileTokens) {
    const float* in[kTileTokens];
    float* sums[kTileTokens];
    for (size_t t = 0; t < kTileTokens; ++t) {
      in[t] = x.data + (token + i + t) * x.stride + col;
      sums[t] = lanes[i + t];
    }
    AddProductsHalf(rows, in, count, 0, sums);
    AddProductsHalf(rows, in, count, 8, sums);
    for (size_t t = 0; t < kTileTokens; ++t) AddTail(rows, in[t], count, sums[t]);
  }
  for (; i < batch; ++i) {
    AddProducts(rows, x.data + (token + i) * x.stride + col, count, lanes[i]);
  }
}

}  // namespace

void MatMulF32Avx2(const tensor::WeightView& view, const FloatRows& x, const MatMulRange& y) {
  constexpr size_t kStretch = 512;  // weights decoded at once: 8 KiB for four rows
  const PlainWeights weights = Plain(view);
  if (weights.format == WeightFormat::kNvfp4 && weights.rows >= kNvfp4FloatRowsMin) {
    return MatMulF32Nvfp4Avx2(weights, x, y);
  }
  float decoded[kTileRows][kStretch];
  const float* const rows[kTileRows] = {decoded[0], decoded[1], decoded[2], decoded[3]};
  float lanes[kTokenBatch][kLanes];
  for (size_t row = y.row_begin; row < y.row_end; row += kTileRows) {
    const size_t row_count = Min(kTileRows, y.row_end - row);
    for (size_t token = 0; token < x.token_count; token += kTokenBatch) {
      const size_t batch = Min(kTokenBatch, x.token_count - token);
      __builtin_memset(lanes, 0, sizeof(lanes[0]) * batch);
      for (size_t col = 0; col < weights.cols; col += kStretch) {
        const size_t count = Min(kStretch, weights.cols - col);
        for (size_t i = 0; i < kTileRows; ++i) {
          // A short tile repeats its last row, to be read inside the matrix.
          const size_t source = row + Min(i, row_count - 1);
          DecodeWeights(weights, source * weights.cols + col, count, decoded[i]);
        }
        AddBatch(rows, x, token, batch, col, count, lanes);
      }
      for (size_t i = 0; i < batch; ++i) {
        float* out = y.out + (token + i) * y.out_stride + row;
        for (size_t r = 0; r < row_count; ++r) out[r] = SumLanes(lanes[i] + r * kSumLanes);
      }
    }
  }
}

namespace {

// ---- Rows of floats ----

__m256 Exp(__m256 x) {
  // Of a NaN and a number these two return the second operand: the NaN.
  x = _mm256_min_ps(_mm256_set1_ps(kExpMax), x);
  x = _mm256_max_ps(_mm256_set1_ps(kExpMin), x);
  const __m256 round = _mm256_set1_ps(kExpRound);
  const __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(kExpLog2E), round), round);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kExpLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kExpLn2Low), r);
  __m256 power = _mm256_set1_ps(kExpTerms[0]);
  for (int term = 1; term < 8; ++term) {
    power = _mm256_fmadd_ps(power, r, _mm256_set1_ps(kExpTerms[term]));
  }
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  power = _mm256_mul_ps(power, _mm256_castsi256_ps(first));
  return _mm256_mul_ps(power, _mm256_castsi256_ps(second));
}

__m256 Negative(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

// 1 + exp(-x)
__m256 SigmoidDivisor(__m256 x) { return _mm256_add_ps(_mm256_set1_ps(1), Exp(Negative(x))); }

// All lanes for a whole register, the first `count` for what is left of a row.
__m256i FirstLanes(size_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(Min(count, 8))),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace

void RmsNormAvx2(const float* x, const float* weight, float eps, size_t count, float* out) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    const __m256 x_low = _mm256_loadu_ps(x + i);
    const __m256 x_high = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(x_low, x_low, low);
    high = _mm256_fmadd_ps(x_high, x_high, high);
  }
  float lanes[kSumLanes];
  _mm256_storeu_ps(lanes, low);
  _mm256_storeu_ps(lanes + 8, high);
  for (size_t lane = 0; i + lane < count; ++lane) {
    lanes[lane] = __builtin_fmaf(x[i + lane], x[i + lane], lanes[lane]);
  }
  const float mean = SumLanes(lanes) / static_cast<float>(count);
  const __m128 root = _mm_sqrt_ss(_mm_set_ss(mean + eps));
  const __m256 factor = _mm256_set1_ps(1 / _mm_cvtss_f32(root));
  for (i = 0; i < count; i += 8) {
    const __m256i mask = FirstLanes(count - i);
    const __m256 scaled = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), factor);
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(scaled, _mm256_maskload_ps(weight + i, mask)));
  }
}

void SiluMulAvx2(float* gate, const float* up, size_t count) {
  for (size_t i = 0; i < count; i += 8) {
    const __m256i mask = FirstLanes(count - i);
    const __m256 value = _mm256_maskload_ps(gate + i, mask);
    const __m256 silu = _mm256_div_ps(value, SigmoidDivisor(value));
    _mm256_maskstore_ps(gate + i, mask, _mm256_mul_ps(silu, _mm256_maskload_ps(up + i, mask)));
  }
}

void SigmoidAvx2(const float* x, size_t count, float* out) {
  for (size_t i = 0; i < count; i += 8) {
    const __m256i mask = FirstLanes(count - i);
    const __m256 value = _mm256_maskload_ps(x + i, mask);
    _mm256_maskstore_ps(out + i, mask, _mm256_div_ps(_mm256_set1_ps(1), SigmoidDivisor(value)));
  }
}

void AddScaledAvx2(const float* x, float weight, size_t count, float* out) {
  const __m256 factor = _mm256_set1_ps(weight);
  for (size_t i = 0; i < count; i += 8) {
    const __m256i mask = FirstLanes(count - i);
    const __m256 sum =
        _mm256_fmadd_ps(factor, _mm256_maskload_ps(x + i, mask), _mm256_maskload_ps(out + i, mask));
    _mm256_maskstore_ps(out + i, mask, sum);
  }
}

namespace {

constexpr float kInfinity = __builtin_inff();

// The lanes of `x` that are there, -infinity in the others: weight 0, never the maximum.
__m256 LoadOrNothing(const float* x, __m256i mask) {
  return _mm256_blendv_ps(_mm256_set1_ps(-kInfinity), _mm256_maskload_ps(x, mask),
                          _mm256_castsi256_ps(mask));
}

float MaxOf(const float* x, size_t count, float max) {
  __m256 lanes = _mm256_set1_ps(max);
  for (size_t i = 0; i < count; i += 8) {
    // Of a NaN and a number the second operand is returned: the number.
    lanes = _mm256_max_ps(LoadOrNothing(x + i, FirstLanes(count - i)), lanes);
  }
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

}  // namespace

void SoftmaxAvx2(float* x, size_t count) {
  const __m256 max = _mm256_set1_ps(MaxOf(x, count, -kInfinity));
  __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (size_t i = 0; i < count; i += 8) {
    const __m256i mask = FirstLanes(count - i);
    const __m256 power = Exp(_mm256_sub_ps(LoadOrNothing(x + i, mask), max));
    _mm256_maskstore_ps(x + i, mask, power);
    sums[i / 8 % 2] = _mm256_add_ps(sums[i / 8 % 2], power);
  }
  const __m256 sum = _mm256_set1_ps(SumLanes(sums[0], sums[1]));
  for (size_t i = 0; i < count; i += 8) {
    const __m256i mask = FirstLanes(count - i);
    _mm256_maskstore_ps(x + i, mask, _mm256_div_ps(_mm256_maskload_ps(x + i, mask), sum));
  }
}

const KernelTable kAvx2Kernels = {.name = "avx2",
                                  .runs_here = CpuRunsAvx2,
                                  .matmul_f32 = MatMulF32Avx2,
                                  .matmul_int8 = MatMulInt8Avx2,
                                  .quantise_row = QuantiseRowAvx2,
                                  .rms_norm = RmsNormAvx2,
                                  .silu_mul = SiluMulAvx2,
                                  .softmax = SoftmaxAvx2,
                                  .sigmoid = SigmoidAvx2,
                                  .add_scaled = AddScaledAvx2,
                                  .to_f16 = ToF16Avx2,
                                  .attend = AttendAvx2,
                                  .merge_attention = MergeAttentionAvx2};

}  // namespace smoe::kernels
#endif
