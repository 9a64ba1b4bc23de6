#include "model/forward.h"

#include <algorithm>
#include <functional>

#include "tensor/finite.h"

namespace smoe::model {

namespace {

// Output rows of a matrix that one thread takes at least.
constexpr size_t kProjectGrain = 16;

void ProjectRange(const Forward& forward, const kernels::Activations& x,
                  const Projection& projection, uint32_t begin, uint32_t end) {
  const size_t stride = projection.weights->rows;
  const kernels::MatMulRange range = {
      .row_begin = begin, .row_end = end, .out = projection.out, .out_stride = stride};
  if (forward.InIntegers(projection.weights->format)) {
    forward.kernels.matmul_int8(*projection.weights, x.quantised, range);
  } else {
    forward.kernels.matmul_f32(*projection.weights, x.floats, range);
  }
  if (projection.bias.empty()) return;
  for (size_t token = 0; token < x.floats.token_count; ++token) {
    float* const out = projection.out + token * stride;
    for (uint32_t row = begin; row < end; ++row) out[row] += projection.bias[row];
  }
}

// The rows of x in s8. Rows that are not finite are handed to `fail` and then count as zeros.
template <class FailRow>
kernels::QuantisedRows QuantiseRows(const Forward& forward, const kernels::FloatRows& x,
                                    size_t cols, const FailRow& fail) {
  Scratch& scratch = forward.scratch;
  const kernels::QuantisedRows rows =
      scratch.quantised.Quantise(forward.kernels, forward.pool, x, cols, scratch.row_is_finite);
  for (size_t row = 0; row < x.token_count; ++row) {
    if (scratch.row_is_finite[row] != 0) continue;
    std::fill_n(scratch.quantised.codes(row, cols), rows.col_stride, int8_t{0});
    std::fill_n(scratch.quantised.scales(row, cols), rows.col_stride / kernels::kActivationBlock,
                0.0f);
    fail(row);
  }
  return rows;
}

void FailRow(const Forward& forward, size_t row, const char* what) {
  if (!forward.RowIsLive(row)) return;
  const StepRow& bad = forward.scratch.rows[row];
  forward.Fail(bad.sequence,
               Error(ErrorCode::kCorrupt,
                     fmt::format("layer {}: {} of position {} is NaN or infinite, finite numbers "
                                 "expected",
                                 forward.scratch.layer_index, what, bad.position)));
}

// Cuts the rows of all matrices over the pool.
void RunProjections(const Forward& forward, const kernels::Activations& x,
                    std::span<const Projection> projections) {
  size_t total = 0;
  for (const Projection& projection : projections) total += projection.weights->rows;
  const auto body = [&](size_t begin, size_t end) {
    size_t first = 0;  // of the current matrix, among the rows of all
    for (const Projection& projection : projections) {
      const size_t rows = projection.weights->rows;
      const size_t from = std::clamp(begin, first, first + rows) - first;
      const size_t to = std::clamp(end, first, first + rows) - first;
      if (from < to) {
        ProjectRange(forward, x, projection, static_cast<uint32_t>(from),
                     static_cast<uint32_t>(to));
      }
      first += rows;
    }
  };
  // std::ref: the pool's function object then holds one pointer and allocates nothing.
  forward.pool.ParallelFor(total, kProjectGrain, std::ref(body));
  forward.backend.Poll();
}

}  // namespace

void Forward::Fail(uint32_t sequence, Error error) const {
  if (scratch.is_failed[sequence] != 0) return;
  scratch.is_failed[sequence] = 1;
  failures.push_back({sequence, std::move(error)});
  for (size_t row = 0; row < row_count(); ++row) {
    if (scratch.rows[row].sequence != sequence) continue;
    std::fill_n(scratch.hidden + row * config.hidden_size, config.hidden_size, 0.0f);
    std::fill_n(scratch.branch + row * config.hidden_size, config.hidden_size, 0.0f);
  }
}

void Project(const Forward& forward, const kernels::FloatRows& x,
             std::span<const Projection> projections) {
  kernels::Activations rows = {x, {}};
  const bool in_integers = std::any_of(
      projections.begin(), projections.end(),
      [&](const Projection& projection) { return forward.InIntegers(projection.weights->format); });
  if (in_integers) {
    rows.quantised = QuantiseRows(forward, x, projections[0].weights->cols,
                                  [&](size_t row) { FailRow(forward, row, "an activation"); });
  }
  RunProjections(forward, rows, projections);
}

void ProjectHead(const Forward& forward, const kernels::FloatRows& x,
                 const Projection& projection) {
  kernels::Activations rows = {x, {}};
  if (forward.InIntegers(projection.weights->format)) {
    rows.quantised = QuantiseRows(forward, x, projection.weights->cols, [&](size_t index) {
      const size_t row = forward.scratch.logit_rows[index];
      if (!forward.RowIsLive(row)) return;
      const StepRow& bad = forward.scratch.rows[row];
      forward.Fail(bad.sequence,
                   Error(ErrorCode::kCorrupt,
                         fmt::format("output head: an activation of position {} is NaN or "
                                     "infinite, finite numbers expected; the layers before it "
                                     "were finite",
                                     bad.position)));
    });
  }
  RunProjections(forward, rows, {&projection, 1});
}

void RunDense(const Forward& forward, const tensor::ExpertWeights& weights, float* out) {
  Scratch& scratch = forward.scratch;
  const size_t hidden = forward.config.hidden_size;
  const size_t row_count = forward.row_count();
  const kernels::Activations rows = {{scratch.normed, row_count, hidden}, {}};
  const bool in_integers = forward.InIntegers(weights.gate.format) ||
                           forward.InIntegers(weights.up.format) ||
                           forward.InIntegers(weights.down.format);
  kernels::FeedForwardJob job = {
      .weights = weights, .x = rows, .out = out, .out_stride = hidden, .finite = {}};
  if (!in_integers) return forward.feed_forward.Run({&job, 1});
  job.x.quantised = QuantiseRows(forward, rows.floats, hidden, [&](size_t row) {
    FailRow(forward, row, "an activation before the dense network");
  });
  const std::span<uint8_t> finite = std::span(scratch.row_is_finite).first(row_count);
  std::fill(finite.begin(), finite.end(), uint8_t{1});
  job.finite = finite;
  forward.feed_forward.Run({&job, 1});
  for (size_t row = 0; row < row_count; ++row) {
    if (finite[row] != 0) continue;
    FailRow(forward, row, "an activation inside the dense network");
    std::fill_n(out + row * hidden, hidden, 0.0f);
  }
}

void NormRows(const Forward& forward, const float* in, FloatVector weight, float* out) {
  NormRows(forward, in, weight, out, forward.row_count(), 1);
}

void NormRows(const Forward& forward, const float* in, FloatVector weight, float* out,
              size_t row_count, size_t stride) {
  const size_t hidden = forward.config.hidden_size;
  const auto body = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      forward.kernels.rms_norm(in + row * stride * hidden, weight.data(), forward.eps(), hidden,
                               out + row * hidden);
    }
  };
  forward.pool.ParallelFor(row_count, 1, std::ref(body));
}

void AddBranch(const Forward& forward) {
  const size_t hidden = forward.config.hidden_size;
  const auto body = [&](size_t begin, size_t end) {
    for (size_t i = begin * hidden; i < end * hidden; ++i) {
      forward.scratch.hidden[i] += forward.scratch.branch[i];
    }
  };
  forward.pool.ParallelFor(forward.row_count(), 1, std::ref(body));
}

void CheckHidden(const Forward& forward, uint32_t layer_index) {
  const size_t hidden = forward.config.hidden_size;
  const auto body = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      forward.scratch.row_is_bad[row] =
          tensor::AllFinite({forward.scratch.hidden + row * hidden, hidden}) ? 0 : 1;
    }
  };
  forward.pool.ParallelFor(forward.row_count(), 1, std::ref(body));
  for (size_t row = 0; row < forward.row_count(); ++row) {
    if (forward.scratch.row_is_bad[row] == 0 || !forward.RowIsLive(row)) continue;
    const StepRow& bad = forward.scratch.rows[row];
    forward.Fail(bad.sequence,
                 Error(ErrorCode::kCorrupt,
                       fmt::format("layer {}: the residual stream of position {} holds NaN or "
                                   "infinity after it, finite numbers expected; the weights of "
                                   "this layer may be damaged",
                                   layer_index, bad.position)));
  }
}

}  // namespace smoe::model
