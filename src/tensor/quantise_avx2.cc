// The quantiser's loops for AVX2. Same bits as quantise_scalar.cc, whose order of operations it
// keeps; compiled with -mavx2 -mf16c -mfma and therefore free of shared inline functions.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "tensor/quantise_kernels.h"

namespace smoe::tensor {
namespace {

constexpr uint32_t kCountMax = 128;

float AddLanes(__m256 lanes) {
  __m256 sum = _mm256_hadd_ps(lanes, lanes);  // l0+l1 l2+l3 . . | l4+l5 l6+l7 . .
  sum = _mm256_hadd_ps(sum, sum);             // (l0+l1)+(l2+l3) | (l4+l5)+(l6+l7)
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)));
}

float Largest(const float* weights, uint32_t count) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  __m256i largest = _mm256_setzero_si256();
  for (uint32_t i = 0; i < count; i += 8) {
    const __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(weights + i));
    largest = _mm256_max_epu32(largest, _mm256_castps_si256(magnitude));
  }
  __m128i half =
      _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

__m256 ReferenceCode(__m256 weight, __m256 scale, __m256 zero, __m256 code_max) {
  const __m256 code =
      _mm256_round_ps(_mm256_add_ps(_mm256_mul_ps(_mm256_div_ps(weight, scale), zero), zero),
                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm256_min_ps(_mm256_max_ps(code, _mm256_setzero_ps()), code_max);
}

float ReferenceError(const float* weights, uint32_t count, const CodeKind& kind, float scale) {
  const __m256 zero = _mm256_set1_ps(kind.zero);
  const __m256 inverse = _mm256_set1_ps(kind.zero_inverse);
  const __m256 code_max = _mm256_set1_ps(kind.code_max);
  const __m256 scales = _mm256_set1_ps(scale);
  __m256 lanes = _mm256_setzero_ps();
  for (uint32_t i = 0; i < count; i += 8) {
    const __m256 weight = _mm256_loadu_ps(weights + i);
    const __m256 code = ReferenceCode(weight, scales, zero, code_max);
    const __m256 distance = _mm256_sub_ps(
        weight, _mm256_mul_ps(_mm256_mul_ps(_mm256_sub_ps(code, zero), inverse), scales));
    lanes = _mm256_add_ps(lanes, _mm256_mul_ps(distance, distance));
  }
  return AddLanes(lanes);
}

// Magnitudes as 16-bit integers, the largest one 32767. The order inside a group is not kept.
void ToIntegers(const float* weights, uint32_t vectors, float largest, __m256i* integers) {
  const __m256 to_integer = _mm256_set1_ps(32767.0F / largest);
  for (uint32_t v = 0; v < vectors; ++v) {
    const __m256i low =
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(weights + 16 * v), to_integer));
    const __m256i high =
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(weights + 16 * v + 8), to_integer));
    integers[v] = _mm256_abs_epi16(_mm256_packs_epi32(low, high));
  }
}

// Eight sums of eight lanes each, as eight lanes.
__m256i AddIntegers8(const __m256i* s) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}

// Q2: a 32nd of the squared distance in units of 2^-11 step, in 8 lanes. The two steps of a
// magnitude have their middles at 0.5 and 1.5.
__m256i ScreenError(const __m256i* integers, uint32_t vectors, int16_t multiplier) {
  const __m256i factor = _mm256_set1_epi16(multiplier);
  const __m256i middle = _mm256_set1_epi16(1024);
  __m256i sum = _mm256_setzero_si256();
  for (uint32_t v = 0; v < vectors; ++v) {
    const __m256i scaled = _mm256_mulhrs_epi16(integers[v], factor);
    const __m256i start = _mm256_and_si256(
        _mm256_min_epi16(scaled, _mm256_set1_epi16(2 * 2048 - 1)), _mm256_set1_epi16(-2048));
    const __m256i distance = _mm256_sub_epi16(scaled, _mm256_or_si256(start, middle));
    sum = _mm256_add_epi32(sum, _mm256_srli_epi32(_mm256_madd_epi16(distance, distance), 5));
  }
  return sum;
}

// The ratios that can have the least error, as a mask. An integer distance is within 2 units of
// the true one (weight, multiplier and product rounded, each by at most half a unit), so a sum E
// of squares is within 4 sqrt(count E) + 4 count (Cauchy-Schwarz), and the shift loses at most
// 16 count. A ratio whose lower bound is above another's upper bound cannot win.
uint64_t ScreenRatios(const float* weights, uint32_t count, float largest,
                      const ReferenceTable& table) {
  __m256i integers[kCountMax / 16];
  const uint32_t vectors = count / 16;
  ToIntegers(weights, vectors, largest, integers);
  alignas(32) float lowest[kReferenceRatioCount];
  __m256 upper_min = _mm256_set1_ps(__builtin_inff());
  const __m256 counts = _mm256_set1_ps(static_cast<float>(count));
  for (int first = 0; first < kReferenceRatioCount; first += 8) {
    __m256i sums[8];
    for (int r = 0; r < 8; ++r) {
      sums[r] = ScreenError(integers, vectors, table.multiplier[first + r]);
    }
    const __m256 error =
        _mm256_mul_ps(_mm256_cvtepi32_ps(AddIntegers8(sums)), _mm256_set1_ps(32.0F));
    const __m256 bound = _mm256_add_ps(
        _mm256_mul_ps(_mm256_sqrt_ps(_mm256_mul_ps(error, counts)), _mm256_set1_ps(4.01F)),
        _mm256_mul_ps(counts, _mm256_set1_ps(24.0F)));
    const __m256 weight = _mm256_loadu_ps(table.ratio_squared + first);
    _mm256_store_ps(lowest + first, _mm256_mul_ps(weight, _mm256_sub_ps(error, bound)));
    upper_min = _mm256_min_ps(upper_min, _mm256_mul_ps(weight, _mm256_add_ps(error, bound)));
  }
  __m128 half = _mm_min_ps(_mm256_castps256_ps128(upper_min), _mm256_extractf128_ps(upper_min, 1));
  half = _mm_min_ps(half, _mm_movehl_ps(half, half));
  const __m256 limit = _mm256_broadcastss_ps(_mm_min_ss(half, _mm_movehdup_ps(half)));
  uint64_t mask = 0;
  for (int first = 0; first < kReferenceRatioCount; first += 8) {
    const __m256 may_win = _mm256_cmp_ps(_mm256_load_ps(lowest + first), limit, _CMP_LE_OQ);
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(may_win))) << first;
  }
  return mask;
}

float ReferenceSearch(const float* weights, uint32_t count, const CodeKind& kind, float largest,
                      const ReferenceTable& table) {
  // Below this the integers' scale or a candidate would leave the normal numbers.
  const bool can_screen = kind.bits == 2 && largest > 0x1p-100F;
  uint64_t mask = can_screen ? ScreenRatios(weights, count, largest, table) : ~uint64_t{0};
  float best_error = __builtin_inff();
  float best_scale = largest;
  for (; mask != 0; mask &= mask - 1) {
    const float scale = largest * table.ratio[__builtin_ctzll(mask)];
    if (!(scale > 0)) continue;
    const float error = ReferenceError(weights, count, kind, scale);
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
    }
  }
  return best_scale;
}

void StoreCodes(__m256 codes, uint8_t* out) {
  const __m256i wide = _mm256_cvtps_epi32(codes);
  const __m128i half =
      _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storeu_si64(out, _mm_packus_epi16(half, half));
}

void ReferenceCodes(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                    uint8_t* codes) {
  const __m256 zero = _mm256_set1_ps(kind.zero);
  const __m256 code_max = _mm256_set1_ps(kind.code_max);
  const __m256 scales = _mm256_set1_ps(scale);
  for (uint32_t i = 0; i < count; i += 8) {
    StoreCodes(ReferenceCode(_mm256_loadu_ps(weights + i), scales, zero, code_max), codes + i);
  }
}

// The start of the step that a scaled magnitude falls into, at most the eighth's. 11 fractional
// bits.
__m256i StepStart(__m256i scaled) {
  return _mm256_and_si256(_mm256_min_epi16(scaled, _mm256_set1_epi16(8 * 2048 - 1)),
                          _mm256_set1_epi16(-2048));
}

// The sum over kVectors x 16 magnitudes of the squared distance to the middle of the step, in 8
// lanes. The trip count is a constant so that a group stays in registers.
template <uint32_t kVectors>
__m256i SearchError(const __m256i* integers, int16_t multiplier) {
  const __m256i factor = _mm256_set1_epi16(multiplier);
  const __m256i middle = _mm256_set1_epi16(1024);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (uint32_t v = 0; v < kVectors; ++v) {
    const __m256i scaled = _mm256_mulhrs_epi16(integers[v], factor);
    const __m256i distance = _mm256_sub_epi16(scaled, _mm256_or_si256(StepStart(scaled), middle));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(distance, distance));
  }
  return sum;
}

int32_t AddIntegers(__m256i lanes) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  half = _mm_hadd_epi32(half, half);
  return _mm_cvtsi128_si32(_mm_hadd_epi32(half, half));
}

// A group's best ratio so far, and its error.
struct Choice {
  int ratio;
  float error;
};

template <uint32_t kVectors>
Choice CoarseChoice(const __m256i* integers, const SearchTable& table) {
  __m256i sums[kSearchLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kSearchCoarseCount; ++i) {
    sums[i] = SearchError<kVectors>(integers, table.multiplier[2 * i + 1]);
  }
  // The first of equals wins: the last one again changes nothing.
  for (int i = kSearchCoarseCount; i < kSearchLanes; ++i) sums[i] = sums[kSearchCoarseCount - 1];
  const __m256 errors =
      _mm256_mul_ps(_mm256_cvtepi32_ps(AddIntegers8(sums)), _mm256_loadu_ps(table.coarse_squared));
  __m256 least = _mm256_min_ps(errors, _mm256_permute2f128_ps(errors, errors, 1));
  least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0x4E));
  least = _mm256_min_ps(least, _mm256_shuffle_ps(least, least, 0xB1));
  const int equal = _mm256_movemask_ps(_mm256_cmp_ps(errors, least, _CMP_EQ_OQ));
  return {2 * __builtin_ctz(static_cast<uint32_t>(equal)) + 1, _mm256_cvtss_f32(least)};
}

template <uint32_t kVectors>
Choice FineChoice(const __m256i* integers, const SearchTable& table, Choice middle) {
  Choice best = middle;
  for (int ratio = middle.ratio - 1; ratio <= middle.ratio + 1; ratio += 2) {
    const __m256i sum = SearchError<kVectors>(integers, table.multiplier[ratio]);
    const float error = static_cast<float>(AddIntegers(sum)) * table.ratio_squared[ratio];
    const bool is_better = error < best.error;
    best.error = is_better ? error : best.error;
    best.ratio = is_better ? ratio : best.ratio;
  }
  return best;
}

// The least-squares scale for the codes of one ratio.
template <uint32_t kVectors>
float FitIntegers(const __m256i* integers, int16_t multiplier, float largest) {
  const __m256i factor = _mm256_set1_epi16(multiplier);
  const __m256i one = _mm256_set1_epi16(1);
  __m256i products = _mm256_setzero_si256();
  __m256i squares = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (uint32_t v = 0; v < kVectors; ++v) {
    const __m256i start = StepStart(_mm256_mulhrs_epi16(integers[v], factor));
    const __m256i level = _mm256_add_epi16(_mm256_srai_epi16(start, 10), one);
    products = _mm256_add_epi32(products, _mm256_madd_epi16(integers[v], level));
    squares = _mm256_add_epi32(squares, _mm256_madd_epi16(level, level));
  }
  return static_cast<float>(AddIntegers(products)) / static_cast<float>(AddIntegers(squares)) *
         15.0F * (largest / 32767.0F);
}

template <uint32_t kVectors>
void SearchGroups(const float* weights, uint32_t group_count, const float* largest,
                  const SearchTable& table, float* scales) {
  __m256i integers[kSearchGroups][kVectors];
  Choice choices[kSearchGroups];
  for (uint32_t g = 0; g < group_count; ++g) {
    ToIntegers(weights + uint64_t{16} * kVectors * g, kVectors, largest[g], integers[g]);
    choices[g] = CoarseChoice<kVectors>(integers[g], table);
  }
  for (uint32_t g = 0; g < group_count; ++g) {
    choices[g] = FineChoice<kVectors>(integers[g], table, choices[g]);
  }
  for (uint32_t g = 0; g < group_count; ++g) {
    scales[g] = FitIntegers<kVectors>(integers[g], table.multiplier[choices[g].ratio], largest[g]);
  }
}

void SearchQ4(const float* weights, uint32_t count, uint32_t group_count, const float* largest,
              const SearchTable& table, float* scales) {
  switch (count / 16) {
    case 1:
      return SearchGroups<1>(weights, group_count, largest, table, scales);
    case 2:
      return SearchGroups<2>(weights, group_count, largest, table, scales);
    case 4:
      return SearchGroups<4>(weights, group_count, largest, table, scales);
    default:
      return SearchGroups<8>(weights, group_count, largest, table, scales);
  }
}

__m256 NearestLevel(__m256 weight, __m256 to_steps, __m256 zero) {
  const __m256 step = _mm256_floor_ps(_mm256_mul_ps(weight, to_steps));
  const __m256 level = _mm256_add_ps(step, _mm256_set1_ps(0.5F));
  return _mm256_min_ps(_mm256_max_ps(level, _mm256_xor_ps(zero, _mm256_set1_ps(-0.0F))), zero);
}

float Fit(const float* weights, uint32_t count, const CodeKind& kind, float scale) {
  const __m256 to_steps = _mm256_set1_ps(kind.zero / scale);
  const __m256 zero = _mm256_set1_ps(kind.zero);
  __m256 products = _mm256_setzero_ps();
  __m256 squares = _mm256_setzero_ps();
  for (uint32_t i = 0; i < count; i += 8) {
    const __m256 weight = _mm256_loadu_ps(weights + i);
    const __m256 level = NearestLevel(weight, to_steps, zero);
    products = _mm256_add_ps(products, _mm256_mul_ps(weight, level));
    squares = _mm256_add_ps(squares, _mm256_mul_ps(level, level));
  }
  return AddLanes(products) / AddLanes(squares) * kind.zero;
}

__m256 SquaredDistance(__m256 weight, __m256 level, __m256 step) {
  const __m256 distance = _mm256_sub_ps(weight, _mm256_mul_ps(level, step));
  return _mm256_mul_ps(distance, distance);
}

// Sixteen codes, as floats, to bytes.
void StoreCodes16(__m256 first, __m256 second, uint8_t* out) {
  const __m256i mixed = _mm256_packs_epi32(_mm256_cvtps_epi32(first), _mm256_cvtps_epi32(second));
  const __m256i words = _mm256_permute4x64_epi64(mixed, 0xD8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  __builtin_memcpy(out, &bytes, sizeof(bytes));
}

NearestErrors Nearest(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                      float other_scale, uint8_t* codes) {
  const __m256 zero = _mm256_set1_ps(kind.zero);
  const __m256 to_steps = _mm256_set1_ps(kind.zero / scale);
  const __m256 step = _mm256_set1_ps(kind.zero_inverse * scale);
  const __m256 to_other_steps = _mm256_set1_ps(kind.zero / other_scale);
  const __m256 other_step = _mm256_set1_ps(kind.zero_inverse * other_scale);
  __m256 lanes = _mm256_setzero_ps();
  __m256 other_lanes = _mm256_setzero_ps();
  const auto add_other = [&](__m256 weight) {
    const __m256 level = NearestLevel(weight, to_other_steps, zero);
    other_lanes = _mm256_add_ps(other_lanes, SquaredDistance(weight, level, other_step));
  };
  for (uint32_t i = 0; i < count; i += 16) {
    const __m256 first = _mm256_loadu_ps(weights + i);
    const __m256 second = _mm256_loadu_ps(weights + i + 8);
    const __m256 first_level = NearestLevel(first, to_steps, zero);
    const __m256 second_level = NearestLevel(second, to_steps, zero);
    lanes = _mm256_add_ps(lanes, SquaredDistance(first, first_level, step));
    lanes = _mm256_add_ps(lanes, SquaredDistance(second, second_level, step));
    add_other(first);
    add_other(second);
    StoreCodes16(_mm256_add_ps(first_level, zero), _mm256_add_ps(second_level, zero), codes + i);
  }
  return {AddLanes(lanes), AddLanes(other_lanes)};
}

// 16 codes to 8 bytes (Q4) or 4 bytes (Q2): neighbours are merged by multiply-add.
void Pack(const uint8_t* codes, uint32_t count, uint32_t bits, std::byte* packed) {
  const __m128i pairs = _mm_set1_epi16(bits == 4 ? 0x1001 : 0x0401);
  const __m128i quads = _mm_set1_epi32(0x00100001);
  for (uint32_t i = 0; i < count; i += 16) {
    __m128i bytes;
    __builtin_memcpy(&bytes, codes + i, sizeof(bytes));
    const __m128i merged = _mm_maddubs_epi16(bytes, pairs);
    if (bits == 4) {
      _mm_storeu_si64(packed + i / 2, _mm_packus_epi16(merged, merged));
      continue;
    }
    const __m128i words = _mm_packus_epi32(_mm_madd_epi16(merged, quads), _mm_setzero_si128());
    const int out = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    __builtin_memcpy(packed + i / 4, &out, sizeof(out));
  }
}

}  // namespace

const QuantiseKernels kQuantiseAvx2 = {
    "avx2", 16, Largest, ReferenceSearch, ReferenceCodes, SearchQ4, Fit, Nearest, Pack,
};

}  // namespace smoe::tensor
#endif
