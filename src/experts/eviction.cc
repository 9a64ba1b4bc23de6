#include "experts/eviction.h"

#include <utility>

#include "base/check.h"
#include "experts/demand.h"

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
      : demand_(std::move(layer_begins)), last_pass_(demand_.layer_begins().size() - 1) {
    shares_.reserve(demand_.layer_begins().back());
  }

  void Note(const PassUse& pass) override {
    SMOE_CHECK(pass.row_counts.empty() || pass.row_counts.size() == pass.ordinals.size());
    ++pass_;
    for (const uint32_t ordinal : pass.ordinals) {
      const size_t layer = demand_.LayerOf(ordinal);
      if (last_pass_[layer] == pass_) continue;
      last_pass_[layer] = pass_;
      NoteLayer(layer, pass);
    }
  }
  double Worth(uint32_t ordinal) const override { return demand_.Forecast(ordinal); }
  double LastingWorth(uint32_t ordinal) const override { return demand_.LongShare(ordinal); }
  void Recall(uint32_t ordinal, double lasting_worth) override {
    demand_.Recall(ordinal, lasting_worth);
  }

 private:
  void NoteLayer(size_t layer, const PassUse& pass) {
    const uint32_t begin = demand_.layer_begins()[layer];
    const uint32_t end = demand_.layer_begins()[layer + 1];
    shares_.assign(end - begin, 0);
    for (size_t i = 0; i < pass.ordinals.size(); ++i) {
      const uint32_t ordinal = pass.ordinals[i];
      if (ordinal < begin || ordinal >= end) continue;
      const double row_count = pass.row_counts.empty() ? 1.0 : pass.row_counts[i];
      shares_[ordinal - begin] = row_count / pass.row_count;
    }
    demand_.Note(layer, pass.row_count, shares_);
  }

  Demand demand_;
  std::vector<uint64_t> last_pass_;  // by layer
  uint64_t pass_ = 0;
  std::vector<double> shares_;  // of one layer; room for the largest, so that no pass allocates
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
