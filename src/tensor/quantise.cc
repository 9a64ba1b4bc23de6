#include "tensor/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tensor/dtype.h"
#include "tensor/quantise_kernels.h"

namespace smoe::tensor {
namespace {

constexpr float kF16Max = 65504.0F;
// Below this a scale in f16 has fewer than 7 bits: all of the few that could do are tried.
constexpr float kTinyLargest = 0x1p-17F;
constexpr uint16_t kZeroScaleQ2 = 0x2E66;  // 0.1, the original's for an all-zero group
constexpr uint16_t kZeroScaleQ4 = 0x3C00;  // 1.0
// Where distances are not tiny beside the weights (their mean square is above 2^-14 of the largest
// weight's), a float sum of 128 squares is good to 2^-17: a gain above this is one in any
// arithmetic.
constexpr float kClearGain = 1.0F - 0x1p-16F;
constexpr float kClearError = 0x1p-14F;

constexpr CodeKind kQ2{2, 1.5F, static_cast<float>(1 / 1.5), 3.0F};
constexpr CodeKind kQ4{4, 7.5F, static_cast<float>(1 / 7.5), 15.0F};
const CodeKind& KindOf(SmoeBits bits) { return bits == SmoeBits::kQ2 ? kQ2 : kQ4; }

const QuantiseKernels& BestKernels() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("SMOE_ISA");
  const bool forced_scalar = wanted != nullptr && std::string_view(wanted) == "scalar";
  if (!forced_scalar && __builtin_cpu_supports("avx2") != 0) return kQuantiseAvx2;
#endif
  return kQuantiseScalar;
}

struct Tables {
  ReferenceTable reference;
  SearchTable search;
  std::array<float, 4> levels_q2;
  std::array<float, 16> levels_q4;
};

Tables MakeTables() {
  Tables tables;
  const double step = (1.0 - 0.1) / (kReferenceRatioCount - 1);
  for (int i = 0; i < kReferenceRatioCount; ++i) {
    const double exact = i + 1 == kReferenceRatioCount ? 1.0 : i * step + 0.1;
    const float ratio = static_cast<float>(exact);
    tables.reference.ratio[i] = ratio;
    tables.reference.ratio_squared[i] = ratio * ratio;
    tables.reference.multiplier[i] =
        static_cast<int16_t>(std::lround(1.5 * 2048 / static_cast<double>(ratio)));
  }
  for (int i = 0; i < kSearchCount; ++i) {
    const double half_step = (kSearchFinal - kSearchFirst) / (kSearchCoarseCount - 1) / 2;
    const double ratio = kSearchFirst + (i - 1) * half_step;
    tables.search.multiplier[i] = static_cast<int16_t>(std::lround(7.5 * 2048 / ratio));
    tables.search.ratio_squared[i] = static_cast<float>(ratio * ratio);
    if (i % 2 == 1) tables.search.coarse_squared[i / 2] = tables.search.ratio_squared[i];
  }
  for (size_t i = kSearchCoarseCount; i < std::size(tables.search.coarse_squared); ++i) {
    tables.search.coarse_squared[i] = tables.search.coarse_squared[kSearchCoarseCount - 1];
  }
  for (size_t c = 0; c < tables.levels_q2.size(); ++c) {
    tables.levels_q2[c] = (static_cast<float>(c) - 1.5F) / 1.5F;
  }
  for (size_t c = 0; c < tables.levels_q4.size(); ++c) {
    tables.levels_q4[c] = (static_cast<float>(c) - 7.5F) / 7.5F;
  }
  return tables;
}
const Tables& TheTables() {
  static const Tables tables = MakeTables();
  return tables;
}

// One group on its way to codes. `weights` holds `count` weights and zeros up to `padded_count`.
struct Group {
  const float* weights;
  uint32_t count;
  uint32_t padded_count;
  float largest;
  float searched_q4;  // what the Q4 search says, unrounded; for an mse group that is not tiny
};

using Codes = std::array<uint8_t, kGroupSizeMax>;

double ErrorOf(const Group& group, const CodeKind& kind, const Codes& codes, float scale) {
  double error = 0;
  for (uint32_t i = 0; i < group.count; ++i) {
    const float level = (static_cast<float>(codes[i]) - kind.zero) / kind.zero;
    const double distance = double{group.weights[i]} - double{level * scale};
    error += distance * distance;
  }
  return error;
}

// The original's scale, before it is rounded to f16.
float ReferenceScale(const QuantiseKernels& kernels, const Group& group, const CodeKind& kind) {
  if (kind.bits == 4) return group.largest;
  return kernels.reference_search(group.weights, group.padded_count, kind, group.largest,
                                  TheTables().reference);
}

// The original's codes for its scale; returns the scale as it is stored.
uint16_t ReferenceCodes(const QuantiseKernels& kernels, const Group& group, const CodeKind& kind,
                        float scale, Codes& codes) {
  kernels.reference_codes(group.weights, group.count, kind, scale, codes.data());
  return F16FromF32(scale);
}

// Keeps the best of several scales, errors measured in f64 on the weights that readers will see.
class Contest {
 public:
  Contest(const Group& group, const CodeKind& kind) : group_(group), kind_(kind) {}
  void Enter(const Codes& codes, uint16_t scale) {
    const double error = ErrorOf(group_, kind_, codes, F32FromF16(scale));
    if (entered_ && !(error < error_)) return;
    entered_ = true;
    error_ = error;
    scale_ = scale;
    codes_ = codes;
  }
  // Enters a scale with its nearest codes.
  void EnterNearest(uint16_t scale) {
    if ((scale & 0x7FFFU) == 0) return;
    Codes codes{};
    const float value = F32FromF16(scale);
    kQuantiseScalar.nearest(group_.weights, group_.count, kind_, value, value, codes.data());
    Enter(codes, scale);
  }
  uint16_t Win(Codes& codes) const {
    codes = codes_;
    return scale_;
  }

 private:
  const Group& group_;
  const CodeKind& kind_;
  bool entered_ = false;
  double error_ = 0;
  uint16_t scale_ = 0;
  Codes codes_{};
};

// A scale as it is stored, and as readers see it.
struct StoredScale {
  uint16_t bits;
  float value;
};

// Rounds half to even. Here twice per group, so without a call for the normal numbers of f16.
StoredScale Stored(float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(std::min(scale, kF16Max));
  constexpr uint32_t kExponentShift = (127 - 15) << 10;
  if (scale < 0x1p-14F) {
    const uint16_t half = F16FromF32(scale);
    return {half, F32FromF16(half)};
  }
  const uint32_t rounded = (bits + 0xFFFU + (bits >> 13 & 1U)) >> 13;
  return {static_cast<uint16_t>(rounded - kExponentShift), std::bit_cast<float>(rounded << 13)};
}

// Scales where f16 is coarse: every one that could win. At most 80 of them.
uint16_t TinyGroup(const QuantiseKernels& kernels, const Group& group, const CodeKind& kind,
                   Codes& codes) {
  Contest contest(group, kind);
  const uint16_t reference =
      ReferenceCodes(kernels, group, kind, ReferenceScale(kernels, group, kind), codes);
  contest.Enter(codes, reference);
  const uint16_t lowest = F16FromF32(group.largest * (kind.bits == 2 ? 0.2F : 0.6F));
  const uint16_t highest = F16FromF32(group.largest * 1.1F);
  for (uint32_t scale = lowest; scale <= highest + 1U; ++scale) {
    contest.EnterNearest(static_cast<uint16_t>(scale));
  }
  return contest.Win(codes);
}

uint16_t MseGroup(const QuantiseKernels& kernels, const Group& group, const CodeKind& kind,
                  Codes& codes) {
  if (group.largest < kTinyLargest) return TinyGroup(kernels, group, kind, codes);
  const float original = ReferenceScale(kernels, group, kind);
  const StoredScale plain = Stored(original);  // the original's scale, with codes chosen again
  const float fitted =
      kind.bits == 4 ? group.searched_q4 : kernels.fit(group.weights, group.count, kind, original);
  const StoredScale scale = Stored(fitted);
  const auto [error, plain_error] =
      kernels.nearest(group.weights, group.count, kind, scale.value, plain.value, codes.data());
  const float largest_squared = group.largest * group.largest;
  const bool is_clear =
      plain_error > kClearError * static_cast<float>(group.count) * largest_squared;
  if (is_clear && error < plain_error * kClearGain) return scale.bits;
  // Too close for float sums to tell, or the original's scale is better. Ties go to its result.
  Codes nearest = codes;
  kernels.nearest(group.weights, group.count, kind, plain.value, plain.value, nearest.data());
  const uint16_t reference = ReferenceCodes(kernels, group, kind, original, codes);
  const bool same_codes = std::equal(codes.begin(), codes.begin() + group.count, nearest.begin());
  if (is_clear && same_codes) return reference;
  Contest contest(group, kind);
  contest.Enter(codes, reference);
  contest.EnterNearest(plain.bits);
  contest.EnterNearest(scale.bits);
  return contest.Win(codes);
}

// Copies the low bytes, and leaves the bits behind the last code zero.
void PackTail(const Codes& codes, uint32_t count, const CodeKind& kind, MutableBytes packed) {
  Codes padded{};
  std::copy_n(codes.begin(), count, padded.begin());
  std::array<std::byte, kGroupSizeMax> bytes;
  kQuantiseScalar.pack(padded.data(), static_cast<uint32_t>(RoundUp(count, 8)), kind.bits,
                       bytes.data());
  std::memcpy(packed.data(), bytes.data(), packed.size());
}

uint16_t QuantiseGroup(const QuantiseKernels& kernels, const Group& group, const CodeKind& kind,
                       Quantiser quantiser, Codes& codes) {
  if (group.largest == 0) {
    codes.fill(static_cast<uint8_t>((kind.code_max + 1) / 2));
    return kind.bits == 2 ? kZeroScaleQ2 : kZeroScaleQ4;
  }
  if (quantiser == Quantiser::kMse) return MseGroup(kernels, group, kind, codes);
  return ReferenceCodes(kernels, group, kind, ReferenceScale(kernels, group, kind), codes);
}

// Groups of equal length, back to back, that are looked at together.
struct GroupRun {
  const float* weights;
  uint64_t first;         // index of the first weight in its tensor
  uint32_t count;         // of one group
  uint32_t padded_count;  // with the zeros behind; a run of padded groups has one
  uint32_t group_count;   // at most kSearchGroups
};

Unexpected TooLarge(const GroupRun& run) {
  const uint64_t last = uint64_t{run.count} * run.group_count - 1;
  uint64_t index = 0;
  while (index < last && std::fabs(run.weights[index]) <= kF16Max) ++index;
  return Unsupported("weight {}: {} is beyond {}, the largest scale of an f16", run.first + index,
                     run.weights[index], kF16Max);
}

Status QuantiseRun(const QuantiseKernels& kernels, const GroupRun& run, const CodeKind& kind,
                   Quantiser quantiser, MutableBytes packed, MutableBytes scales) {
  std::array<float, kSearchGroups> largest;
  std::array<float, kSearchGroups> searchable;
  std::array<float, kSearchGroups> searched;
  for (uint32_t g = 0; g < run.group_count; ++g) {
    largest[g] = kernels.largest(run.weights + uint64_t{g} * run.count, run.count);
    if (!(largest[g] <= kF16Max)) return TooLarge(run);
    // A tiny group's search is not used, but must stay in the normal numbers.
    searchable[g] = std::max(largest[g], kTinyLargest);
  }
  if (kind.bits == 4 && quantiser == Quantiser::kMse) {
    kernels.search_q4(run.weights, run.count, run.group_count, searchable.data(),
                      TheTables().search, searched.data());
  }
  Codes codes{};
  for (uint32_t g = 0; g < run.group_count; ++g) {
    const Group group{run.weights + uint64_t{g} * run.count, run.count, run.padded_count,
                      largest[g], searched[g]};
    const uint16_t scale = QuantiseGroup(kernels, group, kind, quantiser, codes);
    StoreStruct(scales, uint64_t{g} * sizeof(scale), scale);
    const uint64_t at = PackedBytes(uint64_t{g} * run.count, SmoeBits(kind.bits));
    if (run.count == run.padded_count) {
      kernels.pack(codes.data(), run.count, kind.bits, packed.data() + at);
    } else {
      PackTail(codes, run.count, kind, packed.subspan(at));
    }
  }
  return Ok();
}

}  // namespace

Status CheckGroupSize(uint32_t group_size) {
  constexpr std::array<uint32_t, 5> kSizes = {8, 16, 32, 64, 128};
  if (std::find(kSizes.begin(), kSizes.end(), group_size) != kSizes.end()) return Ok();
  return Invalid("group size {}: expected 8, 16, 32, 64 or 128", group_size);
}

uint64_t PackedBytes(uint64_t weight_count, SmoeBits bits) {
  const uint64_t per_byte = 8 / static_cast<uint64_t>(bits);
  return CeilDiv(weight_count, per_byte);
}

uint64_t ScaleBytes(uint64_t weight_count, uint32_t group_size) {
  return 2 * CeilDiv(weight_count, group_size);
}

Status QuantiseSmoe(std::span<const float> weights, SmoeBits bits, uint32_t group_size,
                    Quantiser quantiser, MutableBytes packed, MutableBytes scales) {
  SMOE_TRY(CheckGroupSize(group_size));
  SMOE_CHECK(packed.size() == PackedBytes(weights.size(), bits));
  SMOE_CHECK(scales.size() == ScaleBytes(weights.size(), group_size));
  const CodeKind& kind = KindOf(bits);
  const QuantiseKernels& best = BestKernels();
  const QuantiseKernels& full = group_size % best.count_multiple == 0 ? best : kQuantiseScalar;
  const auto quantise = [&](const QuantiseKernels& kernels, const GroupRun& run) {
    return QuantiseRun(kernels, run, kind, quantiser, packed.subspan(PackedBytes(run.first, bits)),
                       scales.subspan(ScaleBytes(run.first, group_size)));
  };
  const uint64_t group_count = weights.size() / group_size;
  for (uint64_t g = 0; g < group_count; g += kSearchGroups) {
    const auto in_run = static_cast<uint32_t>(std::min<uint64_t>(kSearchGroups, group_count - g));
    const uint64_t first = g * group_size;
    SMOE_TRY(quantise(full, {weights.data() + first, first, group_size, group_size, in_run}));
  }
  const std::span<const float> tail = weights.subspan(group_count * group_size);
  if (tail.empty()) return Ok();
  std::array<float, kGroupSizeMax> padded{};
  std::copy(tail.begin(), tail.end(), padded.begin());
  return quantise(kQuantiseScalar, {padded.data(), group_count * group_size,
                                    static_cast<uint32_t>(tail.size()), group_size, 1});
}

void DequantiseSmoe(Bytes packed, Bytes scales, SmoeBits bits, uint32_t group_size,
                    std::span<float> weights) {
  SMOE_CHECK(group_size > 0);
  SMOE_CHECK(packed.size() == PackedBytes(weights.size(), bits));
  SMOE_CHECK(scales.size() == ScaleBytes(weights.size(), group_size));
  const uint32_t bit_count = static_cast<uint32_t>(bits);
  const uint32_t per_byte = 8 / bit_count;
  const uint32_t mask = (1U << bit_count) - 1;
  const float* levels =
      bits == SmoeBits::kQ2 ? TheTables().levels_q2.data() : TheTables().levels_q4.data();
  for (uint64_t first = 0; first < weights.size(); first += group_size) {
    const float scale = F32FromF16(LoadStruct<uint16_t>(scales, first / group_size * 2));
    const uint64_t end = std::min<uint64_t>(weights.size(), first + group_size);
    for (uint64_t i = first; i < end; ++i) {
      const uint32_t byte = std::to_integer<uint32_t>(packed[i / per_byte]);
      weights[i] = levels[(byte >> (i % per_byte * bit_count)) & mask] * scale;
    }
  }
}

QuantisationError MeasureError(std::span<const float> weights, Bytes packed, Bytes scales,
                               SmoeBits bits, uint32_t group_size) {
  // Eight groups at a time, whose codes start at a byte whatever the group size.
  const uint64_t piece = uint64_t{8} * group_size;
  std::array<float, uint64_t{8} * kGroupSizeMax> decoded;
  SMOE_CHECK(group_size > 0 && piece <= decoded.size());
  QuantisationError error;
  error.weight_count = weights.size();
  for (uint64_t first = 0; first < weights.size(); first += piece) {
    const uint64_t count = std::min<uint64_t>(piece, weights.size() - first);
    DequantiseSmoe(packed.subspan(PackedBytes(first, bits), PackedBytes(count, bits)),
                   scales.subspan(first / group_size * 2, ScaleBytes(count, group_size)), bits,
                   group_size, std::span(decoded).first(count));
    for (uint64_t i = 0; i < count; ++i) {
      const double value = double{weights[first + i]};
      const double distance = value - double{decoded[i]};
      error.squared_error += distance * distance;
      error.squared_value += value * value;
      error.error_max = std::max(error.error_max, std::fabs(distance));
    }
  }
  return error;
}

void QuantisationError::Add(const QuantisationError& other) {
  weight_count += other.weight_count;
  squared_error += other.squared_error;
  squared_value += other.squared_value;
  error_max = std::max(error_max, other.error_max);
}

double QuantisationError::Rmse() const {
  return weight_count == 0 ? 0 : std::sqrt(squared_error / static_cast<double>(weight_count));
}

double QuantisationError::RelativeRmse() const {
  return squared_error == 0 ? 0 : std::sqrt(squared_error / squared_value);
}

double QuantisationError::SnrDb() const {
  return squared_error == 0 ? HUGE_VAL : 10 * std::log10(squared_value / squared_error);
}

}  // namespace smoe::tensor
