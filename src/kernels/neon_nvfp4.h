// kernels/neon_nvfp4.h: reading NVFP4 in the two integer files of 64-bit ARM. All of it is in an
// anonymous namespace: each file gets its own copy, compiled with its own flags.
#pragma once

#include "kernels/internal.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace smoe::kernels {

namespace {

constexpr size_t kGroupCols = tensor::kNvfp4Group;
constexpr size_t kTileRows = 16;  // of W, a byte of a register each
constexpr size_t kTileVectors = kTileRows / 4;

// Where one group of kTileRows rows lies.
struct GroupTile {
  const uint8_t* codes;  // [kGroupCols / 2], `stride` apart
  const uint8_t* scales;
  size_t stride;
};

// E4M3 as f16 bits that mean 2^-8 of its value, subnormals included: both have four bits of
// exponent here. NaN stays NaN.
inline uint16x8_t HalvesFromE4M3(int8x8_t bytes) {
  const uint16x8_t wide = vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(bytes)), 7);
  const uint16x8_t half = vandq_u16(wide, vdupq_n_u16(0xbf80));
  const uint16x8_t nan = vdupq_n_u16(0x3f80);
  return vorrq_u16(half, vceqq_u16(vandq_u16(half, nan), nan));
}

inline void DecodeScales(const uint8_t* at, float32x4_t* w_scales) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(at));
  const int8x8_t eights[2] = {vget_low_s8(bytes), vget_high_s8(bytes)};
  for (size_t i = 0; i < 2; ++i) {
    const float16x8_t halves = vreinterpretq_f16_u16(HalvesFromE4M3(eights[i]));
    w_scales[2 * i] = vcvt_f32_f16(vget_low_f16(halves));
    w_scales[2 * i + 1] = vcvt_f32_f16(vget_high_f16(halves));
  }
}

// Eight columns of sixteen rows, twice their value. Register i has four bytes of each of the rows
// 4 i to 4 i + 3: even columns in `even`, odd ones in `odd`.
struct EightCols {
  int8x16_t even[kTileVectors];
  int8x16_t odd[kTileVectors];
};

inline EightCols LookUp(const GroupTile& tile, size_t byte_row) {
  uint8x16_t loaded[4];
  for (size_t i = 0; i < 4; ++i) loaded[i] = vld1q_u8(tile.codes + (byte_row + i) * tile.stride);
  const uint16x8_t low01 = vreinterpretq_u16_u8(vzip1q_u8(loaded[0], loaded[1]));
  const uint16x8_t high01 = vreinterpretq_u16_u8(vzip2q_u8(loaded[0], loaded[1]));
  const uint16x8_t low23 = vreinterpretq_u16_u8(vzip1q_u8(loaded[2], loaded[3]));
  const uint16x8_t high23 = vreinterpretq_u16_u8(vzip2q_u8(loaded[2], loaded[3]));
  const uint16x8_t rows[kTileVectors] = {vzip1q_u16(low01, low23), vzip2q_u16(low01, low23),
                                         vzip1q_u16(high01, high23), vzip2q_u16(high01, high23)};
  const int8x16_t table = vld1q_s8(kE2M1Twice);
  EightCols cols;
  for (size_t i = 0; i < kTileVectors; ++i) {
    const uint8x16_t bytes = vreinterpretq_u8_u16(rows[i]);
    cols.even[i] = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
    cols.odd[i] = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
  }
  return cols;
}

}  // namespace

}  // namespace smoe::kernels
#endif
