// tensor/nvfp4_kernels.h: the loop of the NVFP4 quantiser, one table per instruction set.
//
// Private to tensor/quantise_*nvfp4*.cc and their test. The scalar table is the definition; every
// other table gives the same bits: all sums run in 8 lanes (weight j of a block into lane j mod 8),
// added as ((l0+l1)+(l2+l3))+((l4+l5)+(l6+l7)), without fused multiply-add. This header is included
// by files compiled with extra flags: declarations and constants of internal linkage only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smoe::tensor {

// E4M3 steps around the code that the block's largest weight asks for.
constexpr int kNvfp4StepsBelow = 2;
constexpr int kNvfp4StepsAbove = 6;
constexpr uint32_t kE4M3CodeMax = 0x7E;  // 448
// Errors of two block scales are in units of the scale; a gain above this share is one in any
// arithmetic, if the larger error is above kNvfp4ClearError. Otherwise both are decoded in f64.
constexpr float kNvfp4ClearGain = 1.0F - 0x1p-10F;
constexpr float kNvfp4ClearError = 0x1p-8F;
constexpr uint32_t kSumLanes = 8;

// Values of codes that do not exist, so that the neighbours of any code can be loaded at once.
constexpr uint32_t kE4M3PadBefore = kNvfp4StepsBelow;  // 0
constexpr uint32_t kE4M3PadAfter = 8;                  // NaN
struct Nvfp4Tables {
  float e4m3[128];  // the value of a code without its sign; [127] is NaN
  float padded_e4m3[kE4M3PadBefore + 128 + kE4M3PadAfter];
  float e2m1[16];
};

// Sums over weights, by lanes.
struct Nvfp4Sums {
  double squared_error[kSumLanes];
  double squared_value[kSumLanes];
  float error_max;
};

struct Nvfp4Kernels {
  const char* name;  // as in SMOE_ISA
  // Quantises block_count blocks of 16 weights: 8 bytes of codes and one of scale each. `searches`:
  // mse. Adds to `sums`.
  void (*quantise)(const float* weights, uint64_t block_count, float scale2, bool searches,
                   const Nvfp4Tables& tables, std::byte* packed, std::byte* scales,
                   Nvfp4Sums* sums);
};

// The E4M3 code nearest to value, half to even, at most kE4M3CodeMax. Requires value >= 0.
uint8_t E4M3CodeOf(float value);

// Squared error of a block under a scale code, in f64, of codes chosen as they will be stored.
double Nvfp4BlockError(const float* weights, uint32_t scale_code, float scale2,
                       const Nvfp4Tables& tables);

extern const Nvfp4Kernels kNvfp4Scalar;
#if defined(__x86_64__)
extern const Nvfp4Kernels kNvfp4Avx2;
#endif

}  // namespace smoe::tensor
