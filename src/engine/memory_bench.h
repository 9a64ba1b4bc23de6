// engine/memory_bench.h: one model under several amounts of memory, beside drive and DRAM.
//
// A round opens the engine anew for each amount, one after the other, and runs the same request:
// a prompt of random tokens, then random tokens one by one. An amount that holds fewer than all
// experts begins with an empty cache, as a program that was just started does; the resident one
// with all experts loaded and a request behind it. A second prompt of other random tokens follows
// on the same engine, as a program that runs on has it: its cache holds what the first request
// left, and no page is touched for the first time. Before and after each request random experts are
// read, and memory plainly: a run is held against the rates beside it, since drives and virtual
// machines change from minute to minute.
//
// The bounds, in seconds:
//   decode    max(needed bytes / drive, active bytes / DRAM) of a token
//   prefill   max(needed bytes / drive, the resident prefill) of a prompt; without a resident
//             amount in the list the drive alone; the second prompt the same
// Needed bytes are those of experts that were wanted and not in memory; what was read in vain is
// read, and not needed. Source: docs/streaming.md, "The bound".
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/spread.h"
#include "engine/benchmark.h"
#include "engine/engine.h"
#include "engine/machine_rates.h"

namespace smoe::engine {

inline constexpr size_t kMemorySizesMax = 32;

struct MemoryBenchOptions {
  BenchOptions bench;                          // its memory_bytes: as MeasureDram has it
  EngineOptions engine;                        // its memory_bytes does not matter
  std::vector<std::optional<uint64_t>> sizes;  // nothing: all experts in memory
  double drive_seconds = kDriveSampleSeconds;
};

// One phase of one request.
struct PhaseRun {
  double seconds = 0;
  uint64_t token_count = 0;
  experts::CacheStats cache;  // of this phase alone
  uint64_t needed_bytes = 0;
  double drive_seconds = 0;  // that the needed bytes take by the rates beside the run
  double other_seconds = 0;  // that memory (decode), or arithmetic (prefill; 0: not known) takes

  double BoundSeconds() const { return std::max(drive_seconds, other_seconds); }
  double Share() const { return seconds > 0 ? BoundSeconds() / seconds : 0; }
};

// The runs of a phase, summed up.
struct PhaseFigures {
  std::vector<PhaseRun> runs;

  Spread Seconds() const;
  Spread TokensPerSecond() const;
  Spread DriveRate() const;  // bytes read by the seconds of the phase
  Spread BoundTokensPerSecond() const;
  Spread Share() const;          // of the bound, 0 to 1
  double HitShare() const;       // of all wanted experts
  double ForeseenShare() const;  // the same
  double WaitShare() const;      // of the time
  double ReadBytesPerToken() const;
  bool IsDriveBound() const;  // in most of the runs
};

struct MemoryRow {
  std::optional<uint64_t> memory_bytes;  // nothing: all experts
  std::optional<Error> refused;          // then nothing else is known
  EngineSetup setup;
  bool is_preloaded = false;
  uint64_t peak_bytes = 0;    // of the process in the runs of this row; 0: not known
  Spread open_seconds;        // opening the model, before the request
  uint64_t decode_bytes = 0;  // that a token reads from memory
  PhaseFigures prefill;
  PhaseFigures decode;
  PhaseFigures next_prefill;  // of the second prompt
};

struct MemoryBenchReport {
  MemoryBenchOptions options;
  bool is_direct = false;  // else the page cache was emptied of the store before each request
  bool knows_arithmetic = false;  // a resident amount was among them
  Spread drive_rate;
  Spread dram_rate;
  std::vector<MemoryRow> rows;  // in the order of the sizes
};

// `open`: gives the model's files, anew each time. An amount that is too small is a row that says
// so, found before anything is measured; the others go on.
// Errors: kInvalid naming an option; kExhausted if every amount is refused, with all the reasons;
//         others as the engine.
using OpenFilesFunction = std::function<Result<store::ModelFiles>()>;
Result<MemoryBenchReport> RunMemoryBench(const OpenFilesFunction& open,
                                         const MemoryBenchOptions& options, const BenchSink& sink);

}  // namespace smoe::engine
