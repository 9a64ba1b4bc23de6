// engine/benchmark.h: measures an engine beside the memory that bounds it.
//
// A round reads memory plainly (base/memory_rate.h: one thread and all, huge pages and small), then
// runs one request: a prompt of random tokens and then random tokens one by one, the same in every
// round and on every machine. All of it takes turns, so that what disturbs one disturbs all;
// medians count. Nothing of it depends on what the model answers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/huge_pages.h"
#include "base/result.h"
#include "base/spread.h"
#include "engine/engine.h"

namespace smoe::engine {

inline constexpr size_t kBenchTokensMax = size_t{1} << 24;
inline constexpr size_t kBenchRoundsMax = 10000;
inline constexpr uint64_t kBenchMemoryMin = uint64_t{1} << 20;

struct BenchOptions {
  size_t prompt_tokens = 512;
  size_t decode_tokens = 64;
  size_t rounds = 5;  // measured; one more goes before them
  uint64_t seed = 1;
  uint64_t memory_bytes = 0;  // that a plain read goes through; 0: as RateBytes says
};

// Bytes per second of plain reads.
struct MemoryRates {
  uint64_t bytes = 0;       // read at a time
  bool huge_given = false;  // at least half of what was asked for
  Spread one_huge;
  Spread one_small;
  Spread all_huge;  // on as many threads as the engine has
  Spread all_small;
  // What the engine's reads compare with: the faster kind, on all of its threads.
  const Spread& bound() const { return all_huge.median >= all_small.median ? all_huge : all_small; }
};

struct BenchReport {
  BenchOptions options;
  EngineSetup setup;
  MemoryRates memory;
  PageUse trunk_pages;
  PageUse cache_pages;

  Spread first_token_seconds;  // from the request to the first token
  Spread prefill_rate;         // prompt tokens per second
  Spread decode_rate;          // tokens per second
  uint64_t prefill_operations = 0;
  uint64_t decode_bytes = 0;  // of one token, at the mean position
  StepTimes prefill;          // of all measured rounds
  StepTimes decode;
  experts::CacheStats cache;  // the same
  uint64_t decoded_count = 0;
  uint64_t prompted_count = 0;

  double DecodeBytesPerSecond() const {
    return static_cast<double>(decode_bytes) * decode_rate.median;
  }
  // Tokens per second of an engine that did nothing but read.
  double DecodeBound() const {
    return decode_bytes == 0 ? 0 : memory.bound().median / static_cast<double>(decode_bytes);
  }
  double DecodeShare() const {
    const double bound = DecodeBound();
    return bound == 0 ? 0 : decode_rate.median / bound;
  }
  double PrefillOperationsPerSecond() const {
    return options.prompt_tokens == 0
               ? 0
               : static_cast<double>(prefill_operations) * prefill_rate.median /
                     static_cast<double>(options.prompt_tokens);
  }
};

// What can be said about options without an engine. Errors: kInvalid naming the one out of its
// limits.
Status CheckBenchOptions(const BenchOptions& options);

// Requires an idle engine. Loads all experts that fit first; where not all do, the figures include
// the drive, as setup.is_resident() and cache say.
// `sink`: told how much is done, about ten times a round.
// Errors: kInvalid naming an option out of its limits, or a context that is too short; others as
//         the engine.
using BenchSink = std::function<void(uint64_t done_count, uint64_t total_count)>;
Result<BenchReport> RunBenchmark(Engine& engine, const BenchOptions& options,
                                 const BenchSink& sink);

struct RequestTimes {
  double first_token_seconds = 0;
  double decode_seconds = 0;
  EngineStats at_first_token;
};

// One request along known tokens, from an empty context: a prompt of the first `prompt_count`, then
// the others one by one. `on_step` hears of each step. Errors: as the engine, or the request's own.
Result<RequestTimes> RunKnownTokens(Engine& engine, std::span<const uint32_t> tokens,
                                    size_t prompt_count, const std::function<void()>& on_step);

// `count` ids below vocab_size, the same for a seed everywhere.
std::vector<uint32_t> RandomTokens(uint64_t seed, size_t count, uint32_t vocab_size);

}  // namespace smoe::engine
