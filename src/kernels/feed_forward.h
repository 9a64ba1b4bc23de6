// kernels/feed_forward.h: matrices and gated feed-forward networks over a pool of threads.
//
// What routed experts, shared experts and dense layers have in common: rows of activations, kept in
// f32 and perhaps also quantised, go through y = W x or through down(silu(gate x) * up x). The work
// is cut by rows of W, so that a result's bits depend neither on the number of threads nor on which
// other rows or networks go through together.
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

  // Gives the memory back to the system until rows are quantised again.
  void Discard() {
    codes_.Discard(0, codes_.size());
    scales_.Discard(0, scales_.size());
  }

 private:
  AlignedBuffer codes_;
  AlignedBuffer scales_;
};

// One network, the rows that go through it and where their results go:
// out[token * out_stride + i] = down(silu(gate x) * up x)[i].
// Shapes:   gate, up [ffn][hidden]; down [hidden][ffn]; x [token_count][hidden]
// finite:   [token_count] or empty; finite[token] is set to 0 if `down` is computed in integers
//           and the token's intermediate values are not finite: out is then worthless. Never set
//           to 1. Other tokens are not touched by that.
struct FeedForwardJob {
  tensor::ExpertWeights weights;
  Activations x;
  float* out = nullptr;
  size_t out_stride = 0;
  std::span<uint8_t> finite;
};

class FeedForward {
 public:
  struct Options {
    size_t token_count_max = 0;          // rows of all jobs of one Run
    uint32_t intermediate_size_max = 0;  // rows of gate and up
    bool quantise = false;  // take memory for integers too; without it Run computes in f32 alone
  };

  // Borrows table and pool. All memory is taken here: 2 floats, and with quantise about one byte
  // more, per token and intermediate column.
  // Errors: kExhausted with the size.
  static Result<FeedForward> Create(const KernelTable& kernels, ThreadPool& pool,
                                    const Options& options);

  // Computes all jobs; their outputs must not overlap.
  // Requires: the rows of all jobs together, and each ffn, within the options.
  // Cost:     no allocation; two fork-joins, however many jobs there are: one for all of gate, up,
  //           SiLU and quantising, one for all of down. Either is cut by what the rows cost, so
  //           that jobs of one row and of many may be mixed.
  void Run(std::span<const FeedForwardJob> jobs);

  // Gives the memory of what was computed back to the system until the next Run.
  void Discard() {
    gate_.Discard(0, gate_.size());
    up_.Discard(0, up_.size());
    quantised_.Discard();
  }

 private:
  FeedForward(const KernelTable& kernels, ThreadPool& pool, const Options& options)
      : kernels_(&kernels), pool_(&pool), options_(options) {}

  void GateUp(const FeedForwardJob& job, size_t first_token, size_t row_begin, size_t row_end);
  void Down(const FeedForwardJob& job, size_t first_token, size_t row_begin, size_t row_end);
  // Where the intermediate values of the Run's rows from the token-th on lie.
  float* GateRow(size_t token);
  float* UpRow(size_t token);
  int8_t* CodesFrom(size_t token) {
    return quantised_.codes(token, options_.intermediate_size_max);
  }
  float* ScalesFrom(size_t token) {
    return quantised_.scales(token, options_.intermediate_size_max);
  }

  const KernelTable* kernels_;
  ThreadPool* pool_;
  Options options_;
  AlignedBuffer gate_;  // [token_count_max][row stride]
  AlignedBuffer up_;
  QuantisedBuffer quantised_;
};

}  // namespace smoe::kernels
