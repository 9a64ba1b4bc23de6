#include "experts/eviction.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace smoe::experts {

namespace {

class Lru final : public EvictionPolicy {
 public:
  explicit Lru(uint32_t expert_count) : last_pass_(expert_count) {}

  void Note(const PassUse& pass) override {
    ++pass_;
    for (const uint32_t ordinal : pass.ordinals) last_pass_[ordinal] = pass_;
  }
  double Worth(uint32_t ordinal) const override { return static_cast<double>(last_pass_[ordinal]); }

 private:
  uint64_t pass_ = 0;
  std::vector<uint64_t> last_pass_;
};

class Frequency final : public EvictionPolicy {
 public:
  explicit Frequency(std::vector<uint32_t> layer_begins)
      : layer_begins_(std::move(layer_begins)),
        last_pass_(layer_begins_.size()),
        shares_(layer_begins_.back()) {}

  void Note(const PassUse& pass) override {
    SMOE_CHECK(pass.row_count > 0);
    SMOE_CHECK(pass.row_counts.empty() || pass.row_counts.size() == pass.ordinals.size());
    ++pass_;
    const double slow = Keep(kSlowHalfLifeTokens, pass.row_count);
    const double fast = Keep(kFastHalfLifeTokens, pass.row_count);
    for (const uint32_t ordinal : pass.ordinals) AgeLayerOf(ordinal, slow, fast);
    for (size_t i = 0; i < pass.ordinals.size(); ++i) {
      const double share = pass.row_counts.empty() ? 1.0 : pass.row_counts[i];
      Shares& shares = shares_[pass.ordinals[i]];
      shares.slow += (1 - slow) * share / pass.row_count;
      shares.fast += (1 - fast) * share / pass.row_count;
    }
  }
  double Worth(uint32_t ordinal) const override {
    const Shares& shares = shares_[ordinal];
    return (1 - kFastWeight) * shares.slow + kFastWeight * shares.fast;
  }
  double LastingWorth(uint32_t ordinal) const override { return shares_[ordinal].slow; }
  void Recall(uint32_t ordinal, double lasting_worth) override {
    shares_[ordinal].slow = lasting_worth;
  }

 private:
  struct Shares {
    double slow = 0;
    double fast = 0;
  };

  // What is left of an average after so many tokens.
  static double Keep(double half_life, uint32_t tokens) {
    return std::exp2(-static_cast<double>(tokens) / half_life);
  }

  // Once a pass.
  void AgeLayerOf(uint32_t ordinal, double slow, double fast) {
    const auto behind = std::upper_bound(layer_begins_.begin(), layer_begins_.end(), ordinal);
    const auto layer = static_cast<size_t>(behind - layer_begins_.begin()) - 1;
    if (last_pass_[layer] == pass_) return;
    last_pass_[layer] = pass_;
    for (uint32_t i = layer_begins_[layer]; i < layer_begins_[layer + 1]; ++i) {
      shares_[i].slow *= slow;
      shares_[i].fast *= fast;
    }
  }

  const std::vector<uint32_t> layer_begins_;
  std::vector<uint64_t> last_pass_;  // by layer
  uint64_t pass_ = 0;
  std::vector<Shares> shares_;
};

}  // namespace

const char* EvictionName(Eviction eviction) {
  return eviction == Eviction::kFrequency ? "frequency" : "lru";
}

std::optional<Eviction> EvictionFromName(std::string_view name) {
  if (name == "frequency") return Eviction::kFrequency;
  if (name == "lru") return Eviction::kLru;
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(Eviction eviction,
                                                   std::vector<uint32_t> layer_begins) {
  SMOE_CHECK(!layer_begins.empty() && layer_begins.front() == 0);
  if (eviction == Eviction::kLru) return std::make_unique<Lru>(layer_begins.back());
  return std::make_unique<Frequency>(std::move(layer_begins));
}

}  // namespace smoe::experts
