// engine/budget.h: divides free memory among trunk, keys and values, and the expert cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_limits.h"
#include "base/result.h"

namespace smoe::engine {

// Left to the rest of the system: page tables, other programs, the page cache.
inline constexpr uint64_t kReserveBytes = uint64_t{512} << 20;
// Keys and values at most: what a process of today's machines can address. Sums of sizes fit 64
// bits below it.
inline constexpr uint64_t kKvBytesMax = uint64_t{1} << 47;
// Room for this many tokens is the least that is worth starting with, where the model has them.
inline constexpr size_t kContextTokensMin = 512;

struct BudgetDemand {
  uint64_t trunk_bytes = 0;
  uint64_t scratch_bytes = 0;  // activations and logits of one step
  uint64_t kv_bytes_per_token = 0;
  uint64_t slot_bytes = 0;
  uint32_t expert_count = 0;  // in the store
  uint32_t top_k = 0;
  uint64_t max_positions = 0;  // of the model; 0: it does not say
  // What the user asked for; absent or 0: decided here.
  size_t context_tokens = 0;
  std::optional<uint64_t> cache_bytes;
  std::optional<uint32_t> cache_experts;
};

struct Budget {
  size_t context_tokens = 0;
  uint32_t slot_count = 0;
  std::vector<std::string> choices;   // one sentence for each decision
  std::vector<std::string> warnings;  // what was asked for and may not go well
};

// Keys and values get at most an eighth of what is free, up to the model's own limit; the cache
// gets what is left, up to all experts.
// Errors: kInvalid if both cache options are given, or one of them is less than one slot;
//         kExhausted if the context would take more than kKvBytesMax, or
//         if top_k + 1 slots do not fit, naming what would.
Result<Budget> DivideMemory(const BudgetDemand& demand, const FreeMemory& free);

}  // namespace smoe::engine
