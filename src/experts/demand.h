// experts/demand.h: which experts the next tokens will choose, learned from those before.
//
// Of each expert three histories are kept: the share of its layer's tokens that chose it, averaged
// with half-lives of 1024, 64 and 2 tokens. Some experts are always in demand, some while a subject
// lasts, and a token likes the experts of the one before it. How much each history says about what
// comes differs from model to model, so it is learned: a forecast is the weighted sum of the three,
// with the weights that least squares finds for what came,
//
//   forecast(now) = w . x(now)    ~    sum over tokens k = 1, 2, ... of (1 - g) g^(k-1) chosen(k)
//
// where g has a half-life of 3 tokens, and one w serves all experts. With z the fading sum of the
// x of earlier tokens, w solves (sum of x x^T) w = sum of z chosen; both sums forget with a
// half-life of 4096 passes, of one token or of a chunk.
// Source: J. A. Boyan, Machine Learning 49 (2002), the least-squares form of TD(1).
//
// Numbers depend on what was noted alone, not on time or threads. Threads: one owner.
// Cost of a pass: O(experts of its layer), some 15 operations each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace smoe::experts {

inline constexpr size_t kHistoryCount = 3;
using Histories = std::array<double, kHistoryCount>;

inline constexpr Histories kHistoryHalfLives = {1024, 64, 2};  // tokens
inline constexpr Histories kFirstWeights = {0.75, 0, 0.25};    // until enough is noted
inline constexpr double kForecastHalfLife = 3;                 // tokens ahead
inline constexpr double kWeightsHalfLife = 4096;               // passes, each through all layers
inline constexpr uint32_t kPassesBeforeLearning = 32;          // likewise
inline constexpr uint32_t kPassesBetweenLearning = 16;         // likewise
inline constexpr double kRecalledWeight = 0.25;  // of an average, what a recalled share counts for

// Weights by least squares, from sums that forget.
class WorthWeights {
 public:
  // Fades what was added by `keep`.
  void Fade(double keep);
  void AddInput(const Histories& x);
  // `came`: what was chosen, for a fading sum z of inputs before.
  void AddOutcome(const Histories& z, double came);
  // kFirstWeights if nothing was added.
  Histories Solve() const;

 private:
  std::array<Histories, kHistoryCount> moments_ = {};
  Histories outcomes_ = {};
};

class Demand {
 public:
  // `layer_begins`: each layer's first ordinal, ascending from 0, and behind them the number of
  // experts.
  explicit Demand(std::vector<uint32_t> layer_begins);

  // A pass of row_count tokens, at least one, through a layer. shares: how many of them chose each
  // expert of the layer, 0 to 1; as many as it has experts (checked). No allocation.
  void Note(size_t layer, uint32_t row_count, std::span<const double> shares);
  // As of the last pass through the expert's layer.
  double Forecast(uint32_t ordinal) const { return forecasts_[ordinal]; }

  // The share of tokens that chose the expert, from the slowest history; 0 if nothing was noted.
  double LongShare(uint32_t ordinal) const;
  // Before the first pass: a share known from an earlier run. Shares of 0 are not known.
  void Recall(uint32_t ordinal, double share);

  const std::vector<uint32_t>& layer_begins() const { return layer_begins_; }
  size_t LayerOf(uint32_t ordinal) const;

 private:
  struct Expert {
    Histories sums = {};    // fading; a share is what they are of seen_
    Histories inputs = {};  // z above
  };
  Histories SharesOf(size_t layer, const Expert& expert) const;
  void Learn();

  const std::vector<uint32_t> layer_begins_;
  std::vector<Histories> seen_;  // by layer: how much of each average has been seen, 0 to 1
  std::vector<Expert> experts_;
  std::vector<double> forecasts_;
  WorthWeights least_squares_;
  Histories weights_ = kFirstWeights;
  uint64_t pass_count_ = 0;
};

}  // namespace smoe::experts
