// model/forward.h: the parts of a forward pass, as free functions over one context.
//
// Each part works on all rows of the step at once and splits its loops over the pool: matrices by
// output rows, everything else by token rows or heads. No sum is ever split, so the number of
// threads cannot change a bit.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "experts/backend.h"
#include "kernels/feed_forward.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/router.h"
#include "model/scratch.h"
#include "model/step_profile.h"
#include "model/trunk.h"

namespace smoe::model {

// What all layers share; borrowed from the model for one step.
struct Forward {
  const checkpoint::ModelConfig& config;
  const ArchTraits& traits;
  const Rope& rope;
  const RouterRule& router_rule;
  ThreadPool& pool;
  const kernels::KernelTable& kernels;
  kernels::FeedForward& feed_forward;  // of dense layers and shared experts
  experts::ExpertBackend& backend;
  Scratch& scratch;
  std::span<const SequenceRows> sequences;
  std::vector<SequenceFailure>& failures;
  StepProfile& profile;

  size_t row_count() const { return scratch.rows.size(); }
  float eps() const { return static_cast<float>(config.rms_norm_eps); }
  // Are matrices in this format computed in integers?
  bool InIntegers(tensor::WeightFormat format) const {
    return scratch.quantises && tensor::IsQuantised(format);
  }
  bool RowIsLive(size_t row) const { return scratch.is_failed[scratch.rows[row].sequence] == 0; }
  // The first error of a sequence counts. Its rows become zeros and run along, so that the shape of
  // the step stays as it is.
  void Fail(uint32_t sequence, Error error) const;
};

// One product y = W x + b for all rows of x.
struct Projection {
  const tensor::WeightView* weights = nullptr;
  FloatVector bias;      // empty: none
  float* out = nullptr;  // [rows][weights->rows]
};

// All projections read the same x and are cut together, so that small ones cost no extra join.
// With int8 arithmetic matrices in a quantised format are computed in integers, from rows that are
// quantised here; a live row that is not finite fails its sequence, and counts as zeros.
// Row i of x belongs to row i of the step.
void Project(const Forward& forward, const kernels::FloatRows& x,
             std::span<const Projection> projections);

// The same for the output head, where row i of x belongs to row logit_rows[i] of the step.
void ProjectHead(const Forward& forward, const kernels::FloatRows& x, const Projection& projection);

// out = rms_norm(in) for every row, [rows][hidden_size].
void NormRows(const Forward& forward, const float* in, FloatVector weight, float* out);
// The same of every `stride`-th row, row_count of them, side by side in `out`.
void NormRows(const Forward& forward, const float* in, FloatVector weight, float* out,
              size_t row_count, size_t stride);

// hidden += branch.
void AddBranch(const Forward& forward);

// branch = attention of the normed rows; writes their keys and values to the cache.
void RunAttention(const Forward& forward, const LayerWeights& layer, uint32_t layer_index);

// out = down(silu(gate x) * (up x)) of the normed rows, [rows][hidden_size].
void RunDense(const Forward& forward, const tensor::ExpertWeights& weights, float* out);

// Guesses for the backend what a layer that comes will want, from the residual stream as it is: of
// the first layer with experts from the embeddings, so that the drive need not wait for attention,
// nor for dense layers before it; of the others behind the layer before.
void ForeseeExperts(const Forward& forward, const LayerWeights& layer, uint32_t layer_index);

struct SparseLayer {
  const LayerWeights* weights = nullptr;  // nullptr: there is none
  uint32_t index = 0;
};

// branch = weighted sum of the routed experts, plus the shared expert where there is one.
// `next`: a later layer with experts, or none; what its router may want is guessed for the backend.
// `tap`: nullptr, or gets the routing.
// Errors: only if the backend cannot go on.
Status RunExperts(const Forward& forward, const LayerWeights& layer, uint32_t layer_index,
                  const SparseLayer& next, StepTaps::Layer* tap);

// Fails the sequences of live rows whose residual stream is not finite, naming the layer.
void CheckHidden(const Forward& forward, uint32_t layer_index);

}  // namespace smoe::model
