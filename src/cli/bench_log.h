// cli/bench_log.h: measurements as rows of a table in a file, appended and never edited.
//
// Tab-separated, one header line: date, commit, machine, model and format, command, cache, runs,
// min, median, max, bytes, bound, verdict, why. The last two are the reader's to fill in; "why"
// begins with what was measured.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "engine/benchmark.h"
#include "engine/memory_bench.h"

namespace smoe::cli {

class BenchLog {
 public:
  // Errors: kInvalid for a file that is there and does not begin with our header, before anything
  //         is measured for it; kIo.
  static Result<BenchLog> Open(const std::string& path);

  // A row for decoding and one for the prompt. `commit`, `machine`: as the program knows them.
  Status Append(const engine::BenchReport& report, const std::string& commit,
                const std::string& machine);
  // The same for each amount of memory that was not refused.
  Status Append(const engine::MemoryBenchReport& report, const std::string& commit,
                const std::string& machine);

 private:
  explicit BenchLog(std::string path) : path_(std::move(path)) {}
  Status Write(std::string rows);
  std::string path_;
};

}  // namespace smoe::cli
