// kernels/kv_page.h: how keys and values lie in the pages that attention reads.
//
// A page holds kAttentionPage tokens, head after head. Of each head it holds the keys
// TRANSPOSED, [head_dim][kAttentionPage], so that keys lie in lanes when they are scored, then the
// values, [kAttentionPage][head_dim]. Both halves take the same number of bytes:
//
//   kF32   4 bytes an element
//   kF16   2 bytes, rounded half to even when written, exact when read; too large is infinity
//   kInt8  codes of 1 byte, then scales of 2 (bf16), one for kKvGroup neighbouring elements of ONE
//          token (the last group of a head may be shorter): the keys' scales [group][token], the
//          values' [token][group]. element = code * scale, exact in f32.
//          Written: scale = bf16(absmax / 127), code = x * (1 / scale) half to even, so that it
//          is within [-127, 127] and an element is off by half a scale at most (and the rounding
//          of that product). A group without a magnitude of at least 2^-100 is all zero; one that
//          holds NaN or infinity has the scale NaN, and reads as NaN.
//
// With head_dim 128: 4, 2 and 1.0625 bytes an element. Nothing need be aligned.
// Threads: tokens may be written side by side; a reader of other tokens is not disturbed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smoe::kernels {

struct KernelTable;

inline constexpr uint32_t kAttentionPage = 32;  // tokens whose keys and values lie together
inline constexpr uint32_t kKvGroup = 32;        // elements that share a scale

enum class KvKind : uint8_t { kF32, kF16, kInt8 };
const char* KvKindName(KvKind kind);  // "f32", "f16", "int8"

// Keys and values of one token of one head, scales included. A page of one head takes
// kAttentionPage times that, and its values begin in the middle.
size_t KvTokenBytes(KvKind kind, size_t head_dim);

// Stores keys and values [head_dim] as token `row` (below kAttentionPage) of the page; `head` is
// where the head begins in it. The same bytes whatever the table.
void WriteKvToken(const KernelTable& table, KvKind kind, const float* keys, const float* values,
                  size_t head_dim, size_t row, std::byte* head);

// Zeroes the tokens from `row` on: what a page's earlier owner wrote there.
void ClearKvTokens(KvKind kind, size_t head_dim, size_t row, std::byte* head);

// What was stored: element `index` of token `row`, as attention sees it. Slow.
float KvKeyAt(KvKind kind, const std::byte* head, size_t head_dim, size_t row, size_t index);
float KvValueAt(KvKind kind, const std::byte* head, size_t head_dim, size_t row, size_t index);

}  // namespace smoe::kernels
