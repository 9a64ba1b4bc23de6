#include "model/forward.h"

#include <algorithm>
#include <functional>

#include "tensor/finite.h"

namespace smoe::model {

namespace {

// Output rows of a matrix that one thread takes at least.
constexpr size_t kProjectGrain = 16;

void ProjectRange(const Forward& forward, const kernels::FloatRows& x, const Projection& projection,
                  uint32_t begin, uint32_t end) {
  const size_t stride = projection.weights->rows;
  forward.kernels.matmul_f32(
      *projection.weights, x,
      {.row_begin = begin, .row_end = end, .out = projection.out, .out_stride = stride});
  if (projection.bias.empty()) return;
  for (size_t token = 0; token < x.token_count; ++token) {
    float* const out = projection.out + token * stride;
    for (uint32_t row = begin; row < end; ++row) out[row] += projection.bias[row];
  }
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
}

void NormRows(const Forward& forward, const float* in, FloatVector weight, float* out) {
  const size_t hidden = forward.config.hidden_size;
  const auto body = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      forward.kernels.rms_norm(in + row * hidden, weight.data(), forward.eps(), hidden,
                               out + row * hidden);
    }
  };
  forward.pool.ParallelFor(forward.row_count(), 1, std::ref(body));
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
