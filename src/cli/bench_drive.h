// cli/bench_drive.h: smoe bench --drive, random reads of a model's file in many ways.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/console.h"
#include "cli/exit_code.h"

namespace smoe::cli {

struct BenchDriveOptions {
  std::string path;  // any file, or a folder: its largest file
  uint32_t rounds = 5;
  uint64_t seed = 1;
  bool json = false;
};

// Errors: kInvalid for a file too small to read here and there; kIo.
Result<ExitCode> BenchDrive(const BenchDriveOptions& options, Console& console);

}  // namespace smoe::cli
