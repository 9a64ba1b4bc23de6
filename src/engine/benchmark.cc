#include "engine/benchmark.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/memory_limits.h"
#include "base/memory_rate.h"
#include "base/stopwatch.h"
#include "engine/cache_figures.h"

namespace smoe::engine {

namespace {

constexpr int kReadsPerRound = 3;    // of each kind: one takes less time than the shortest request
constexpr double kGivenShare = 0.5;  // of what was asked for, to call huge pages given

Status CheckContext(const BenchOptions& options, const Engine& engine) {
  const size_t needed = options.prompt_tokens + options.decode_tokens + 1;
  if (needed <= engine.context_tokens()) return Ok();
  return Invalid("--context: {} tokens, --prompt {} and --tokens {} need {}",
                 engine.context_tokens(), options.prompt_tokens, options.decode_tokens, needed);
}

// Plain reads of memory in both kinds of pages.
class Meters {
 public:
  // asked_bytes: 0 for what the caches and free memory suggest.
  static Result<Meters> Create(size_t thread_count, uint64_t asked_bytes) {
    SMOE_TRY_ASSIGN(auto one, ThreadPool::Create(1));
    SMOE_TRY_ASSIGN(auto all, ThreadPool::Create(thread_count));
    SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
    const uint64_t bytes =
        asked_bytes != 0 ? asked_bytes : RateBytes(LargestCacheBytes(), free.bytes);
    SMOE_TRY_ASSIGN(auto huge, MemoryRateMeter::Create({.bytes = bytes, .huge_pages = true}, *all));
    SMOE_TRY_ASSIGN(auto small,
                    MemoryRateMeter::Create({.bytes = bytes, .huge_pages = false}, *all));
    return Meters(std::move(one), std::move(all), std::move(huge), std::move(small));
  }

  void Read() {
    for (int i = 0; i < kReadsPerRound; ++i) {
      one_huge_.push_back(huge_.Read(*one_).bytes_per_second);
      all_huge_.push_back(huge_.Read(*all_).bytes_per_second);
      one_small_.push_back(small_.Read(*one_).bytes_per_second);
      all_small_.push_back(small_.Read(*all_).bytes_per_second);
    }
  }

  Result<MemoryRates> Rates() const {
    SMOE_TRY_ASSIGN(const PageUse pages, ReadPageUse(huge_.memory()));
    return MemoryRates{.bytes = huge_.memory().size(),
                       .huge_given = pages.HugeShare() >= kGivenShare,
                       .one_huge = SpreadOf(one_huge_),
                       .one_small = SpreadOf(one_small_),
                       .all_huge = SpreadOf(all_huge_),
                       .all_small = SpreadOf(all_small_)};
  }

 private:
  Meters(std::unique_ptr<ThreadPool> one, std::unique_ptr<ThreadPool> all, MemoryRateMeter huge,
         MemoryRateMeter small)
      : one_(std::move(one)),
        all_(std::move(all)),
        huge_(std::move(huge)),
        small_(std::move(small)) {}

  std::unique_ptr<ThreadPool> one_;
  std::unique_ptr<ThreadPool> all_;
  MemoryRateMeter huge_;
  MemoryRateMeter small_;
  std::vector<double> one_huge_, one_small_, all_huge_, all_small_;
};

// Tells how far the whole is, with one unit for each token and each expert.
class Progress {
 public:
  Progress(const BenchOptions& options, uint64_t expert_count, size_t chunk, const BenchSink& sink)
      : per_prompt_step_(std::min(options.prompt_tokens, chunk)),
        per_round_(options.prompt_tokens + options.decode_tokens),
        prompt_tokens_(options.prompt_tokens),
        total_(expert_count + per_round_ * (options.rounds + 1)),
        sink_(sink) {}

  void Loaded(uint64_t count) { Set(count); }
  void BeginRound(uint64_t experts, size_t round) {
    Set(experts + per_round_ * round);
    round_end_ = done_ + per_round_;
    prompt_end_ = done_ + prompt_tokens_;
  }
  void Step() {
    Set(std::min(done_ < prompt_end_ ? std::min(done_ + per_prompt_step_, prompt_end_) : done_ + 1,
                 round_end_));
  }

 private:
  void Set(uint64_t done) {
    done_ = done;
    sink_(done_, total_);
  }

  const uint64_t per_prompt_step_;
  const uint64_t per_round_;
  const uint64_t prompt_tokens_;
  const uint64_t total_;
  const BenchSink& sink_;
  uint64_t done_ = 0;
  uint64_t prompt_end_ = 0;
  uint64_t round_end_ = 0;
};

// Operations of the whole prompt: its last row alone goes through the head.
uint64_t PrefillOperations(const TokenCost& cost, uint64_t tokens) {
  const uint64_t seen = tokens * (tokens + 1) / 2;  // each row sees itself and those before it
  return tokens * cost.operations + seen * cost.operations_per_position + cost.head_operations;
}

}  // namespace

Status CheckBenchOptions(const BenchOptions& options) {
  if (options.prompt_tokens == 0 || options.prompt_tokens > kBenchTokensMax) {
    return Invalid("--prompt: {}, expected 1 to {} tokens", options.prompt_tokens, kBenchTokensMax);
  }
  if (options.decode_tokens == 0 || options.decode_tokens > kBenchTokensMax) {
    return Invalid("--tokens: {}, expected 1 to {}", options.decode_tokens, kBenchTokensMax);
  }
  if (options.rounds == 0 || options.rounds > kBenchRoundsMax) {
    return Invalid("--rounds: {}, expected 1 to {}", options.rounds, kBenchRoundsMax);
  }
  if (options.memory_bytes != 0 && options.memory_bytes < kBenchMemoryMin) {
    return Invalid("--read: {}, expected at least {}", SizeText(options.memory_bytes),
                   SizeText(kBenchMemoryMin));
  }
  return Ok();
}

std::vector<uint32_t> RandomTokens(uint64_t seed, size_t count, uint32_t vocab_size) {
  // Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators (SplitMix64).
  std::vector<uint32_t> tokens(count);
  uint64_t state = seed;
  for (uint32_t& token : tokens) {
    state += 0x9e3779b97f4a7c15;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    token = static_cast<uint32_t>((x >> 32) * vocab_size >> 32);
  }
  return tokens;
}

Result<RequestTimes> RunKnownTokens(Engine& engine, std::span<const uint32_t> tokens,
                                    size_t prompt_count, const std::function<void()>& on_step) {
  const auto prompt = tokens.first(prompt_count);
  const auto known = tokens.subspan(prompt_count);
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.continuation.assign(known.begin(), known.end());
  request.shares_prefix = false;
  // The first token comes with the prompt's last step, each further one takes a step of its own.
  request.token_count_max = known.size() + 1;
  RequestTimes times;
  Stopwatch stopwatch;
  SMOE_TRY(engine.Submit(std::move(request)));
  while (!engine.idle()) {
    SMOE_TRY_ASSIGN(const std::span<const TokenEvent> events, engine.Step());
    for (const TokenEvent& event : events) {
      if (event.error) return Unexpected(*event.error);
      if (times.first_token_seconds != 0) continue;
      times.first_token_seconds = stopwatch.seconds();
      times.at_first_token = engine.stats();
      stopwatch = Stopwatch();
    }
    on_step();
  }
  times.decode_seconds = stopwatch.seconds();
  return times;
}

Result<BenchReport> RunBenchmark(Engine& engine, const BenchOptions& options,
                                 const BenchSink& sink) {
  SMOE_TRY(CheckBenchOptions(options));
  SMOE_TRY(CheckContext(options, engine));
  BenchReport report;
  report.options = options;
  report.setup = engine.setup();
  const std::vector<uint32_t> tokens = RandomTokens(
      options.seed, options.prompt_tokens + options.decode_tokens, engine.config().vocab_size);
  const uint64_t expert_count = report.setup.slot_count;
  Progress progress(options, expert_count, report.setup.chunk_tokens, sink);
  SMOE_TRY(engine.LoadExperts([&](uint64_t done, uint64_t) { progress.Loaded(done); }));
  SMOE_TRY_ASSIGN(Meters meters, Meters::Create(report.setup.thread_count, options.memory_bytes));

  std::vector<double> first, prefill, decode;
  EngineStats before;
  for (size_t round = 0; round <= options.rounds; ++round) {
    progress.BeginRound(expert_count, round);
    if (round == 1) before = engine.stats();
    if (round != 0) meters.Read();
    SMOE_TRY_ASSIGN(const RequestTimes times, RunKnownTokens(engine, tokens, options.prompt_tokens,
                                                             [&] { progress.Step(); }));
    if (round == 0) continue;  // touches memory for the first time
    first.push_back(times.first_token_seconds);
    prefill.push_back(static_cast<double>(options.prompt_tokens) / times.first_token_seconds);
    decode.push_back(static_cast<double>(options.decode_tokens) / times.decode_seconds);
  }
  const EngineStats after = engine.stats();
  SMOE_TRY_ASSIGN(report.memory, meters.Rates());
  SMOE_TRY_ASSIGN(report.trunk_pages, engine.trunk_pages());
  SMOE_TRY_ASSIGN(report.cache_pages, engine.cache_pages());
  report.first_token_seconds = SpreadOf(std::move(first));
  report.prefill_rate = SpreadOf(std::move(prefill));
  report.decode_rate = SpreadOf(std::move(decode));
  const TokenCost& cost = report.setup.token_cost;
  report.prefill_operations = PrefillOperations(cost, options.prompt_tokens);
  report.decode_bytes = cost.DecodeBytes(static_cast<double>(options.prompt_tokens) +
                                         static_cast<double>(options.decode_tokens + 1) / 2);
  report.prefill = after.prefill.Since(before.prefill);
  report.decode = after.decode.Since(before.decode);
  report.cache = CacheSince(before.cache, after.cache);
  report.decoded_count = options.rounds * options.decode_tokens;
  report.prompted_count = options.rounds * options.prompt_tokens;
  return report;
}

}  // namespace smoe::engine
