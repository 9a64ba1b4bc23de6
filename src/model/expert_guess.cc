#include "model/expert_guess.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/bytes.h"

namespace smoe::model {

namespace {

// Of more rows, every second or nth says what they all want.
constexpr size_t kAskedRowsMax = 256;

// What is found again of what attention added for the token before: 0.94 of the synthetic model's
// attention, 0.73 to 0.92 of tiny-moe's (least squares, layer by layer).
constexpr float kCarriedAttention = 0.9F;

// A score so little above the middle between the last expert that is chosen and the first that is
// not says little.
constexpr float kHair = 1.1F;

// Half of the rank order: what lies above it is chosen. One expert more was asked for than that.
float ScoreToBeat(const float* scores, size_t top_k, GuessKind kind) {
  return kind == GuessKind::kAll ? 0.0F : kHair * std::sqrt(scores[top_k - 1] * scores[top_k]);
}

// What the router is asked about. The rows of a prompt attend to one another, and no token is the
// one before for all of them: nothing is carried to those.
const float* GuessInput(const Forward& forward, uint32_t layer_index) {
  Scratch& scratch = forward.scratch;
  const size_t hidden = forward.config.hidden_size;
  const size_t row_count = forward.row_count();
  if (row_count > experts::kGuessRowsMax) return scratch.hidden;
  const float* const before = scratch.attention_before.data() + layer_index * hidden;
  float* const in = scratch.guess_in.data();
  std::copy_n(scratch.hidden, row_count * hidden, in);
  for (size_t row = 0; row < row_count; ++row) {
    forward.kernels.add_scaled(before, kCarriedAttention, hidden, in + row * hidden);
  }
  return in;
}

// From the guesses of row_count rows, `stride` of them each, to likely_ids.
void NameLikely(const Forward& forward, size_t row_count, size_t stride, GuessKind kind) {
  Scratch& scratch = forward.scratch;
  const size_t top_k = forward.router_rule.top_k;
  scratch.likely_ids.clear();
  for (size_t rank = 0; rank < top_k; ++rank) {
    for (size_t row = 0; row < row_count; ++row) {
      const float* const scores = scratch.guessed_scores + row * stride;
      if (scores[rank] <= ScoreToBeat(scores, top_k, kind)) continue;
      scratch.likely_ids.push_back(scratch.guessed_ids[row * stride + rank]);
    }
  }
}

}  // namespace

void KeepAttention(const Forward& forward, uint32_t layer_index) {
  Scratch& scratch = forward.scratch;
  const size_t hidden = forward.config.hidden_size;
  const size_t row_count = forward.row_count();
  float* const kept = scratch.attention_before.data() + layer_index * hidden;
  std::fill_n(kept, hidden, 0.0F);
  const auto live_count = std::ranges::count(scratch.is_failed, uint8_t{0});
  if (live_count == 0) return;
  const float share = 1.0F / static_cast<float>(live_count);
  for (size_t row = 0; row < row_count; ++row) {
    const uint32_t sequence = scratch.rows[row].sequence;
    const bool is_last = row + 1 == row_count || scratch.rows[row + 1].sequence != sequence;
    if (!is_last || !forward.RowIsLive(row)) continue;
    forward.kernels.add_scaled(scratch.branch + row * hidden, share, hidden, kept);
  }
}

void GuessExperts(const Forward& forward, const LayerWeights& layer, uint32_t layer_index,
                  GuessKind kind) {
  Scratch& scratch = forward.scratch;
  const size_t stride = std::max<size_t>(1, CeilDiv(forward.row_count(), kAskedRowsMax));
  const size_t row_count = CeilDiv(forward.row_count(), stride);
  RouterRule rule = forward.router_rule;
  rule.top_k = std::min(rule.top_k + 1, rule.expert_count);
  rule.renormalise = false;
  rule.scale = 1.0F;
  if (rule.top_k == forward.router_rule.top_k) kind = GuessKind::kAll;
  // `shared` is free until the experts have run, and behind them.
  NormRows(forward, GuessInput(forward, layer_index), layer.post_norm, scratch.shared, row_count,
           stride);
  const Projection projection[] = {{&layer.router, {}, scratch.router}};
  Project(forward, {scratch.shared, row_count, forward.config.hidden_size}, projection);
  const auto route = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* const scores = scratch.guessed_scores + row * rule.top_k;
      const bool finite = RouteRow(rule, forward.kernels, scratch.router + row * rule.expert_count,
                                   scratch.guessed_ids.data() + row * rule.top_k, scores);
      if (!finite) std::fill_n(scores, rule.top_k, 0.0F);
    }
  };
  forward.pool.ParallelFor(row_count, 1, std::ref(route));
  NameLikely(forward, row_count, rule.top_k, kind);
}

}  // namespace smoe::model
