#include <algorithm>
#include <functional>
#include <optional>

#include "base/stopwatch.h"
#include "model/expert_guess.h"
#include "model/forward.h"

namespace smoe::model {

namespace {

// Fails the sequences whose router logits are not finite.
void RouteRows(const Forward& forward, const LayerWeights& layer, uint32_t layer_index) {
  Scratch& scratch = forward.scratch;
  const RouterRule& rule = forward.router_rule;
  const Projection projection[] = {{&layer.router, {}, scratch.router}};
  Project(forward, {scratch.normed, forward.row_count(), forward.config.hidden_size}, projection);
  const auto route = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const bool finite = RouteRow(rule, forward.kernels, scratch.router + row * rule.expert_count,
                                   scratch.expert_ids.data() + row * rule.top_k,
                                   scratch.weights + row * rule.top_k);
      scratch.row_is_bad[row] = finite ? 0 : 1;
    }
  };
  forward.pool.ParallelFor(forward.row_count(), 1, std::ref(route));
  for (size_t row = 0; row < forward.row_count(); ++row) {
    if (scratch.row_is_bad[row] == 0 || !forward.RowIsLive(row)) continue;
    const StepRow& bad = scratch.rows[row];
    forward.Fail(bad.sequence,
                 Error(ErrorCode::kCorrupt,
                       fmt::format("layer {}: a router logit of position {} is NaN or infinite, "
                                   "finite numbers expected",
                                   layer_index, bad.position)));
  }
}

// The routing of the step, ascending ids, as the reference data has it.
void TapRouting(const Forward& forward, StepTaps::Layer* tap) {
  const size_t top_k = forward.router_rule.top_k;
  const Scratch& scratch = forward.scratch;
  tap->router_ids.assign(
      scratch.expert_ids.begin(),
      scratch.expert_ids.begin() + static_cast<std::ptrdiff_t>(forward.row_count() * top_k));
  tap->router_weights.assign(scratch.weights, scratch.weights + forward.row_count() * top_k);
  for (size_t first = 0; first < tap->router_ids.size(); first += top_k) {
    for (size_t i = first + 1; i < first + top_k; ++i) {
      for (size_t j = i; j > first && tap->router_ids[j] < tap->router_ids[j - 1]; --j) {
        std::swap(tap->router_ids[j], tap->router_ids[j - 1]);
        std::swap(tap->router_weights[j], tap->router_weights[j - 1]);
      }
    }
  }
}

// Asks the next router, unless nothing would be done with its answer: then it names nobody.
void GuessNext(const Forward& forward, const SparseLayer& next) {
  const Timed timed(forward.profile.of(Phase::kRouter));
  forward.scratch.likely_ids.clear();
  if (next.weights == nullptr || !forward.backend.WantsLikely(forward.row_count())) return;
  const bool is_few = forward.row_count() <= experts::kGuessRowsMax;  // asked once more
  GuessExperts(forward, *next.weights, next.index, is_few ? GuessKind::kSure : GuessKind::kAll);
}

// Runs the rows [begin, end), all of them live. The next router is asked when their reads are under
// way, for all rows of the step, by the first of the ranges.
Status RunRoutedRange(const Forward& forward, uint32_t layer_index, const SparseLayer& next,
                      size_t begin, size_t end, bool is_first) {
  const Scratch& scratch = forward.scratch;
  const size_t hidden = forward.config.hidden_size;
  const size_t top_k = forward.router_rule.top_k;
  const experts::RoutedRows rows = {.layer_index = layer_index,
                                    .row_count = end - begin,
                                    .top_k = top_k,
                                    .hidden = scratch.normed + begin * hidden,
                                    .expert_ids = scratch.expert_ids.data() + begin * top_k,
                                    .weights = scratch.weights + begin * top_k,
                                    .out = scratch.branch + begin * hidden,
                                    .more_follow = scratch.logit_rows.empty()};
  {
    const Timed timed(forward.profile.of(Phase::kExperts));
    SMOE_TRY(forward.backend.Begin(rows));
  }
  if (is_first) GuessNext(forward, next);
  const Timed timed(forward.profile.of(Phase::kExperts));
  forward.backend.Foresee(next.index, scratch.likely_ids, forward.row_count());
  std::vector<experts::RowFailure> row_failures;  // takes no memory while all goes well
  SMOE_TRY(forward.backend.Run(rows, &row_failures));
  for (experts::RowFailure& failure : row_failures) {
    const StepRow& row = scratch.rows[begin + failure.row];
    forward.Fail(row.sequence,
                 std::move(failure.error).While(fmt::format("layer {}", layer_index)));
  }
  return Ok();
}

// Rows of failed sequences have no routing: the live rows between them run one stretch at a time,
// which changes no bit of them.
Status RunRouted(const Forward& forward, uint32_t layer_index, const SparseLayer& next) {
  bool is_first = true;
  for (size_t begin = 0; begin < forward.row_count();) {
    size_t end = begin;
    while (end < forward.row_count() && forward.RowIsLive(end)) ++end;
    if (end == begin) {
      ++begin;
      continue;
    }
    SMOE_TRY(RunRoutedRange(forward, layer_index, next, begin, end, is_first));
    is_first = false;
    begin = end;
  }
  return Ok();
}

// branch += shared expert, times its gate where the family has one. The routed scaling factor is
// not for it.
void AddShared(const Forward& forward, const LayerWeights& layer) {
  const Scratch& scratch = forward.scratch;
  const size_t hidden = forward.config.hidden_size;
  const bool is_gated = layer.shared_gate.rows != 0;
  RunDense(forward, layer.dense, scratch.shared);
  if (is_gated) {
    const Projection projection[] = {{&layer.shared_gate, {}, scratch.shared_gate}};
    Project(forward, {scratch.normed, forward.row_count(), hidden}, projection);
    forward.kernels.sigmoid(scratch.shared_gate, forward.row_count(), scratch.shared_gate);
  }
  const auto add = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      forward.kernels.add_scaled(scratch.shared + row * hidden,
                                 is_gated ? scratch.shared_gate[row] : 1.0f, hidden,
                                 scratch.branch + row * hidden);
    }
  };
  forward.pool.ParallelFor(forward.row_count(), 1, std::ref(add));
}

}  // namespace

void ForeseeExperts(const Forward& forward, const LayerWeights& layer, uint32_t layer_index) {
  const Timed timed(forward.profile.of(Phase::kRouter));
  GuessExperts(forward, layer, layer_index, GuessKind::kAll);
  forward.backend.Foresee(layer_index, forward.scratch.likely_ids, forward.row_count());
}

Status RunExperts(const Forward& forward, const LayerWeights& layer, uint32_t layer_index,
                  const SparseLayer& next, StepTaps::Layer* tap) {
  {
    const Timed timed(forward.profile.of(Phase::kRouter));
    RouteRows(forward, layer, layer_index);
  }
  if (tap != nullptr) TapRouting(forward, tap);
  SMOE_TRY(RunRouted(forward, layer_index, next));
  if (!layer.has_dense()) return Ok();
  const Timed timed(forward.profile.of(Phase::kDense));
  AddShared(forward, layer);
  return Ok();
}

}  // namespace smoe::model
