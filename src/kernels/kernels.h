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
#include "tensor/weights.h"

namespace smoe::kernels {

inline constexpr uint32_t kActivationBlock = 64;  // activations that share one int8 scale
inline constexpr uint32_t kSumLanes = 16;
inline constexpr uint32_t kAttentionBlock = 32;  // keys between two updates of the running maximum

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

// One query row against the keys of one sequence; see attend in KernelTable.
struct AttentionJob {
  const float* query = nullptr;             // [head_dim]
  const float* const* key_pages = nullptr;  // page p: [page_tokens][kv_stride], already at the head
  const float* const* value_pages = nullptr;  // the same
  size_t page_tokens = 0;
  size_t kv_stride = 0;  // floats from one token's row to the next inside a page
  size_t first_key = 0;  // keys [first_key, key_count) are seen (sliding window)
  size_t key_count = 0;
  size_t head_dim = 0;
  float scale = 0;       // multiplies the dot product
  float* out = nullptr;  // [head_dim]
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

  // Causal attention of one head and one query, by online softmax (arXiv:2205.14135, algorithm 1).
  // Keys go by in blocks of kAttentionBlock, cut at multiples of it in the SEQUENCE. Per block:
  //   score = (query . key) * scale;  new_max = max(max, scores);  c = exp(max - new_max)
  //   w = exp(score - new_max);  sum = fma(sum, c, the block's sum of w, key i in lane i mod 16)
  //   out = out * c, then out = fma(w, value, out), key after key;  at the end out / sum.
  // So the bits depend on positions alone: not on page_tokens, nor on how the prompt was cut.
  // Requires first_key < key_count (else out is NaN); out must not overlap the rest.
  void (*attend)(const AttentionJob& job);
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;  // "avx512vnni": F, BW, DQ, VL and VNNI

// Best first. Tests walk this list; a table that does not run here is skipped aloud.
std::span<const KernelTable* const> AllKernels();

// The best table this machine runs, or the one that `wanted` (the value of SMOE_ISA) names.
// Errors: kInvalid naming the tables that exist and those that run here.
Result<const KernelTable*> ChooseKernels(const char* wanted);

}  // namespace smoe::kernels
