#include "convert/random_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace smoe::convert {
namespace {

// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

uint64_t Word(uint64_t key, uint64_t index) { return Mix(key + (index + 1) * kGolden); }

// Scales are 8/8, 9/8, ... 15/8 of the smallest one, equally often.
constexpr uint32_t kScaleCount = 8;
const double kScaleRms = std::sqrt((64 + 81 + 100 + 121 + 144 + 169 + 196 + 225) / 64.0 / 8);

// Deviation of uniform codes where the scale is 1: levels (2 q - 15) / 15 and (2 q - 3) / 3, and
// the E2M1 values 0, 0.5, 1, 1.5, 2, 3, 4, 6 of both signs.
const double kQ4Deviation = std::sqrt((16.0 * 16 - 1) / 3) / 15;
const double kQ2Deviation = std::sqrt((4.0 * 4 - 1) / 3) / 3;
const double kNvfp4Deviation = std::sqrt((0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8);

// One of `kScaleCount` table entries for each element, three bits of randomness each.
template <class T>
void FillFromTable(uint64_t key, const T (&table)[kScaleCount], MutableBytes out) {
  constexpr uint64_t kPerWord = 16;
  const uint64_t count = out.size() / sizeof(T);
  for (uint64_t first = 0; first < count; first += kPerWord) {
    const uint64_t word = Word(key, first / kPerWord);
    T values[kPerWord];
    for (uint64_t i = 0; i < kPerWord; ++i) values[i] = table[(word >> (4 * i)) % kScaleCount];
    std::memcpy(out.data() + first * sizeof(T), values,
                std::min(kPerWord, count - first) * sizeof(T));
  }
}

// Equally likely values whose mean is 0 and whose deviation is 1.
std::array<double, 256> NormalValues() {
  std::array<double, 256> values;
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = NormalQuantile((static_cast<double>(i) + 0.5) / 256);
    squares += values[i] * values[i];
  }
  for (double& value : values) value /= std::sqrt(squares / 256);
  return values;
}

}  // namespace

uint64_t RandomKey(uint64_t key, uint64_t part) { return Mix(Mix(key + kGolden) ^ part); }

RandomMatrix RandomExperts::Matrix(size_t index, size_t proj) const {
  const uint64_t key = RandomKey(RandomKey(seed, 2 * index + 1), proj);
  const double deviation = proj == 2 ? down_deviations[index / experts_per_layer] : in_deviation;
  return {RandomKey(key, 0), RandomKey(key, 1), deviation};
}

void FillRandomCodes(uint64_t key, MutableBytes codes) {
  const uint64_t word_count = codes.size() / sizeof(uint64_t);
  for (uint64_t i = 0; i < word_count; ++i) {
    const uint64_t word = Word(key, i);
    std::memcpy(codes.data() + i * sizeof(word), &word, sizeof(word));
  }
  const uint64_t word = Word(key, word_count);
  std::memcpy(codes.data() + word_count * sizeof(word), &word, codes.size() % sizeof(word));
}

void FillSmoeScales(const RandomMatrix& matrix, tensor::SmoeBits bits, MutableBytes scales) {
  SMOE_CHECK(scales.size() % sizeof(uint16_t) == 0);
  const double unit = bits == tensor::SmoeBits::kQ4 ? kQ4Deviation : kQ2Deviation;
  uint16_t table[kScaleCount];
  for (uint32_t i = 0; i < kScaleCount; ++i) {
    const double scale = matrix.deviation / unit / kScaleRms * (kScaleCount + i) / kScaleCount;
    table[i] = tensor::F16FromF32(static_cast<float>(scale));
  }
  FillFromTable(matrix.scales_key, table, scales);
}

float FillNvfp4Scales(const RandomMatrix& matrix, MutableBytes scales) {
  constexpr uint8_t kOne = 0x38;  // E4M3 1.0; the next codes are 9/8, 10/8, ...
  uint8_t table[kScaleCount];
  for (uint8_t i = 0; i < kScaleCount; ++i) table[i] = static_cast<uint8_t>(kOne + i);
  FillFromTable(matrix.scales_key, table, scales);
  return static_cast<float>(matrix.deviation / kNvfp4Deviation / kScaleRms);
}

NormalBf16::NormalBf16(double deviation) {
  static const std::array<double, 256> kValues = NormalValues();
  for (size_t i = 0; i < kValues.size(); ++i) {
    table_[i] = tensor::BF16FromF32(static_cast<float>(deviation * kValues[i]));
  }
}

void NormalBf16::Fill(uint64_t key, uint64_t first, std::span<uint16_t> out) const {
  constexpr uint64_t kPerWord = sizeof(uint64_t);
  SMOE_CHECK(first % kPerWord == 0);
  for (uint64_t at = 0; at < out.size(); at += kPerWord) {
    const uint64_t word = Word(key, (first + at) / kPerWord);
    const uint64_t count = std::min<uint64_t>(kPerWord, out.size() - at);
    for (uint64_t i = 0; i < count; ++i) out[at + i] = table_[(word >> (8 * i)) & 0xFF];
  }
}

// By bisection: it is asked a few hundred times, and erfc is exact enough at both ends.
double NormalQuantile(double p) {
  SMOE_CHECK(p > 0 && p < 1);
  double low = -40;
  double high = 40;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace smoe::convert
