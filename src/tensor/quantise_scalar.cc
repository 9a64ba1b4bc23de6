// The definition of the quantiser's loops. Kept in step with quantise_avx2.cc by quantise_test.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor/quantise_kernels.h"

namespace smoe::tensor {
namespace {

constexpr uint32_t kLanes = 8;
constexpr uint32_t kCountMax = 128;
constexpr int kStepBits = 11;  // fractional bits of a quantisation step in the integer search
constexpr int kStep = 1 << kStepBits;

float AddLanes(const float* l) {
  return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}

float Largest(const float* weights, uint32_t count) {
  // As integers, where NaN and infinity are above every number.
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(weights[i]) & 0x7FFFFFFFU);
  }
  return std::bit_cast<float>(largest);
}

float ReferenceCode(float weight, const CodeKind& kind, float scale) {
  const float code = std::nearbyint(weight / scale * kind.zero + kind.zero);
  return std::min(std::max(code, 0.0F), kind.code_max);
}

float ReferenceSearch(const float* weights, uint32_t count, const CodeKind& kind, float largest,
                      const ReferenceTable& table) {
  float best_error = std::numeric_limits<float>::infinity();
  float best_scale = largest;
  for (int r = 0; r < kReferenceRatioCount; ++r) {
    const float scale = largest * table.ratio[r];
    if (!(scale > 0)) continue;  // underflow
    float lanes[kLanes] = {};
    for (uint32_t i = 0; i < count; ++i) {
      const float code = ReferenceCode(weights[i], kind, scale);
      const float distance = weights[i] - (code - kind.zero) * kind.zero_inverse * scale;
      lanes[i % kLanes] += distance * distance;
    }
    const float error = AddLanes(lanes);
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
    }
  }
  return best_scale;
}

void ReferenceCodes(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                    uint8_t* codes) {
  for (uint32_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(ReferenceCode(weights[i], kind, scale));
  }
}

// As pmulhrsw: the rounded high half of a product of two 1.15 numbers.
int MultiplyHigh(int a, int b) { return ((a * b >> 14) + 1) >> 1; }

// The step a scaled magnitude falls into, 0..7: the level is step + 0.5.
int StepOf(int scaled) { return std::min(scaled, 8 * kStep - 1) >> kStepBits; }

float SearchError(const int16_t* integers, uint32_t count, const SearchTable& table, int ratio) {
  int32_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const int scaled = MultiplyHigh(integers[i], table.multiplier[ratio]);
    const int distance = scaled - (StepOf(scaled) * kStep + kStep / 2);
    sum += distance * distance;
  }
  return static_cast<float>(sum) * table.ratio_squared[ratio];
}

int BestRatio(const int16_t* integers, uint32_t count, const SearchTable& table) {
  float best_error = std::numeric_limits<float>::infinity();
  int best = 1;
  const auto look_at = [&](int ratio) {
    const float error = SearchError(integers, count, table, ratio);
    if (!(error < best_error)) return;
    best_error = error;
    best = ratio;
  };
  for (int i = 0; i < kSearchCoarseCount; ++i) look_at(2 * i + 1);
  const int middle = best;
  look_at(middle - 1);
  look_at(middle + 1);
  return best;
}

float SearchGroup(const float* weights, uint32_t count, float largest, const SearchTable& table) {
  int16_t integers[kCountMax] = {};
  const float to_integer = 32767.0F / largest;
  for (uint32_t i = 0; i < count; ++i) {
    integers[i] = static_cast<int16_t>(std::fabs(std::nearbyint(weights[i] * to_integer)));
  }
  const int best = BestRatio(integers, count, table);
  int32_t product_sum = 0;
  int32_t square_sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const int level = 2 * StepOf(MultiplyHigh(integers[i], table.multiplier[best])) + 1;
    product_sum += integers[i] * level;
    square_sum += level * level;
  }
  return static_cast<float>(product_sum) / static_cast<float>(square_sum) * 15.0F *
         (largest / 32767.0F);
}

void SearchQ4(const float* weights, uint32_t count, uint32_t group_count, const float* largest,
              const SearchTable& table, float* scales) {
  for (uint32_t g = 0; g < group_count; ++g) {
    scales[g] = SearchGroup(weights + uint64_t{g} * count, count, largest[g], table);
  }
}

// Code minus Z of the nearest code, and the weight in steps.
float NearestLevel(float weight, const CodeKind& kind, float to_steps) {
  const float step = std::floor(weight * to_steps);
  return std::min(std::max(step + 0.5F, -kind.zero), kind.zero);
}

float Fit(const float* weights, uint32_t count, const CodeKind& kind, float scale) {
  const float to_steps = kind.zero / scale;
  float products[kLanes] = {};
  float squares[kLanes] = {};
  for (uint32_t i = 0; i < count; ++i) {
    const float level = NearestLevel(weights[i], kind, to_steps);
    products[i % kLanes] += weights[i] * level;
    squares[i % kLanes] += level * level;
  }
  return AddLanes(products) / AddLanes(squares) * kind.zero;
}

float NearestError(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                   uint8_t* codes) {
  const float to_steps = kind.zero / scale;
  const float step = kind.zero_inverse * scale;
  float lanes[kLanes] = {};
  for (uint32_t i = 0; i < count; ++i) {
    const float level = NearestLevel(weights[i], kind, to_steps);
    const float distance = weights[i] - level * step;
    lanes[i % kLanes] += distance * distance;
    if (codes != nullptr) codes[i] = static_cast<uint8_t>(level + kind.zero);
  }
  return AddLanes(lanes);
}

NearestErrors Nearest(const float* weights, uint32_t count, const CodeKind& kind, float scale,
                      float other_scale, uint8_t* codes) {
  return {NearestError(weights, count, kind, scale, codes),
          NearestError(weights, count, kind, other_scale, nullptr)};
}

void Pack(const uint8_t* codes, uint32_t count, uint32_t bits, std::byte* packed) {
  const uint32_t per_byte = 8 / bits;
  for (uint32_t i = 0; i < count; i += per_byte) {
    uint32_t byte = 0;
    for (uint32_t k = 0; k < per_byte; ++k) byte |= uint32_t{codes[i + k]} << (bits * k);
    packed[i / per_byte] = static_cast<std::byte>(byte);
  }
}

}  // namespace

const QuantiseKernels kQuantiseScalar = {
    "scalar", 1, Largest, ReferenceSearch, ReferenceCodes, SearchQ4, Fit, Nearest, Pack,
};

}  // namespace smoe::tensor
