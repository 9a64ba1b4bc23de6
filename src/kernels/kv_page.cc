#include "kernels/kv_page.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/scalar.h"
#include "tensor/dtype.h"

namespace smoe::kernels {

namespace {

constexpr size_t kStretch = 128;  // elements that are converted at once
static_assert(kStretch % kKvGroup == 0);

size_t ElementBytes(KvKind kind) {
  if (kind == KvKind::kF32) return 4;
  return kind == KvKind::kF16 ? 2 : 1;
}

size_t GroupCount(size_t head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }

size_t HalfBytes(KvKind kind, size_t head_dim) {
  return kAttentionPage * KvTokenBytes(kind, head_dim) / 2;
}

// `count` elements of kBytes each into every stride-th place.
template <size_t kBytes>
void Scatter(const void* from, size_t count, size_t stride, std::byte* to) {
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * stride * kBytes, source + i * kBytes, kBytes);
  }
}

void WriteFloats(const float* keys, const float* values, size_t head_dim, size_t row,
                 std::byte* head) {
  constexpr size_t kBytes = sizeof(float);
  Scatter<kBytes>(keys, head_dim, kAttentionPage, head + row * kBytes);
  std::memcpy(head + (kAttentionPage + row) * head_dim * kBytes, values, head_dim * kBytes);
}

void WriteHalves(const KernelTable& table, const float* keys, const float* values, size_t head_dim,
                 size_t row, std::byte* head) {
  constexpr size_t kBytes = sizeof(uint16_t);
  uint16_t bits[kStretch];
  std::byte* const value_row = head + (kAttentionPage + row) * head_dim * kBytes;
  for (size_t first = 0; first < head_dim; first += kStretch) {
    const size_t count = head_dim - first < kStretch ? head_dim - first : kStretch;
    table.to_f16(keys + first, count, bits);
    Scatter<kBytes>(bits, count, kAttentionPage, head + (first * kAttentionPage + row) * kBytes);
    table.to_f16(values + first, count, bits);
    std::memcpy(value_row + first * kBytes, bits, count * kBytes);
  }
}

// One group: codes, and the scale's bits.
uint16_t QuantiseGroup(const float* x, size_t count, int8_t* codes) {
  // Magnitudes order as their bits do, and NaN is above infinity.
  constexpr int32_t kMagnitude = 0x7fffffff;
  int32_t max_bits = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & kMagnitude;
    max_bits = bits > max_bits ? bits : max_bits;
  }
  const bool finite = max_bits < std::bit_cast<int32_t>(kInfinity);
  const auto max = std::bit_cast<float>(max_bits);
  if (!finite || max < kQuantiseMin) {
    std::memset(codes, 0, count);
    return finite ? 0 : tensor::BF16FromF32(std::numeric_limits<float>::quiet_NaN());
  }
  const uint16_t scale = tensor::BF16FromF32(max / 127);
  const float inverse = 1 / tensor::F32FromBF16(scale);
  // bf16 rounds by 2^-8 at most: 127 * (1 + 2^-8) < 127.5, so no code is out of range.
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(std::bit_cast<int32_t>(x[i] * inverse + kExpRound) -
                                   std::bit_cast<int32_t>(kExpRound));
  }
  return scale;
}

void WriteCodes(const float* keys, const float* values, size_t head_dim, size_t row,
                std::byte* head) {
  std::byte* const value_half = head + HalfBytes(KvKind::kInt8, head_dim);
  std::byte* const key_scales = head + kAttentionPage * head_dim;
  std::byte* const value_scales = value_half + kAttentionPage * head_dim;
  const size_t group_count = GroupCount(head_dim);
  int8_t codes[kKvGroup];
  for (size_t group = 0; group < group_count; ++group) {
    const size_t first = group * kKvGroup;
    const size_t count = head_dim - first < kKvGroup ? head_dim - first : kKvGroup;
    uint16_t scale = QuantiseGroup(keys + first, count, codes);
    Scatter<1>(codes, count, kAttentionPage, head + first * kAttentionPage + row);
    std::memcpy(key_scales + (group * kAttentionPage + row) * sizeof(scale), &scale, sizeof(scale));
    scale = QuantiseGroup(values + first, count, codes);
    std::memcpy(value_half + row * head_dim + first, codes, count);
    std::memcpy(value_scales + (row * group_count + group) * sizeof(scale), &scale, sizeof(scale));
  }
}

float ElementAt(KvKind kind, const std::byte* half, size_t head_dim, size_t index, size_t scale) {
  const auto* data = reinterpret_cast<const uint8_t*>(half);
  if (kind == KvKind::kF16) return tensor::F32FromF16(Load16(data + index * 2));
  if (kind == KvKind::kInt8) {
    const uint8_t* scales = data + kAttentionPage * head_dim;
    return static_cast<float>(static_cast<int8_t>(data[index])) *
           tensor::F32FromBF16(Load16(scales + scale * 2));
  }
  float value;
  std::memcpy(&value, data + index * 4, sizeof(value));
  return value;
}

}  // namespace

const char* KvKindName(KvKind kind) {
  if (kind == KvKind::kInt8) return "int8";
  return kind == KvKind::kF16 ? "f16" : "f32";
}

size_t KvTokenBytes(KvKind kind, size_t head_dim) {
  const size_t scales = kind == KvKind::kInt8 ? GroupCount(head_dim) * sizeof(uint16_t) : 0;
  return 2 * (head_dim * ElementBytes(kind) + scales);
}

void WriteKvToken(const KernelTable& table, KvKind kind, const float* keys, const float* values,
                  size_t head_dim, size_t row, std::byte* head) {
  if (kind == KvKind::kF32) return WriteFloats(keys, values, head_dim, row, head);
  if (kind == KvKind::kInt8) return WriteCodes(keys, values, head_dim, row, head);
  WriteHalves(table, keys, values, head_dim, row, head);
}

void ClearKvTokens(KvKind kind, size_t head_dim, size_t row, std::byte* head) {
  const size_t count = kAttentionPage - row;
  // One half's columns, [line][token], or rows, [token][line].
  const auto clear_columns = [&](std::byte* at, size_t line_count, size_t bytes) {
    for (size_t line = 0; line < line_count; ++line) {
      std::memset(at + (line * kAttentionPage + row) * bytes, 0, count * bytes);
    }
  };
  const auto clear_rows = [&](std::byte* at, size_t line_count, size_t bytes) {
    std::memset(at + row * line_count * bytes, 0, count * line_count * bytes);
  };
  std::byte* const value_half = head + HalfBytes(kind, head_dim);
  clear_columns(head, head_dim, ElementBytes(kind));
  clear_rows(value_half, head_dim, ElementBytes(kind));
  if (kind != KvKind::kInt8) return;
  clear_columns(head + kAttentionPage * head_dim, GroupCount(head_dim), sizeof(uint16_t));
  clear_rows(value_half + kAttentionPage * head_dim, GroupCount(head_dim), sizeof(uint16_t));
}

float KvKeyAt(KvKind kind, const std::byte* head, size_t head_dim, size_t row, size_t index) {
  return ElementAt(kind, head, head_dim, index * kAttentionPage + row,
                   index / kKvGroup * kAttentionPage + row);
}

float KvValueAt(KvKind kind, const std::byte* head, size_t head_dim, size_t row, size_t index) {
  return ElementAt(kind, head + HalfBytes(kind, head_dim), head_dim, row * head_dim + index,
                   row * GroupCount(head_dim) + index / kKvGroup);
}

}  // namespace smoe::kernels
