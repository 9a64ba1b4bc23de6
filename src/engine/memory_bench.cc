#include "engine/memory_bench.h"

#include <algorithm>
#include <utility>

#include "base/memory_limits.h"
#include "base/memory_pressure.h"
#include "base/stopwatch.h"
#include "engine/budget.h"
#include "engine/cache_figures.h"
#include "engine/model_demand.h"
#include "engine/refusals.h"

namespace smoe::engine {

namespace {

double Sum(const std::vector<PhaseRun>& runs, auto part) {
  double sum = 0;
  for (const PhaseRun& run : runs) sum += static_cast<double>(part(run));
  return sum;
}

Spread SpreadBy(const std::vector<PhaseRun>& runs, auto figure) {
  std::vector<double> values;
  for (const PhaseRun& run : runs) values.push_back(figure(run));
  return SpreadOf(std::move(values));
}

experts::CacheStats CacheOf(const std::vector<PhaseRun>& runs) {
  experts::CacheStats sum;
  for (const PhaseRun& run : runs) sum = CacheSum(sum, run.cache);
  return sum;
}

// What happened between two looks at an engine.
PhaseRun RunBetween(const EngineStats& before, const EngineStats& after, double seconds,
                    uint64_t token_count, uint64_t expert_bytes) {
  const experts::CacheStats cache = CacheSince(before.cache, after.cache);
  return {.seconds = seconds,
          .token_count = token_count,
          .cache = cache,
          .needed_bytes = (cache.miss_count + cache.prefetch_hit_count) * expert_bytes};
}

Unexpected NotAllFit(uint64_t slot_count, uint64_t expert_count) {
  return Exhausted("all: {} of {} experts fit what is free; leave it out, or free memory",
                   slot_count, expert_count);
}

// One request on one engine.
struct SizeRun {
  EngineSetup setup;
  double open_seconds = 0;
  uint64_t peak_bytes = 0;
  PhaseRun prefill;
  PhaseRun decode;
  PhaseRun next_prefill;
};

class MemoryBench {
 public:
  MemoryBench(const OpenFilesFunction& open, const MemoryBenchOptions& options,
              const BenchSink& sink)
      : open_(open), options_(options), sink_(sink) {}

  Result<MemoryBenchReport> Run() {
    report_.options = options_;
    SMOE_TRY_ASSIGN(meter_files_, open_());
    report_.is_direct = meter_files_.experts->direct_io();
    tokens_ = RandomTokens(options_.bench.seed,
                           options_.bench.prompt_tokens + options_.bench.decode_tokens,
                           meter_files_.config.vocab_size);
    next_tokens_ = RandomTokens(options_.bench.seed + 1, options_.bench.prompt_tokens,
                                meter_files_.config.vocab_size);
    for (const auto& size : options_.sizes) {
      report_.rows.emplace_back().memory_bytes = size;
    }
    SMOE_TRY(RefuseTooSmall());
    runs_.resize(report_.rows.size());
    for (size_t round = 0; round < options_.bench.rounds; ++round) SMOE_TRY(RunRound());
    SMOE_TRY(CheckAnyFits(report_.rows));
    for (size_t i = 0; i < runs_.size(); ++i) Fill(runs_[i], &report_.rows[i]);
    SetPrefillBounds();
    report_.drive_rate = SpreadOf(drive_rates_);
    report_.dram_rate = SpreadOf(dram_rates_);
    return std::move(report_);
  }

 private:
  // Before minutes go into the others.
  Status RefuseTooSmall() {
    SMOE_TRY_ASSIGN(const BudgetDemand demand, DemandOfFiles(meter_files_, options_.engine));
    SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
    for (MemoryRow& row : report_.rows) {
      Result<Budget> budget =
          DivideMemory(demand, LimitOf(row.memory_bytes, free, ResidentBytes()));
      if (budget && !row.memory_bytes && budget->slot_count_max < demand.expert_count) {
        budget = NotAllFit(budget->slot_count_max, demand.expert_count);
      }
      if (budget) continue;
      if (budget.error().code() != ErrorCode::kExhausted) {
        return Unexpected(std::move(budget.error()));
      }
      row.refused = std::move(budget.error());
    }
    return CheckAnyFits(report_.rows);
  }

  Status RunRound() {
    SMOE_TRY(MeasureRates());
    for (size_t i = 0; i < report_.rows.size(); ++i) {
      MemoryRow& row = report_.rows[i];
      if (row.refused) continue;
      const double drive_before = drive_rates_.back();
      const double dram_before = dram_rates_.back();
      Result<SizeRun> run = RunSize(row.memory_bytes);
      done_count_ = (finished_count_ += tokens_.size());
      sink_(done_count_, total_count());
      if (!run && run.error().code() == ErrorCode::kExhausted) {
        row.refused = std::move(run.error());
        continue;
      }
      if (!run) return Unexpected(std::move(run.error()));
      SMOE_TRY(MeasureRates());
      SetDecodeBound((drive_before + drive_rates_.back()) / 2,
                     (dram_before + dram_rates_.back()) / 2, &*run);
      runs_[i].push_back(std::move(*run));
    }
    return Ok();
  }

  // Memory and drive of a shared machine change within a minute.
  Status MeasureRates() {
    SMOE_TRY_ASSIGN(const double dram,
                    MeasureDram(options_.engine.thread_count, options_.bench.memory_bytes));
    dram_rates_.push_back(dram);
    SMOE_TRY_ASSIGN(const double rate, MeasureStoreReads(*meter_files_.experts, options_.engine.io,
                                                         options_.drive_seconds));
    drive_rates_.push_back(rate);
    return Ok();
  }

  Result<SizeRun> RunSize(std::optional<uint64_t> memory_bytes) {
    SizeRun run;
    (void)ResetPeakResident();
    const Stopwatch stopwatch;
    SMOE_TRY_ASSIGN(store::ModelFiles files, open_());
    const uint64_t expert_bytes =
        files.experts->Locate({files.experts->layers().front().layer_index, 0}).read_bytes();
    EngineOptions options = options_.engine;
    options.memory_bytes = memory_bytes;
    SMOE_TRY_ASSIGN(const auto engine, Engine::Open(std::move(files), options));
    run.open_seconds = stopwatch.seconds();
    run.setup = engine->setup();
    if (!memory_bytes) {
      if (!run.setup.is_resident()) {
        return NotAllFit(run.setup.slot_count, run.setup.expert_count);
      }
      SMOE_TRY(engine->LoadExperts([](uint64_t, uint64_t) {}));
      SMOE_TRY(RunKnownTokens(*engine, tokens_, options_.bench.prompt_tokens, [] {}));
    }
    if (!report_.is_direct) DropStoreFromPageCache(*meter_files_.experts);
    const EngineStats before = engine->stats();
    SMOE_TRY_ASSIGN(const RequestTimes times,
                    RunKnownTokens(*engine, tokens_, options_.bench.prompt_tokens, [&] {
                      // A chunk is a step, and so is a token: the bar moves, and lags in prompts.
                      done_count_ = std::min(done_count_ + 1, finished_count_ + tokens_.size());
                      sink_(done_count_, total_count());
                    }));
    run.prefill = RunBetween(before, times.at_first_token, times.first_token_seconds,
                             options_.bench.prompt_tokens, expert_bytes);
    run.decode = RunBetween(times.at_first_token, engine->stats(), times.decode_seconds,
                            options_.bench.decode_tokens, expert_bytes);
    const EngineStats behind = engine->stats();
    SMOE_TRY_ASSIGN(const RequestTimes next,
                    RunKnownTokens(*engine, next_tokens_, next_tokens_.size(), [] {}));
    run.next_prefill = RunBetween(behind, next.at_first_token, next.first_token_seconds,
                                  next_tokens_.size(), expert_bytes);
    run.peak_bytes = PeakResidentBytes();
    return run;
  }

  uint64_t total_count() const {
    return options_.bench.rounds * report_.rows.size() * tokens_.size();
  }

  uint64_t DecodeBytes(const EngineSetup& setup) const {
    return setup.token_cost.DecodeBytes(static_cast<double>(options_.bench.prompt_tokens) +
                                        static_cast<double>(options_.bench.decode_tokens + 1) / 2);
  }

  // Of the prompt only the drive's part; the other is known at the end.
  void SetDecodeBound(double drive, double dram, SizeRun* run) const {
    for (PhaseRun* phase : {&run->prefill, &run->decode, &run->next_prefill}) {
      phase->drive_seconds = Over(static_cast<double>(phase->needed_bytes), drive);
    }
    run->decode.other_seconds = Over(
        static_cast<double>(run->decode.token_count) * static_cast<double>(DecodeBytes(run->setup)),
        dram);
  }

  void Fill(const std::vector<SizeRun>& runs, MemoryRow* row) const {
    std::vector<double> open;
    for (const SizeRun& run : runs) {
      row->prefill.runs.push_back(run.prefill);
      row->decode.runs.push_back(run.decode);
      row->next_prefill.runs.push_back(run.next_prefill);
      row->peak_bytes = std::max(row->peak_bytes, run.peak_bytes);
      row->setup = run.setup;
      open.push_back(run.open_seconds);
    }
    if (runs.empty()) return;
    row->is_preloaded = !row->memory_bytes;
    row->decode_bytes = DecodeBytes(row->setup);
    row->open_seconds = SpreadOf(std::move(open));
  }

  // No prompt is faster than one whose experts are all there.
  void SetPrefillBounds() {
    double resident_seconds = 0;
    double next_resident_seconds = 0;
    for (const MemoryRow& row : report_.rows) {
      if (!row.is_preloaded) continue;
      resident_seconds = row.prefill.Seconds().median;
      next_resident_seconds = row.next_prefill.Seconds().median;
    }
    report_.knows_arithmetic = resident_seconds > 0;
    for (MemoryRow& row : report_.rows) {
      for (PhaseRun& run : row.prefill.runs) run.other_seconds = resident_seconds;
      for (PhaseRun& run : row.next_prefill.runs) run.other_seconds = next_resident_seconds;
    }
  }

  const OpenFilesFunction& open_;
  const MemoryBenchOptions& options_;
  const BenchSink& sink_;
  store::ModelFiles meter_files_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> next_tokens_;
  std::vector<std::vector<SizeRun>> runs_;  // beside the report's rows
  std::vector<double> drive_rates_;
  std::vector<double> dram_rates_;
  uint64_t done_count_ = 0;
  uint64_t finished_count_ = 0;
  MemoryBenchReport report_;
};

}  // namespace

Spread PhaseFigures::Seconds() const {
  return SpreadBy(runs, [](const PhaseRun& run) { return run.seconds; });
}

Spread PhaseFigures::TokensPerSecond() const {
  return SpreadBy(runs, [](const PhaseRun& run) {
    return Over(static_cast<double>(run.token_count), run.seconds);
  });
}

Spread PhaseFigures::DriveRate() const {
  return SpreadBy(runs, [](const PhaseRun& run) {
    return Over(static_cast<double>(run.cache.read_bytes), run.seconds);
  });
}

Spread PhaseFigures::BoundTokensPerSecond() const {
  return SpreadBy(runs, [](const PhaseRun& run) {
    return Over(static_cast<double>(run.token_count), run.BoundSeconds());
  });
}

Spread PhaseFigures::Share() const {
  return SpreadBy(runs, [](const PhaseRun& run) { return run.Share(); });
}

double PhaseFigures::HitShare() const { return engine::HitShare(CacheOf(runs)); }

double PhaseFigures::ForeseenShare() const { return engine::ForeseenShare(CacheOf(runs)); }

double PhaseFigures::WaitShare() const {
  return Over(1e-9 * static_cast<double>(CacheOf(runs).wait_ns),
              Sum(runs, [](const PhaseRun& run) { return run.seconds; }));
}

double PhaseFigures::ReadBytesPerToken() const {
  return Over(static_cast<double>(CacheOf(runs).read_bytes),
              Sum(runs, [](const PhaseRun& run) { return run.token_count; }));
}

bool PhaseFigures::IsDriveBound() const {
  const auto count = std::ranges::count_if(
      runs, [](const PhaseRun& run) { return run.drive_seconds > run.other_seconds; });
  return 2 * static_cast<size_t>(count) > runs.size();
}

Result<MemoryBenchReport> RunMemoryBench(const OpenFilesFunction& open,
                                         const MemoryBenchOptions& options, const BenchSink& sink) {
  SMOE_TRY(CheckBenchOptions(options.bench));
  if (options.sizes.empty() || options.sizes.size() > kMemorySizesMax) {
    return Invalid("--memory: {} sizes, expected 1 to {}", options.sizes.size(), kMemorySizesMax);
  }
  return MemoryBench(open, options, sink).Run();
}

}  // namespace smoe::engine
