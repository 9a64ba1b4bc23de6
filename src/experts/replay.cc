#include "experts/replay.h"

#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "experts/shadow_cache.h"

namespace smoe::experts {

namespace {

// The passes of a trace in the order of decoding: token by token, layer by layer.
class Passes {
 public:
  explicit Passes(const Trace& trace) : trace_(trace), ordinals_(trace.top_k) {}

  size_t count() const { return trace_.token_count() * trace_.layers.size(); }
  uint32_t expert_count() const {
    return static_cast<uint32_t>(trace_.layers.size()) * trace_.expert_count;
  }
  size_t TokenOf(size_t pass) const { return pass / trace_.layers.size(); }

  // Valid until the next call.
  PassUse At(size_t pass) {
    const auto layer = static_cast<uint32_t>(pass % trace_.layers.size());
    const uint32_t first = layer * trace_.expert_count;
    for (size_t i = 0; i < ordinals_.size(); ++i) {
      ordinals_[i] = first + trace_.expert_ids[pass * trace_.top_k + i];
    }
    return {.row_count = 1, .ordinals = ordinals_, .row_counts = {}};
  }

 private:
  const Trace& trace_;
  std::vector<uint32_t> ordinals_;
};

// Worth: how soon the expert is wanted again.
class Belady final : public EvictionPolicy {
 public:
  explicit Belady(Passes passes)
      : next_use_(passes.expert_count(), kNever), use_after_(passes.count()) {
    for (size_t pass = passes.count(); pass-- > 0;) {
      const PassUse use = passes.At(pass);
      for (const uint32_t ordinal : use.ordinals) {
        use_after_[pass].push_back(next_use_[ordinal]);
        next_use_[ordinal] = pass;
      }
    }
  }

  void Note(const PassUse& pass) override {
    for (size_t i = 0; i < pass.ordinals.size(); ++i) {
      next_use_[pass.ordinals[i]] = use_after_[pass_][i];
    }
    ++pass_;
  }
  double Worth(uint32_t ordinal) const override { return -static_cast<double>(next_use_[ordinal]); }

 private:
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<size_t> next_use_;                // by ordinal, as of the pass that is running
  std::vector<std::vector<size_t>> use_after_;  // by pass, in the order of its experts
  size_t pass_ = 0;
};

ReplayCounts Run(Passes passes, EvictionPolicy& policy, uint32_t slot_count, size_t skip) {
  ShadowCache cache(passes.expert_count(), slot_count, policy);
  ReplayCounts counts;
  for (size_t pass = 0; pass < passes.count(); ++pass) {
    const PassUse use = passes.At(pass);
    policy.Note(use);
    const uint32_t missed = cache.Pass(use.ordinals);
    if (passes.TokenOf(pass) < skip) continue;
    counts.wanted_count += use.ordinals.size();
    counts.miss_count += missed;
  }
  return counts;
}

}  // namespace

ReplayCounts Replay(const Trace& trace, Eviction eviction, uint32_t slot_count, size_t skip) {
  const Passes passes(trace);
  std::vector<uint32_t> layer_begins;
  for (uint32_t layer = 0; layer <= trace.layers.size(); ++layer) {
    layer_begins.push_back(layer * trace.expert_count);
  }
  const auto policy = MakeEvictionPolicy(eviction, std::move(layer_begins));
  return Run(passes, *policy, slot_count, skip);
}

ReplayCounts ReplayBelady(const Trace& trace, uint32_t slot_count, size_t skip) {
  const Passes passes(trace);
  Belady policy(passes);
  return Run(passes, policy, slot_count, skip);
}

}  // namespace smoe::experts
