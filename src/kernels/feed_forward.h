// kernels/feed_forward.h: matrices and gated feed-forward networks over a pool of threads.
//
// What routed experts, shared experts and dense layers have in common: rows of activations, kept in
// f32 and perhaps also quantised, go through y = W x or through down(silu(gate x) * up x). The work
// is cut by rows of W, so that a result's bits depend neither on the number of threads nor on which
// other rows go through together.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/memory.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace smoe::kernels {

// Views of the same rows in both forms. quantised.codes == nullptr: f32 arithmetic everywhere.
// Otherwise matrices in a quantised format are computed in integers, dense ones still in f32.
struct Activations {
  FloatRows floats;
  QuantisedRows quantised;
};

// y = W x. Shapes: x.floats [token_count][cols of W]; out[token * out_stride + row].
// Requires weights.cols == x.quantised.cols if x has quantised rows.
void MatMul(const KernelTable& kernels, ThreadPool& pool, const tensor::WeightView& weights,
            const Activations& x, float* out, size_t out_stride);

// Memory for rows of s8 codes and their scales.
class QuantisedBuffer {
 public:
  // Errors: kExhausted naming `purpose` and the size.
  static Result<QuantisedBuffer> Create(size_t row_count_max, size_t cols_max,
                                        std::string_view purpose);

  // The first `row_count` rows with `cols` columns, whatever they hold.
  // Requires both within the maxima. Valid until the next call.
  QuantisedRows View(size_t row_count, size_t cols) const;
  // Where row `row` of View(_, cols) lies.
  int8_t* codes(size_t row, size_t cols);
  float* scales(size_t row, size_t cols);

  // Quantises rows of `cols` columns. finite[row] is set to 1, or to 0 if the row holds NaN or
  // infinity and its codes are worthless. Requires finite.size() >= x.token_count.
  QuantisedRows Quantise(const KernelTable& kernels, ThreadPool& pool, const FloatRows& x,
                         size_t cols, std::span<uint8_t> finite);

 private:
  AlignedBuffer codes_;
  AlignedBuffer scales_;
};

class FeedForward {
 public:
  struct Options {
    size_t token_count_max = 0;          // rows in one Run
    uint32_t intermediate_size_max = 0;  // rows of gate and up
    bool quantise = false;  // take memory for integers too; without it Run computes in f32 alone
  };

  // Borrows table and pool. All memory is taken here: 2 floats, and with quantise about one byte
  // more, per token and intermediate column.
  // Errors: kExhausted with the size.
  static Result<FeedForward> Create(const KernelTable& kernels, ThreadPool& pool,
                                    const Options& options);

  // out[token * out_stride + i] = down(silu(gate x) * up x)[i].
  // Shapes:   gate, up [ffn][hidden]; down [hidden][ffn]; x [token_count][hidden]
  // Requires: token_count and ffn within the options.
  // finite:   [token_count] or empty; finite[token] is set to 0 if `down` is computed in integers
  //           and the token's intermediate values are not finite: out is then worthless. Never set
  //           to 1. Other tokens are not touched by that.
  // Cost:     no allocation; two fork-joins.
  void Run(const tensor::ExpertWeights& weights, const Activations& x, float* out,
           size_t out_stride, std::span<uint8_t> finite);

 private:
  FeedForward(const KernelTable& kernels, ThreadPool& pool, const Options& options)
      : kernels_(&kernels), pool_(&pool), options_(options) {}

  void GateUp(const tensor::ExpertWeights& weights, const Activations& x, size_t row_begin,
              size_t row_end, bool quantise, std::span<uint8_t> finite);

  const KernelTable* kernels_;
  ThreadPool* pool_;
  Options options_;
  AlignedBuffer gate_;  // [token_count_max][row stride]
  AlignedBuffer up_;
  QuantisedBuffer quantised_;
};

}  // namespace smoe::kernels
