#include "engine/budget.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/forecast.h"

namespace smoe::engine {

namespace {

constexpr uint64_t kKvShareDivisor = 8;
constexpr uint64_t kMiB = uint64_t{1} << 20;
// The load's page cache is left alone where this many times the trunk is free beside everything:
// the file's matrices may be wider than the ones in memory.
constexpr uint64_t kTrunkPagesMultiple = 4;

// What is touched next of the cache, of keys and values, of activations and of the heap takes whole
// huge pages: more than kSpareDivisor leaves of little memory.
constexpr uint64_t kSpareBytesMin = 12 * kMiB;

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

Status CheckContext(const BudgetDemand& demand) {
  const auto bytes = CheckedMul(demand.context_tokens, demand.kv_bytes_per_token);
  if (!bytes || *bytes > kKvBytesMax) {
    return Exhausted("--context: {} tokens of {} each asked, at most {} can be addressed",
                     demand.context_tokens, SizeText(demand.kv_bytes_per_token),
                     kKvBytesMax / demand.kv_bytes_per_token);
  }
  const auto limit = CheckedMul(demand.max_positions, demand.request_count);
  if (demand.max_positions == 0 || !limit || demand.context_tokens <= *limit) return Ok();
  return Invalid(
      "--context: {} tokens asked, the model was made for {} (max_position_embeddings in its "
      "config); ask for at most {}",
      demand.context_tokens, demand.max_positions, *limit);
}

// A way to divide, but for the cache.
struct Division {
  size_t context_tokens = 0;
  size_t chunk_tokens = 0;
};

class Divider {
 public:
  Divider(const BudgetDemand& demand, const MemoryLimit& limit, std::optional<uint64_t> asked_slots)
      : demand_(demand),
        limit_(limit),
        asked_slots_(asked_slots),
        least_slots_(asked_slots.value_or(std::min(demand.top_k + 1, demand.expert_count))) {}

  uint64_t least_slots() const { return least_slots_; }

  uint64_t ProgramBytes() const {
    const uint64_t whole = std::max(kProgramBytes, limit_.held_bytes + limit_.held_bytes / 2);
    // Else what is held already is not part of the amount.
    return limit_.is_asked ? whole : whole - std::min(whole, limit_.held_bytes);
  }
  uint64_t KvBytes(size_t context_tokens) const {
    return (context_tokens + demand_.kv_spare_tokens) * demand_.kv_bytes_per_token;
  }
  uint64_t PageCacheBytes() const { return demand_.reads_page_cache ? kPageCacheBytes : 0; }
  uint64_t TableBytes(const Division& division, uint64_t slots) const {
    return (demand_.trunk_bytes + KvBytes(division.context_tokens) +
            demand_.scratch_bytes(division.chunk_tokens) + slots * demand_.slot_bytes) /
           kPageTableDivisor;
  }
  uint64_t Sum(const Division& division, uint64_t slots) const {
    return ProgramBytes() + limit_.system_bytes + demand_.trunk_bytes +
           KvBytes(division.context_tokens) + demand_.scratch_bytes(division.chunk_tokens) +
           PageCacheBytes() + slots * demand_.slot_bytes + TableBytes(division, slots);
  }
  bool Fits(const Division& division, uint64_t slots) const {
    return Sum(division, slots) <= limit_.bytes;
  }

  // The most slots that fit, up to all experts.
  uint64_t AffordableSlots(const Division& division) const {
    const uint64_t fixed = Sum(division, 0);
    const uint64_t left = limit_.bytes - std::min(limit_.bytes, fixed);
    uint64_t slots = std::min<uint64_t>(left / demand_.slot_bytes, demand_.expert_count);
    while (slots > 0 && !Fits(division, slots)) --slots;
    return slots;
  }

  Division Least() const {
    return {demand_.context_tokens != 0 ? demand_.context_tokens : Cut(kContextTokensMin),
            demand_.chunk_tokens != 0 ? demand_.chunk_tokens : kChunkTokensMin};
  }

  Division Best() const {
    Division division = Least();
    division.context_tokens = BestContext(division);
    if (demand_.chunk_tokens == 0) division.chunk_tokens = BestChunk(division.context_tokens);
    return division;
  }

 private:
  size_t Cut(uint64_t tokens) const {
    return demand_.max_positions == 0 ? tokens : std::min(tokens, demand_.max_positions);
  }

  size_t BestContext(const Division& least) const {
    if (demand_.context_tokens != 0) return demand_.context_tokens;
    const uint64_t eighth =
        limit_.bytes / kKvShareDivisor / std::max<uint64_t>(1, demand_.kv_bytes_per_token);
    size_t tokens = std::max(Cut(std::min(eighth, kKvBytesMax)), least.context_tokens);
    if (Fits({tokens, kChunkTokensDefault}, asked_slots_.value_or(demand_.expert_count))) {
      return tokens;
    }
    tokens = std::max(std::min(tokens, kContextTokensTight), least.context_tokens);
    while (tokens > least.context_tokens && !Fits({tokens, least.chunk_tokens}, least_slots_)) {
      tokens = std::max(tokens / 2, least.context_tokens);
    }
    return tokens;
  }

  // Experts that the weighed request reads.
  double Reads(size_t chunk, uint64_t slots) const {
    const double experts = demand_.expert_count;
    const double layers = demand_.layer_count;
    const double cached = static_cast<double>(slots) / experts;
    const double chunks =
        std::ceil(static_cast<double>(kWeighedPromptTokens) / static_cast<double>(chunk));
    const double wanted =
        layers * UnionCount(experts / layers, demand_.top_k, static_cast<double>(chunk));
    return chunks * wanted * (1 - cached) +
           kWeighedAnswerTokens * layers * demand_.top_k * (1 - SkewedHitShare(cached));
  }

  size_t BestChunk(size_t context_tokens) const {
    const auto reads = [&](size_t chunk) {
      const Division division = {context_tokens, chunk};
      const uint64_t slots = asked_slots_.value_or(AffordableSlots(division));
      const bool fits = slots >= least_slots_ && Fits(division, slots);
      return fits ? Reads(chunk, std::min<uint64_t>(slots, demand_.expert_count)) : INFINITY;
    };
    size_t best = kChunkTokensDefault;
    double least = reads(best);
    for (size_t chunk = kChunkTokensMin; chunk <= kChunkTokensMax; chunk *= 2) {
      const double count = reads(chunk);
      if (count >= least) continue;
      best = chunk;
      least = count;
    }
    return best;
  }

  const BudgetDemand& demand_;
  const MemoryLimit& limit_;
  const std::optional<uint64_t> asked_slots_;
  const uint64_t least_slots_;
};

// What to change, by what was asked for.
std::string Remedies(const BudgetDemand& demand, const MemoryLimit& limit) {
  std::string text =
      limit.is_asked ? "raise --memory" : "free memory, raise the limit that is named";
  if (demand.chunk_tokens > kChunkTokensMin) text += ", lower --chunk";
  if (demand.context_tokens > kContextTokensMin) text += ", lower --context";
  return text + ", or take a narrower --trunk-format";
}

Error TooSmall(const Divider& divider, const BudgetDemand& demand, const MemoryLimit& limit) {
  const Division least = divider.Least();
  const uint64_t slots = divider.least_slots();
  return {ErrorCode::kExhausted,
          fmt::format(
              "memory: {} ({}), the smallest that works is {}MiB: program {}, left to the system "
              "{}, trunk {}, keys and values of {} tokens {}, activations {}, {} experts of {}, "
              "page tables {}{}; {}",
              SizeText(limit.bytes), limit.reason, CeilDiv(divider.Sum(least, slots), kMiB),
              SizeText(divider.ProgramBytes()), SizeText(limit.system_bytes),
              SizeText(demand.trunk_bytes), least.context_tokens,
              SizeText(divider.KvBytes(least.context_tokens)),
              SizeText(demand.scratch_bytes(least.chunk_tokens)), slots,
              SizeText(demand.slot_bytes), SizeText(divider.TableBytes(least, slots)),
              demand.reads_page_cache ? ", page cache " + SizeText(divider.PageCacheBytes()) : "",
              Remedies(demand, limit))};
}

void WriteLines(const Divider& divider, const BudgetDemand& demand, Budget* budget) {
  const Division division = {budget->context_tokens, budget->chunk_tokens};
  const uint64_t slots = budget->slot_count;
  const auto add = [&](std::string name, uint64_t bytes, std::string note) {
    budget->lines.push_back({std::move(name), bytes, std::move(note)});
  };
  add("program", divider.ProgramBytes(),
      budget->limit.is_asked ? "all it holds beside the lines below" : "beside what it holds now");
  if (budget->limit.system_bytes != 0) add("system", budget->limit.system_bytes, "left to others");
  add("page tables", divider.TableBytes(division, slots), "");
  add("trunk", demand.trunk_bytes, "");
  add("keys and values", divider.KvBytes(division.context_tokens),
      fmt::format("{} tokens", division.context_tokens));
  add("activations", demand.scratch_bytes(division.chunk_tokens),
      fmt::format("chunks of {} tokens", division.chunk_tokens));
  add("page cache", divider.PageCacheBytes(),
      demand.reads_page_cache ? "experts are read through it" : "direct reads go past it");
  const uint32_t most = budget->slot_count_max;
  add("expert cache", slots * demand.slot_bytes,
      fmt::format("{} of {} experts of {}{}", slots, demand.expert_count,
                  SizeText(demand.slot_bytes),
                  most == slots ? "" : fmt::format("; {} until the rest is touched", most)));
}

// A slot that is added has page tables too.
uint64_t SlotCost(const BudgetDemand& demand) {
  return demand.slot_bytes + CeilDiv(demand.slot_bytes, kPageTableDivisor);
}

}  // namespace

MemoryLimit LimitOf(std::optional<uint64_t> asked, const FreeMemory& free, uint64_t held_bytes) {
  if (asked) return {*asked, "--memory", true, held_bytes, 0};
  const bool is_bound = free.reason.starts_with("limited");
  return {free.bytes, free.reason, false, held_bytes, is_bound ? 0 : kReserveBytes};
}

uint64_t Budget::used_bytes() const {
  uint64_t sum = 0;
  for (const BudgetLine& line : lines) sum += line.bytes;
  return sum;
}

std::string Budget::Table() const {
  std::string table;
  for (const BudgetLine& line : lines) {
    table += fmt::format("{:<16} {:>11}  {}", line.name, SizeText(line.bytes), line.note);
    table.erase(table.find_last_not_of(' ') + 1);
    table += '\n';
  }
  return table + fmt::format("{:<16} {:>11}  of {} ({})\n", "sum", SizeText(used_bytes()),
                             SizeText(limit.bytes), limit.reason);
}

namespace {

Result<Budget> Divide(const BudgetDemand& demand, const MemoryLimit& limit) {
  SMOE_TRY(CheckContext(demand));
  SMOE_TRY_ASSIGN(const std::optional<uint64_t> asked, AskedSlots(demand));
  const Divider divider(demand, limit, asked);
  const uint64_t least = std::min(demand.top_k + 1, demand.expert_count);
  if (!asked && !divider.Fits(divider.Least(), least)) {
    return Unexpected(TooSmall(divider, demand, limit));
  }
  const Division division = divider.Best();
  const uint64_t affordable = divider.AffordableSlots(division);
  const uint64_t slots = std::min<uint64_t>(asked.value_or(affordable), demand.expert_count);
  Budget budget;
  budget.limit = limit;
  budget.context_tokens = division.context_tokens;
  budget.request_tokens = division.context_tokens;
  if (demand.max_positions != 0) {
    budget.request_tokens = std::min(budget.request_tokens, demand.max_positions);
  }
  budget.chunk_tokens = division.chunk_tokens;
  budget.slot_count = static_cast<uint32_t>(slots);
  budget.slot_count_min = static_cast<uint32_t>(std::min(slots, least));
  budget.slot_count_max = SlotsBeside(demand, budget, 1, 1);
  WriteLines(divider, demand, &budget);
  const uint64_t left = limit.bytes - std::min(limit.bytes, budget.used_bytes());
  budget.drops_page_cache = left < kTrunkPagesMultiple * demand.trunk_bytes;

  budget.choices.push_back(
      fmt::format("memory: {} to divide ({})", SizeText(limit.bytes), limit.reason));
  for (const BudgetLine& line : budget.lines) {
    budget.choices.push_back(fmt::format("memory: {} {}{}", line.name, SizeText(line.bytes),
                                         line.note.empty() ? "" : fmt::format(" ({})", line.note)));
  }
  if (asked && slots > affordable) {
    budget.warnings.push_back(fmt::format(
        "expert cache: {} asked, {} fit beside the rest in {} ({}); the system may swap, or "
        "end the program",
        SizeText(slots * demand.slot_bytes), SizeText(affordable * demand.slot_bytes),
        SizeText(limit.bytes), limit.reason));
  }
  if (slots < least) {
    budget.choices.push_back(fmt::format(
        "expert cache: fewer slots than top_k + 1 = {}, so reads wait for arithmetic", least));
  }
  return budget;
}

bool FitsWhole(const BudgetDemand& demand, const Budget& budget) {
  const bool is_asked = demand.cache_bytes || demand.cache_experts;
  return is_asked ? budget.warnings.empty() : budget.slot_count == demand.expert_count;
}

}  // namespace

Result<Budget> DivideMemory(const BudgetDemand& demand, const MemoryLimit& limit) {
  Result<Budget> whole = Divide(demand, limit);
  const bool fits = whole.has_value() && FitsWhole(demand, *whole);
  if (demand.embedding_bytes == 0 || fits) return whole;
  SMOE_CHECK(demand.embedding_bytes <= demand.trunk_bytes);
  BudgetDemand rest = demand;
  rest.trunk_bytes -= demand.embedding_bytes;
  SMOE_TRY_ASSIGN(Budget budget, Divide(rest, limit));
  budget.leaves_embedding = true;
  const auto trunk = std::ranges::find(budget.lines, "trunk", &BudgetLine::name);
  trunk->note =
      fmt::format("the embedding stays on the drive: {} less", SizeText(demand.embedding_bytes));
  budget.choices.push_back(
      fmt::format("embedding: on the drive, a row for each token: {} less in memory",
                  SizeText(demand.embedding_bytes)));
  return budget;
}

uint32_t SlotsBeside(const BudgetDemand& demand, const Budget& budget, size_t row_count,
                     uint64_t kv_tokens) {
  const bool is_asked = demand.cache_bytes || demand.cache_experts;
  if (is_asked || !demand.touched_bytes) return budget.slot_count;
  const auto untouched = [](uint64_t all, uint64_t touched) {
    return all - std::min(all, touched);
  };
  const uint64_t lent = untouched(demand.scratch_bytes(budget.chunk_tokens),
                                  demand.touched_bytes(row_count, budget.chunk_tokens)) +
                        untouched(budget.context_tokens, kv_tokens) * demand.kv_bytes_per_token;
  return static_cast<uint32_t>(
      std::min<uint64_t>(budget.slot_count + lent / SlotCost(demand),
                         std::max(budget.slot_count, demand.expert_count)));
}

uint32_t SlotsBesideHeld(const BudgetDemand& demand, const Budget& budget, uint64_t held_bytes) {
  if (!budget.limit.is_asked || demand.cache_bytes || demand.cache_experts) return 0;
  const uint64_t spare = std::max(budget.limit.bytes / kSpareDivisor, kSpareBytesMin);
  const uint64_t left = budget.limit.bytes - std::min(budget.limit.bytes, spare + held_bytes);
  return static_cast<uint32_t>(std::min<uint64_t>(left / SlotCost(demand), demand.expert_count));
}

}  // namespace smoe::engine
