// experts/eviction.h: which expert goes when a slot is needed.
//
// A policy watches every pass and gives each expert a worth; the resident expert of least worth
// goes first. Worth never depends on what is resident, so that one policy can serve the cache and
// any number of shadow caches beside it.
//
// kFrequency: worth is what experts/demand.h forecasts: how many of the next few tokens choose the
// expert, by how many did over three spans of time, and how much each of these says about what
// comes. Plain recency forgets what is always in demand, plain frequency does not see that a token
// likes the experts of the one before it. docs/streaming.md compares them on traces.
//
// Threads: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace smoe::experts {

// One pass, as the router asked for it.
struct PassUse {
  uint32_t row_count = 1;                // tokens of the pass
  std::span<const uint32_t> ordinals;    // distinct
  std::span<const uint32_t> row_counts;  // tokens that chose each of them; empty: one each
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;

  // Called once for each pass, before worths are asked for. Cost: O(experts of its layers).
  virtual void Note(const PassUse& pass) = 0;
  // Of the expert with this ordinal, from 0 up. Among equals the lower ordinal goes first.
  virtual double Worth(uint32_t ordinal) const = 0;

  // The part of a worth that outlasts the next few tokens, to be kept from run to run, and how it
  // is taken up again before the first pass. A policy that knows no such thing says 0.
  virtual double LastingWorth(uint32_t) const { return 0; }
  virtual void Recall(uint32_t, double) {}

 protected:
  EvictionPolicy() = default;
};

enum class Eviction : uint8_t { kFrequency, kLru };
const char* EvictionName(Eviction eviction);  // "frequency", "lru"
std::optional<Eviction> EvictionFromName(std::string_view name);

// `layer_begins`: each layer's first ordinal, ascending from 0, and behind them the number of
// experts.
std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(Eviction eviction,
                                                   std::vector<uint32_t> layer_begins);

}  // namespace smoe::experts
