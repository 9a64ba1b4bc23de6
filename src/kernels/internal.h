// kernels/internal.h: what the files of one instruction set each share with scalar.cc.
//
// Only plain constants, structs and declarations: a file compiled with extra flags includes this,
// and an inline function here would be compiled with those flags for the whole program. The
// constants are not inline either: each file has its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace smoe::kernels {

// exp(x) = 2^n e^r with n = round(x log2 e), |r| <= ln2 / 2, and e^r by its Taylor series up to
// r^7 / 7!. ln2 is split so that n * kExpLn2High is exact for |n| < 2^9. kExpRound is 1.5 * 2^23:
// adding and taking it away rounds to an integer, half to even. Outside [kExpMin, kExpMax] e^x is
// 0 or infinity in f32. The bound on the error is derived in scalar.cc.
constexpr float kExpMin = -104.0f;
constexpr float kExpMax = 89.0f;
constexpr float kExpLog2E = 0x1.715476p+0f;
constexpr float kExpRound = 0x1.8p+23f;
constexpr float kExpLn2High = 0x1.62e4p-1f;
constexpr float kExpLn2Low = 0x1.7f7d1cp-20f;
constexpr float kExpTerms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                               1.0f / 6,    1.0f / 2,   1.0f,       1.0f};

// A block whose largest magnitude is below this counts as all zero: 127 / absmax stays finite.
constexpr float kQuantiseMin = 0x1p-100f;

// Factors of the integer kernels: w_scale = f32(f16 scale) * factor, rounded once.
constexpr float kQ4Unit = 1.0f / 15;
constexpr float kQ2Unit = 1.0f / 3;

// (code - Z) / Z in f32, each operation rounded; times f32(scale) it is the weight.
constexpr float kQ4Levels[16] = {-7.5f / 7.5f, -6.5f / 7.5f, -5.5f / 7.5f, -4.5f / 7.5f,
                                 -3.5f / 7.5f, -2.5f / 7.5f, -1.5f / 7.5f, -0.5f / 7.5f,
                                 0.5f / 7.5f,  1.5f / 7.5f,  2.5f / 7.5f,  3.5f / 7.5f,
                                 4.5f / 7.5f,  5.5f / 7.5f,  6.5f / 7.5f,  7.5f / 7.5f};
constexpr float kQ2Levels[4] = {-1.5f / 1.5f, -0.5f / 1.5f, 0.5f / 1.5f, 1.5f / 1.5f};

// Twice the value of each E2M1 code.
constexpr int8_t kE2M1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Factors of the integer kernels for NVFP4: groups add up with 1 / 2^8 of their
// scale and twice their codes; the last product of a row makes both good.
constexpr float kNvfp4ScaleUnit = 0x1p-8f;
constexpr float kNvfp4SumUnit = 0x1p+7f;

// WeightView without member functions to call.
struct PlainWeights {
  const uint8_t* data;
  const uint8_t* scales;
  uint64_t rows;
  uint64_t cols;
  uint64_t group_size;
  float scale2;
  tensor::WeightFormat format;
};
PlainWeights Plain(const tensor::WeightView& weights);

// The weights of flat elements [first, first + count), as tensor::WeightAt gives them; for the
// cases that a fast path leaves out. NVFP4, int8: flat = row * cols + col, and all in one row.
void DecodeWeightsScalar(const PlainWeights& weights, uint64_t first, size_t count, float* out);

// The CPU has the instructions, and the system saves their registers.
bool CpuRunsAvx2();        // AVX2, FMA and F16C
bool CpuRunsAvxVnni();     // AVX-VNNI, and what CpuRunsAvx2 asks for
bool CpuRunsAvx512Vnni();  // AVX-512 F, BW, DQ, VL and VNNI, and what CpuRunsAvx2 asks for
// AMX-TILE, AMX-INT8, AVX-512 VBMI and what CpuRunsAvx512Vnni asks for, and this process may use
// the tile registers: the first call asks the system for them. Threads: any.
bool CpuRunsAmx();
bool CpuRunsNeon();      // any 64-bit ARM
bool CpuRunsNeonDot();   // SDOT
bool CpuRunsNeonI8mm();  // SMMLA, and SDOT

void MatMulInt8Scalar(const tensor::WeightView& weights, const QuantisedRows& x,
                      const MatMulRange& y);

}  // namespace smoe::kernels
