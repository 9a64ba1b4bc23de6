// kernels/kernels.h: the arithmetic, one table of functions per instruction set.
//
// The scalar table is the definition: every other table gives the same bits, kernels_test.cc checks
// it, and SMOE_ISA=scalar can run any model, slowly. Every sum has one order, whatever the number
// of rows, tokens or threads:
//
//   f32 sums     16 strided partial sums (element i into partial i mod 16) by fused multiply-add,
//                then the tree p[i] += p[i+8]; p[i] += p[i+4]; p[i] += p[i+2]; p[0] + p[1].
//   int8 sums    columns are cut at every multiple of kActivationBlock and at every border of a
//                weight group (groups run over the FLAT index). Inside a piece
//                dot = sum of (2 w_code - 2 Z) * x_code is an exact integer; pieces are added in
//                order: sum = fma(float(dot), w_scale * x_scale, sum) with
//                w_scale = f32(f16 scale) * (1 / 15) or * (1 / 3), each product rounded once.
//     of NVFP4   pieces are the groups of 16 columns; dot = sum of (2 E2M1) * x_code is an exact
//                integer of at most 12 * 127 * 16. sum = fma(float(dot), w_scale * x_scale, sum)
//                with w_scale = E4M3 * 2^-8, exact; at the end of the row
//                y = sum * (scale2 * 2^7), each product rounded once. A scale that is NaN makes
//                its rows NaN, in both arithmetics.
//     of int8    pieces are the groups of 64 columns; dot = sum of w_code * x_code is an exact
//                integer of at most 128 * 127 * 64. sum = fma(float(dot), w_scale * x_scale, sum).
//
// No library math function and no -ffast-math: exp is our own polynomial with fused multiply-add,
// within 1 ulp, 0 and infinity where f32 ends. Where a NaN comes out, its payload is not defined.
// Kernels read weights in place, allocate nothing, take any alignment, and read nothing outside of
// what the views say. One call may run on any thread; calls with disjoint outputs run side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/kv_page.h"
#include "tensor/weights.h"

namespace smoe::kernels {

inline constexpr uint32_t kActivationBlock = 64;  // activations that share one int8 scale
inline constexpr uint32_t kSumLanes = 16;
inline constexpr uint32_t kAttentionPart = 256;  // keys that have a softmax of their own
inline constexpr uint32_t kAttentionTile = 8;  // queries that a kernel takes through a part at once
static_assert(kAttentionPart % kAttentionPage == 0 && kAttentionPage % kSumLanes == 0);

// Token rows quantised to s8, kActivationBlock columns to a scale. value = scale * code, codes in
// [-127, 127]. Layout: codes [token_count][col_stride] with col_stride = cols rounded up to
// kActivationBlock and zeros behind cols; scales [token_count][col_stride / kActivationBlock].
struct QuantisedRows {
  const int8_t* codes = nullptr;
  const float* scales = nullptr;
  size_t token_count = 0;
  size_t cols = 0;
  size_t col_stride = 0;
};

struct FloatRows {
  const float* data = nullptr;  // [token_count][stride]
  size_t token_count = 0;
  size_t stride = 0;  // in floats
};

// Output rows [row_begin, row_end) of W for every token: out[token * out_stride + row].
struct MatMulRange {
  uint32_t row_begin = 0;
  uint32_t row_end = 0;
  float* out = nullptr;
  size_t out_stride = 0;
};

// Maximum of the scores, and sum of exp(score - max). Nothing seen yet: sum 0; else it is at least
// 1, or NaN.
struct AttentionState {
  float max = 0;
  float sum = 0;
};

// One query of one head. It sees keys [first_key, key_count).
struct AttentionQuery {
  const float* query = nullptr;  // [head_dim]
  size_t first_key = 0;
  size_t key_count = 0;
  float* out = nullptr;  // [head_dim], sum of exp(score - max) * value
  AttentionState* state = nullptr;
};

// Queries of one sequence against the keys [key_begin, key_end) of one key-value head, so that what
// they have in common is read once. Page p holds the tokens from p * kAttentionPage on, and at
// page_offset bytes into it the head, as kv_page.h says. Tokens that no query sees may hold
// anything.
struct AttentionJob {
  KvKind kind = KvKind::kF32;
  size_t head_dim = 0;
  float scale = 0;  // multiplies the dot product
  const std::byte* const* pages = nullptr;
  size_t page_offset = 0;
  size_t key_begin = 0;  // a multiple of kAttentionPart
  size_t key_end = 0;    // the same, or at least every key_count
  const AttentionQuery* queries = nullptr;
  size_t query_count = 0;
  // [kAttentionTile or query_count, the smaller][head_dim]; unused if no query sees two parts.
  float* work = nullptr;
};

// Results of one query over one part after the other: out [count] at out_stride, states too.
struct AttentionParts {
  const AttentionState* states = nullptr;
  size_t state_stride = 0;
  const float* outs = nullptr;
  size_t out_stride = 0;
  size_t count = 0;
};

struct KernelTable {
  const char* name;     // as in SMOE_ISA and in bench logs
  bool (*runs_here)();  // asks the CPU

  // y = W x with the weights dequantised exactly, in f32. Any WeightFormat.
  // Requires rows.stride >= weights.cols.
  void (*matmul_f32)(const tensor::WeightView& weights, const FloatRows& x, const MatMulRange& y);

  // y = W x in integers; quantised formats only. Requires x.cols == weights.cols.
  void (*matmul_int8)(const tensor::WeightView& weights, const QuantisedRows& x,
                      const MatMulRange& y);

  // One row of `cols` floats to s8: per block scale = absmax / 127, code = round half to even of
  // x * (127 / absmax); a block without a magnitude of at least 2^-100 counts as all zero and has
  // scale 0. codes: col_stride, scales: blocks.
  // Returns false, and leaves codes unspecified, if x holds NaN or infinity.
  bool (*quantise_row)(const float* x, size_t cols, int8_t* codes, float* scales);

  // out[i] = x[i] * (1 / sqrt(sum(x^2) / count + eps)) * weight[i], from left to right; the sum as
  // above. out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, size_t count, float* out);

  // gate[i] = silu(gate[i]) * up[i], silu(v) = v / (1 + exp(-v)): NaN for -infinity.
  void (*silu_mul)(float* gate, const float* up, size_t count);

  // In place: exp(x - max) / sum, 16 strided partial sums as above. A NaN makes all of it NaN, and
  // so do +infinity and a row of -infinity; elsewhere -infinity has weight 0.
  void (*softmax)(float* x, size_t count);

  // out[i] = 1 / (1 + exp(-x[i])). out may be x.
  void (*sigmoid)(const float* x, size_t count, float* out);

  // out[i] = fma(weight, x[i], out[i]).
  void (*add_scaled)(const float* x, float weight, size_t count, float* out);

  // out[i] = x[i] as f16, rounded half to even; too large becomes infinity.
  void (*to_f16)(const float* x, size_t count, uint16_t* out);

  // Attention of the job's queries, without the last division. Keys are cut into parts at multiples
  // of kAttentionPart in the SEQUENCE. For each query and part, over the keys that it sees
  // (elements of keys and values in f32, exactly as KvKeyAt and KvValueAt give them):
  //   score = (s = fma(query[i], key[i], s) for i = 0, 1, ... from s = 0) * scale
  //   max = maximum of the scores;  w = exp(score - max)
  //   sum = sum of w, 16 strided partial sums as above by plain addition, key i in lane i mod 16
  //   out = fma(w, value, out) from 0, key after key
  // Parts of one query are merged in order, those in which it sees no key left out; the first is
  // taken as it is, then
  //   m = max(max, part.max);  a = exp(max - m);  b = exp(part.max - m);  max = m
  //   sum = fma(sum, a, part.sum * b);  out = fma(out, a, part.out * b)
  // So bits depend on positions alone: not on pages, nor on how queries, keys or prompt were cut.
  // A query that sees none of the job's keys gets the sum 0, and its out is left as it is.
  // Source: arXiv:2205.14135, algorithm 1, with parts in place of a running maximum per block.
  void (*attend)(const AttentionJob& job);

  // Merges the parts in order, as above, and divides: out[head_dim] = merged out / merged sum.
  // out may be the outs of the first part. NaN if there is no part with a key.
  void (*merge_attention)(const AttentionParts& parts, size_t head_dim, float* out);
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvxVnniKernels;
extern const KernelTable kAmxKernels;       // "amx": int8 tiles, and what "avx512vnni" asks for
extern const KernelTable kAvx512Kernels;    // "avx512vnni": F, BW, DQ, VL and VNNI
extern const KernelTable kNeonKernels;      // "neon": every 64-bit ARM; integers are scalar
extern const KernelTable kNeonDotKernels;   // "neondot": dot products of bytes
extern const KernelTable kNeonI8mmKernels;  // "neoni8mm": and products of 8-bit matrices

// Best first. Tests walk this list; a table that does not run here is skipped aloud.
std::span<const KernelTable* const> AllKernels();

// The best table this machine runs, or the one that `wanted` (the value of SMOE_ISA) names.
// Errors: kInvalid naming the tables that exist and those that run here.
Result<const KernelTable*> ChooseKernels(const char* wanted);

}  // namespace smoe::kernels
