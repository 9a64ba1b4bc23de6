#include "engine/budget.h"

#include <algorithm>

#include "base/bytes.h"

namespace smoe::engine {

namespace {

constexpr uint64_t kKvShareDivisor = 8;

size_t ChooseContext(const BudgetDemand& demand, uint64_t free_bytes) {
  if (demand.context_tokens != 0) return demand.context_tokens;
  const uint64_t affordable =
      free_bytes / kKvShareDivisor / std::max<uint64_t>(1, demand.kv_bytes_per_token);
  const uint64_t room = std::max<uint64_t>(affordable, kContextTokensMin);
  return demand.max_positions == 0 ? room : std::min(room, demand.max_positions);
}

// The slots that the user asked for, or nullopt.
Result<std::optional<uint64_t>> AskedSlots(const BudgetDemand& demand) {
  if (demand.cache_bytes && demand.cache_experts) {
    return Invalid("--cache and --cache-experts: both given, expected one of them");
  }
  if (demand.cache_experts) {
    if (*demand.cache_experts == 0) return Invalid("--cache-experts: 0, expected at least 1");
    return std::optional<uint64_t>(*demand.cache_experts);
  }
  if (!demand.cache_bytes) return std::optional<uint64_t>();
  const uint64_t slots = *demand.cache_bytes / demand.slot_bytes;
  if (slots == 0) {
    return Invalid("--cache: {} hold no expert, one takes {}", SizeText(*demand.cache_bytes),
                   SizeText(demand.slot_bytes));
  }
  return std::optional<uint64_t>(slots);
}

}  // namespace

Result<Budget> DivideMemory(const BudgetDemand& demand, const FreeMemory& free) {
  Budget budget;
  budget.context_tokens = ChooseContext(demand, free.bytes);
  const std::optional<uint64_t> kv_bytes =
      CheckedMul(budget.context_tokens, demand.kv_bytes_per_token);
  if (!kv_bytes || *kv_bytes > kKvBytesMax) {
    return Exhausted("--context: {} tokens of {} each asked, at most {} can be addressed",
                     budget.context_tokens, SizeText(demand.kv_bytes_per_token),
                     kKvBytesMax / demand.kv_bytes_per_token);
  }
  budget.choices.push_back(fmt::format("memory: {} free ({})", SizeText(free.bytes), free.reason));
  budget.choices.push_back(fmt::format("context: {} tokens, {} of keys and values",
                                       budget.context_tokens, SizeText(*kv_bytes)));

  SMOE_TRY_ASSIGN(const std::optional<uint64_t> asked, AskedSlots(demand));
  const uint64_t fixed = demand.trunk_bytes + demand.scratch_bytes + kReserveBytes + *kv_bytes;
  const uint64_t affordable = (free.bytes - std::min(free.bytes, fixed)) / demand.slot_bytes;
  const uint64_t least = std::min(demand.top_k + 1, demand.expert_count);
  if (!asked && affordable < least) {
    return Exhausted(
        "memory: {} free ({}), the smallest that works is {}: trunk {}, keys and values {}, {} "
        "experts of {}, and {} for the system; lower --context or free memory",
        SizeText(free.bytes), free.reason, SizeText(fixed + least * demand.slot_bytes),
        SizeText(demand.trunk_bytes), SizeText(*kv_bytes), least, SizeText(demand.slot_bytes),
        SizeText(kReserveBytes));
  }
  const uint64_t slots = std::min<uint64_t>(asked.value_or(affordable), demand.expert_count);
  budget.slot_count = static_cast<uint32_t>(slots);
  budget.choices.push_back(fmt::format("expert cache: {} of {} experts, {} ({})", slots,
                                       demand.expert_count, SizeText(slots * demand.slot_bytes),
                                       asked ? "as asked" : "what fits"));
  if (asked && slots > affordable) {
    budget.warnings.push_back(fmt::format(
        "expert cache: {} asked, {} fit beside the rest in {} free ({}); the system may swap, or "
        "end the program",
        SizeText(slots * demand.slot_bytes), SizeText(affordable * demand.slot_bytes),
        SizeText(free.bytes), free.reason));
  }
  if (slots < least) {
    budget.choices.push_back(fmt::format(
        "expert cache: fewer slots than top_k + 1 = {}, so reads wait for arithmetic", least));
  }
  return budget;
}

}  // namespace smoe::engine
