#include "experts/demand.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace smoe::experts {

namespace {

// Keeps a solution finite where histories are all alike; far below what tells them apart.
constexpr double kRidge = 1e-6;

// What is left of an average after so many tokens.
double Keep(double half_life, double tokens) { return std::exp2(-tokens / half_life); }

double Dot(const Histories& a, const Histories& b) {
  double sum = 0;
  for (size_t i = 0; i < kHistoryCount; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void WorthWeights::Fade(double keep) {
  for (Histories& row : moments_) {
    for (double& moment : row) moment *= keep;
  }
  for (double& outcome : outcomes_) outcome *= keep;
}

void WorthWeights::AddInput(const Histories& x) {
  for (size_t i = 0; i < kHistoryCount; ++i) {
    for (size_t j = 0; j < kHistoryCount; ++j) moments_[i][j] += x[i] * x[j];
  }
}

void WorthWeights::AddOutcome(const Histories& z, double came) {
  for (size_t i = 0; i < kHistoryCount; ++i) outcomes_[i] += z[i] * came;
}

// By elimination; the moments, with the ridge, are positive definite.
Histories WorthWeights::Solve() const {
  std::array<Histories, kHistoryCount> rows = moments_;
  Histories right = outcomes_;
  double trace = 0;
  for (size_t i = 0; i < kHistoryCount; ++i) trace += moments_[i][i];
  if (!(trace > 0)) return kFirstWeights;
  for (size_t i = 0; i < kHistoryCount; ++i) rows[i][i] += kRidge * trace;
  for (size_t pivot = 0; pivot < kHistoryCount; ++pivot) {
    for (size_t row = 0; row < kHistoryCount; ++row) {
      if (row == pivot) continue;
      const double factor = rows[row][pivot] / rows[pivot][pivot];
      for (size_t i = 0; i < kHistoryCount; ++i) rows[row][i] -= factor * rows[pivot][i];
      right[row] -= factor * right[pivot];
    }
  }
  Histories weights;
  for (size_t i = 0; i < kHistoryCount; ++i) weights[i] = right[i] / rows[i][i];
  return weights;
}

Demand::Demand(std::vector<uint32_t> layer_begins)
    : layer_begins_(std::move(layer_begins)),
      seen_(layer_begins_.size() - 1),
      experts_(layer_begins_.back()),
      forecasts_(layer_begins_.back()) {}

size_t Demand::LayerOf(uint32_t ordinal) const {
  const auto behind = std::upper_bound(layer_begins_.begin(), layer_begins_.end(), ordinal);
  return static_cast<size_t>(behind - layer_begins_.begin()) - 1;
}

Histories Demand::SharesOf(size_t layer, const Expert& expert) const {
  Histories shares;
  for (size_t i = 0; i < kHistoryCount; ++i) {
    shares[i] = seen_[layer][i] > 0 ? expert.sums[i] / seen_[layer][i] : 0;
  }
  return shares;
}

// Tokens of one pass are taken for alike: their fading sum is a share times that of ones.
void Demand::Note(size_t layer, uint32_t row_count, std::span<const double> shares) {
  SMOE_CHECK(row_count > 0 && layer < seen_.size());
  SMOE_CHECK(shares.size() == layer_begins_[layer + 1] - layer_begins_[layer]);
  Histories keep;
  for (size_t i = 0; i < kHistoryCount; ++i) {
    keep[i] = Keep(kHistoryHalfLives[i], row_count);
    seen_[layer][i] = keep[i] * seen_[layer][i] + 1 - keep[i];
  }
  const double input_share = 1 - Keep(kForecastHalfLife, 1);
  const double input_keep = Keep(kForecastHalfLife, row_count);
  const double outcome_sum = (1 - input_keep) / input_share;
  least_squares_.Fade(Keep(kWeightsHalfLife, 1.0 / static_cast<double>(seen_.size())));
  for (size_t e = 0; e < shares.size(); ++e) {
    const size_t ordinal = layer_begins_[layer] + e;
    Expert& expert = experts_[ordinal];
    if (shares[e] > 0) least_squares_.AddOutcome(expert.inputs, shares[e] * outcome_sum);
    for (size_t i = 0; i < kHistoryCount; ++i) {
      expert.sums[i] = keep[i] * expert.sums[i] + (1 - keep[i]) * shares[e];
    }
    const Histories x = SharesOf(layer, expert);
    least_squares_.AddInput(x);
    for (size_t i = 0; i < kHistoryCount; ++i) {
      expert.inputs[i] = input_keep * expert.inputs[i] + input_share * x[i];
    }
    forecasts_[ordinal] = Dot(weights_, x);
  }
  Learn();
}

void Demand::Learn() {
  ++pass_count_;
  const uint64_t layer_count = seen_.size();
  if (pass_count_ < kPassesBeforeLearning * layer_count) return;
  if (pass_count_ % (kPassesBetweenLearning * layer_count) != 0) return;
  weights_ = least_squares_.Solve();
}

double Demand::LongShare(uint32_t ordinal) const {
  return SharesOf(LayerOf(ordinal), experts_[ordinal])[0];
}

void Demand::Recall(uint32_t ordinal, double share) {
  if (!(share > 0)) return;
  seen_[LayerOf(ordinal)][0] = kRecalledWeight;
  experts_[ordinal].sums[0] = share * kRecalledWeight;
  forecasts_[ordinal] = weights_[0] * share;
}

}  // namespace smoe::experts
