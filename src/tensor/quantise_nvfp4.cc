#include "tensor/quantise_nvfp4.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "tensor/dtype.h"
#include "tensor/nvfp4_kernels.h"
#include "tensor/quantise_kernels.h"
#include "tensor/weights.h"

namespace smoe::tensor {
namespace {

// E2M1's largest value times E4M3's.
constexpr float kLargestProduct = 6.0F * 448.0F;

#if defined(__x86_64__)
bool UsesAvx2() {
  const char* wanted = std::getenv("SMOE_ISA");
  const bool forced_scalar = wanted != nullptr && std::string_view(wanted) == "scalar";
  return !forced_scalar && __builtin_cpu_supports("avx2") != 0;
}
const QuantiseKernels& BestKernels() { return UsesAvx2() ? kQuantiseAvx2 : kQuantiseScalar; }
const Nvfp4Kernels& BestNvfp4Kernels() { return UsesAvx2() ? kNvfp4Avx2 : kNvfp4Scalar; }
#else
const QuantiseKernels& BestKernels() { return kQuantiseScalar; }
const Nvfp4Kernels& BestNvfp4Kernels() { return kNvfp4Scalar; }
#endif

Nvfp4Tables MakeTables() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Nvfp4Tables tables = {};
  for (uint32_t i = 0; i < std::size(tables.e4m3); ++i) {
    tables.e4m3[i] = F32FromF8E4M3(static_cast<uint8_t>(i));
  }
  for (uint32_t i = kE4M3PadBefore; i < std::size(tables.padded_e4m3); ++i) {
    const uint32_t code = i - kE4M3PadBefore;
    tables.padded_e4m3[i] = code < std::size(tables.e4m3) ? tables.e4m3[code] : kNan;
  }
  for (uint32_t i = 0; i < std::size(tables.e2m1); ++i) tables.e2m1[i] = F32FromE2M1(i);
  return tables;
}
const Nvfp4Tables& TheTables() {
  static const Nvfp4Tables tables = MakeTables();
  return tables;
}

double AddLanes(const double* l) {
  return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}

}  // namespace

float Nvfp4GlobalScale(std::span<const float> weights) {
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  const QuantiseKernels& kernels = BestKernels();
  float largest = 0;
  for (uint64_t first = 0; first < weights.size(); first += kPiece) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(kPiece, weights.size() - first));
    largest = std::max(largest, kernels.largest(weights.data() + first, count));
  }
  if (largest == 0) return 1.0F;
  const float scale = largest / kLargestProduct;
  // Rounded up, the product of the largest factors may be infinite.
  if (std::isinf(scale * kLargestProduct)) return std::nextafter(scale, 0.0F);
  return std::max(scale, std::numeric_limits<float>::min());
}

QuantisationError QuantiseNvfp4(std::span<const float> weights, float scale2,
                                Nvfp4Quantiser quantiser, MutableBytes packed,
                                MutableBytes scales) {
  SMOE_CHECK(weights.size() % kNvfp4Group == 0 && packed.size() == weights.size() / 2);
  SMOE_CHECK(scales.size() == weights.size() / kNvfp4Group && scale2 > 0);
  const Nvfp4Kernels& kernels = BestNvfp4Kernels();
  Nvfp4Sums sums = {};
  kernels.quantise(weights.data(), scales.size(), scale2, quantiser == Nvfp4Quantiser::kMse,
                   TheTables(), packed.data(), scales.data(), &sums);
  return {weights.size(), AddLanes(sums.squared_error), AddLanes(sums.squared_value),
          double{sums.error_max}};
}

void DequantiseNvfp4(Bytes packed, Bytes scales, float scale2, std::span<float> weights) {
  SMOE_CHECK(packed.size() == weights.size() / 2 && scales.size() == weights.size() / kNvfp4Group);
  const Nvfp4Tables& tables = TheTables();
  for (uint64_t i = 0; i < packed.size(); ++i) {
    const float scale = F32FromF8E4M3(std::to_integer<uint8_t>(scales[2 * i / kNvfp4Group]));
    const auto pair = std::to_integer<uint32_t>(packed[i]);
    weights[2 * i] = tables.e2m1[pair & 0xF] * scale * scale2;
    weights[2 * i + 1] = tables.e2m1[pair >> 4] * scale * scale2;
  }
}

uint8_t F8E4M3FromF32(float value) { return E4M3CodeOf(value); }

}  // namespace smoe::tensor
