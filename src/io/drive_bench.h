// io/drive_bench.h: random reads of a file in many ways, beside each other.
//
// Every cell is measured once in each round, the rounds in different random orders: a drive that
// bursts, tires or is shared does it to all alike, and medians over the rounds count.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/spread.h"
#include "io/direct_io.h"
#include "io/read_setting.h"

namespace smoe::io {

struct DriveCell {
  ReadSetting setting;      // depth: reads in flight
  uint64_t read_bytes = 0;  // of each read
  bool registered = false;  // file and memory were registered with the ring
  std::string refused;      // why there is no figure; empty: there is
  Spread bytes_per_second;
  Spread cpu_seconds_per_gb;
};

struct DriveBenchOptions {
  uint32_t round_count = 5;
  double cell_seconds = 0.1;  // of one cell in one round
  uint64_t seed = 1;
};

struct DriveReport {
  std::string path;
  uint64_t file_bytes = 0;
  DirectAlignment alignment;
  DirectEvidence evidence = DirectEvidence::kBuffered;
  std::vector<DriveCell> cells;
};

// Reads go into 256 MiB in turn, so that none lands in what the processor's caches still hold.
// `on_cell` gets how many cells are done, and of how many.
// Errors: kInvalid if the file is smaller than the reads are; kIo if a read fails; kExhausted.
Result<DriveReport> MeasureDrive(const std::string& path, const DriveBenchOptions& options,
                                 const std::function<void(uint64_t, uint64_t)>& on_cell);

}  // namespace smoe::io
