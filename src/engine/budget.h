// engine/budget.h: divides one amount of memory among everything that a model takes.
//
// The amount is --memory, or what the cgroups and MemAvailable leave. It is divided among
//
//   program        code, heap, tokenizer, thread stacks, rings, buffers of the load: kProgramBytes,
//                  or what the process holds already and half as much again, if that is more
//   page tables    1/kPageTableDivisor of all the rest
//   system         left to others where the machine's own memory is the limit: kReserveBytes
//   trunk          all of it, anonymous; without the embedding where not all experts fit beside it:
//                  a token needs a row of that, and all of an expert
//   keys, values   the context, with the parts of attention that grow with it
//   activations    of a step: the prompt's chunk decides
//   page cache     only where experts are read through it
//   expert cache   what is left, in whole slots
//
// The chunk is chosen against the cache: each chunk of a prompt reads the union of its experts, so
// a larger one saves reads, until the slots that it costs lose more in decoding than it saves.
//
// Activations and keys and values are counted at their largest, and take memory as they are
// touched. What they have not touched yet is lent to the expert cache: SlotsBeside.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_limits.h"
#include "base/result.h"

namespace smoe::engine {

// Left to the rest of the system where MemAvailable is the limit: other programs, the page cache.
inline constexpr uint64_t kReserveBytes = uint64_t{512} << 20;
inline constexpr uint64_t kProgramBytes = uint64_t{64} << 20;
// A page of 4 KiB costs 8 bytes of tables, a huge page a table kept in reserve: 1/512. Twice that.
inline constexpr uint64_t kPageTableDivisor = 256;
// What reads through the page cache need at least to go well.
inline constexpr uint64_t kPageCacheBytes = uint64_t{64} << 20;
// Keys and values at most: what a process of today's machines can address. Sums of sizes fit 64
// bits below it.
inline constexpr uint64_t kKvBytesMax = uint64_t{1} << 47;
// Room for this many tokens is the least that is worth starting with, where the model has them.
inline constexpr size_t kContextTokensMin = 512;
// Where not all experts fit, the context takes no more than this unasked.
inline constexpr size_t kContextTokensTight = 4096;
// Chunks that are tried, each twice the one before.
inline constexpr size_t kChunkTokensMin = 32;
inline constexpr size_t kChunkTokensMax = 1024;
// Where all experts fit and no chunk reads less: experts of more rows are unpacked less often. With
// 512 they take 11 to 33 % less time than with 256, on AMX, AVX-512 and AVX2 (docs/kernels.md).
inline constexpr size_t kChunkTokensDefault = 512;
// A request that the chunk is weighed for.
inline constexpr size_t kWeighedPromptTokens = 1024;
inline constexpr size_t kWeighedAnswerTokens = 256;

// The amount to be divided.
struct MemoryLimit {
  uint64_t bytes = 0;
  std::string reason;         // "--memory", or as FreeMemory has it
  bool is_asked = false;      // by --memory: the whole process, with what it holds already
  uint64_t held_bytes = 0;    // by the process now; part of `bytes` only if that was asked
  uint64_t system_bytes = 0;  // of `bytes`, left to others
};

// `asked`: --memory. Else what is free; the reserve for the system only where no cgroup binds.
MemoryLimit LimitOf(std::optional<uint64_t> asked, const FreeMemory& free, uint64_t held_bytes);

struct BudgetDemand {
  uint64_t trunk_bytes = 0;
  uint64_t embedding_bytes = 0;  // of the trunk: what leaving the embedding on the drive saves
  // Activations and logits of a step, given the chunk; grows with it.
  std::function<uint64_t(size_t chunk_tokens)> scratch_bytes = [](size_t) { return 0; };
  // Of them, what steps of at most so many rows ever touch.
  // Absent: all of them.
  std::function<uint64_t(size_t row_count, size_t chunk_tokens)> touched_bytes;
  uint64_t kv_bytes_per_token = 0;
  uint64_t kv_spare_tokens = 0;  // for last pages that are not full
  uint64_t slot_bytes = 0;
  uint32_t expert_count = 0;  // in the store
  uint32_t layer_count = 1;   // with experts
  uint32_t top_k = 0;
  uint64_t max_positions = 0;     // of the model; 0: it does not say
  uint32_t request_count = 1;     // that run at once, each with up to max_positions tokens
  bool reads_page_cache = false;  // experts come through it
  // What the user asked for; absent or 0: decided here.
  size_t context_tokens = 0;
  size_t chunk_tokens = 0;
  std::optional<uint64_t> cache_bytes;
  std::optional<uint32_t> cache_experts;
};

struct BudgetLine {
  std::string name;
  uint64_t bytes = 0;
  std::string note;  // "4096 tokens", may be empty
};

struct Budget {
  size_t context_tokens = 0;  // over all requests
  size_t request_tokens = 0;  // of one: the same, but no more than the model has positions
  size_t chunk_tokens = 0;
  uint32_t slot_count = 0;      // beside everything else at its largest
  uint32_t slot_count_max = 0;  // while no step has touched more than a token's worth of the rest
  uint32_t slot_count_min = 0;  // that a guard should leave: top_k + 1
  MemoryLimit limit;
  std::vector<BudgetLine> lines;  // the division; sums up to at most limit.bytes
  uint64_t used_bytes() const;    // of all lines
  bool leaves_embedding = false;  // on the drive; the demand's trunk is so much smaller
  // Whether pages that the load leaves in the page cache would be in the way.
  bool drops_page_cache = false;
  std::vector<std::string> choices;   // one sentence for each decision
  std::vector<std::string> warnings;  // what was asked for and may not go well

  std::string Table() const;  // a line for each part, and the sum
};

// A context that nobody asked for is at most an eighth of the memory, and at most
// kContextTokensTight where not all experts fit; it shrinks to kContextTokensMin before anything is
// refused.
// Errors: kInvalid if both cache options are given, or one of them is less than one slot;
//         kExhausted if the context would take more than kKvBytesMax, or
//         if top_k + 1 slots do not fit: names the smallest size that works, in whole MiB,
//         with the embedding on the drive if it may be there.
// Requires embedding_bytes <= trunk_bytes.
Result<Budget> DivideMemory(const BudgetDemand& demand, const MemoryLimit& limit);

// Slots that fit beside what was really touched of activations and of keys and values: memory that
// a long prompt or a long context will need holds experts until then. `row_count` is that of the
// largest step so far, `kv_tokens` those whose pages were ever taken. From slot_count to
// slot_count_max; slot_count where the user asked for a cache of some size.
uint32_t SlotsBeside(const BudgetDemand& demand, const Budget& budget, size_t row_count,
                     uint64_t kv_tokens);

// Slots that fit beside what is really held, where that is less than was counted: the program takes
// less than kProgramBytes, and huge pages are seldom touched where they may be. `held_bytes`: of
// the process, without the cache. 1/kSpareDivisor of the amount is left, 12 MiB at least. 0 where
// the amount is not the process's own (--memory), or the user asked for a cache of some size.
inline constexpr uint64_t kSpareDivisor = 64;
uint32_t SlotsBesideHeld(const BudgetDemand& demand, const Budget& budget, uint64_t held_bytes);

}  // namespace smoe::engine
