#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace smoe::engine {

namespace {

// Of two candidates the likelier comes first, and the lower id where they are equal.
struct LikelierFirst {
  const std::vector<float>& logits;
  bool operator()(uint32_t a, uint32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// Most distributions reach any top_p within a few hundred candidates: sort no more than needed.
constexpr size_t kFirstSortCount = 256;

Result<uint32_t> GreedyToken(std::span<const float> logits) {
  size_t best = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id])) return Corrupt("logit of token {}: NaN, expected a number", id);
    if (logits[id] > logits[best]) best = id;
  }
  if (!std::isfinite(logits[best])) {
    return Corrupt("logits: largest is {} at token {}, expected a finite number", logits[best],
                   best);
  }
  return static_cast<uint32_t>(best);
}

}  // namespace

Status CheckSamplerOptions(const SamplerOptions& options) {
  const auto in_range = [](double value, double low, double high) {
    return value >= low && value <= high;  // false for NaN
  };
  if (options.temperature != 0 &&
      !in_range(options.temperature, kTemperatureMin, kTemperatureMax)) {
    return Invalid("temperature: {}, expected 0 (greedy) or {} to {}", options.temperature,
                   kTemperatureMin, kTemperatureMax);
  }
  if (!in_range(options.top_p, 0, 1) || options.top_p == 0) {
    return Invalid("top_p: {}, expected above 0 and at most 1 (off)", options.top_p);
  }
  if (!in_range(options.min_p, 0, 1)) {
    return Invalid("min_p: {}, expected 0 (off) to 1", options.min_p);
  }
  if (!in_range(options.repetition_penalty, kRepetitionPenaltyMin, kRepetitionPenaltyMax)) {
    return Invalid("repetition_penalty: {}, expected {} to {}, 1 is off",
                   options.repetition_penalty, kRepetitionPenaltyMin, kRepetitionPenaltyMax);
  }
  return Ok();
}

Sampler::Sampler(const SamplerOptions& options, size_t vocab_size,
                 const kernels::KernelTable& kernels)
    : options_(options),
      kernels_(kernels),
      random_state_(options.seed),
      logits_(vocab_size),
      order_(vocab_size),
      weights_(vocab_size),
      seen_(vocab_size, false) {}

Result<uint32_t> Sampler::Sample(std::span<const float> logits, std::span<const uint32_t> history) {
  SMOE_CHECK(logits.size() == logits_.size());
  std::copy(logits.begin(), logits.end(), logits_.begin());
  Penalise(history);
  SMOE_TRY_ASSIGN(const uint32_t greedy, GreedyToken(logits_));
  if (options_.temperature == 0) return greedy;
  const auto scale = static_cast<float>(1.0 / options_.temperature);
  for (float& logit : logits_) logit *= scale;
  return Draw();
}

// A seen token's logit is divided by the penalty if positive, else multiplied, once.
void Sampler::Penalise(std::span<const uint32_t> history) {
  if (options_.repetition_penalty == 1) return;
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (uint32_t id : history) {
    if (id >= logits_.size() || seen_[id]) continue;
    seen_[id] = true;
    logits_[id] = logits_[id] > 0 ? logits_[id] / penalty : logits_[id] * penalty;
  }
  for (uint32_t id : history) {
    if (id < logits_.size()) seen_[id] = false;
  }
}

// Keeps the top_k likeliest, and all that equal the last of them; returns how many.
size_t Sampler::KeepTopK(size_t count) {
  const size_t k = options_.top_k;
  if (k == 0 || k >= count) return count;
  const auto first = order_.begin();
  const auto kth = first + static_cast<ptrdiff_t>(k - 1);
  const auto last = first + static_cast<ptrdiff_t>(count);
  std::nth_element(first, kth, last, LikelierFirst{logits_});
  const float threshold = logits_[*kth];
  const auto end =
      std::partition(kth + 1, last, [&](uint32_t id) { return logits_[id] == threshold; });
  return static_cast<size_t>(end - first);
}

// Keeps the shortest head of the sorted candidates whose probability reaches top_p.
size_t Sampler::KeepTopP(size_t count) {
  const auto first = order_.begin();
  const auto last = first + static_cast<ptrdiff_t>(count);
  size_t sorted = 0;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i == sorted) {
      sorted = std::min(count, std::max(kFirstSortCount, 4 * sorted));
      std::partial_sort(first + static_cast<ptrdiff_t>(i), first + static_cast<ptrdiff_t>(sorted),
                        last, LikelierFirst{logits_});
    }
    sum += static_cast<double>(weights_[order_[i]]);
    if (sum >= options_.top_p) return i + 1;
  }
  return count;
}

uint32_t Sampler::Draw() {
  std::iota(order_.begin(), order_.end(), 0u);
  size_t count = KeepTopK(order_.size());
  // Probabilities over the candidates: everything else is made impossible first.
  std::fill(weights_.begin(), weights_.end(), -INFINITY);
  for (size_t i = 0; i < count; ++i) weights_[order_[i]] = logits_[order_[i]];
  kernels_.softmax(weights_.data(), weights_.size());
  if (options_.top_p < 1) count = KeepTopP(count);
  if (options_.min_p > 0) {
    float best = 0;
    for (size_t i = 0; i < count; ++i) best = std::max(best, weights_[order_[i]]);
    const float threshold = best * static_cast<float>(options_.min_p);
    const auto end = std::partition(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(count),
                                    [&](uint32_t id) { return weights_[id] >= threshold; });
    count = static_cast<size_t>(end - order_.begin());
  }
  // Drawn in the order of ids, so that the result does not depend on how the candidates were cut.
  std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(count));
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += static_cast<double>(weights_[order_[i]]);
  double left = NextUniform() * total;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= static_cast<double>(weights_[order_[i]]);
    if (left < 0) return order_[i];
  }
  return order_[count - 1];
}

// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
double Sampler::NextUniform() {
  random_state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = random_state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

}  // namespace smoe::engine
