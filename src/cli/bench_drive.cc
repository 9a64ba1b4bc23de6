#include "cli/bench_drive.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/json.h"
#include "base/machine.h"
#include "base/memory_limits.h"
#include "cli/commit.h"
#include "cli/progress_bar.h"
#include "cli/spread_json.h"
#include "cli/version.h"
#include "io/drive_bench.h"

namespace smoe::cli {

namespace {

namespace fs = std::filesystem;

// A folder's experts are in its large files.
Result<std::string> FileToRead(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  std::string largest;
  uint64_t largest_bytes = 0;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const uint64_t bytes = entry->file_size(ignored);
    if (ignored || bytes <= largest_bytes) continue;
    largest_bytes = bytes;
    largest = entry->path().string();
  }
  if (error) return Io("{}: {}", path, error.message());
  if (largest.empty()) return Invalid("{}: no file in this folder", path);
  return largest;
}

std::string WayText(const io::DriveCell& cell) {
  std::string text = io::ReadBackendName(cell.setting.backend);
  if (cell.registered) text += " registered";
  if (cell.setting.piece_bytes != 0) {
    text += fmt::format(" in {}", SizeText(cell.setting.piece_bytes));
  }
  return text + (cell.setting.direct ? ", direct" : ", buffered");
}

std::string AlignmentText(const io::DirectAlignment& alignment) {
  if (!alignment.is_supported) return "no direct reads, says the kernel";
  return fmt::format("blocks of {} bytes, addresses of {} ({})", alignment.offset_bytes,
                     alignment.memory_bytes, alignment.is_reported ? "says the kernel" : "assumed");
}

void PrintReport(const io::DriveReport& report, const BenchDriveOptions& options,
                 Console& console) {
  console.Print("file      {} ({})\n", Printable(report.path), SizeText(report.file_bytes));
  console.Print("direct    {}; {}\n", io::DirectEvidenceText(report.evidence),
                AlignmentText(report.alignment));
  console.Print("rounds    {}, in random orders, seed {}; medians (min to max)\n\n", options.rounds,
                options.seed);
  console.Print("{:<28} {:>6}  {:>9}  {:<22}  {}\n", "reads", "depth", "size", "GB/s",
                "processor, s per GB");
  for (const io::DriveCell& cell : report.cells) {
    console.Print("{:<28} {:>6}  {:>9}  ", WayText(cell), cell.setting.depth,
                  SizeText(cell.read_bytes));
    if (!cell.refused.empty()) {
      console.Print("{}\n", Printable(cell.refused));
      continue;
    }
    const Spread& rate = cell.bytes_per_second;
    console.Print(
        "{:<22}  {:.3f}\n",
        fmt::format("{:.2f} ({:.2f} to {:.2f})", rate.median / 1e9, rate.min / 1e9, rate.max / 1e9),
        cell.cpu_seconds_per_gb.median);
  }
}

Json CellJson(const io::DriveCell& cell) {
  Json json;
  json.Set("backend", io::ReadBackendName(cell.setting.backend))
      .Set("depth", cell.setting.depth)
      .Set("read_bytes", cell.read_bytes)
      .Set("piece_bytes", cell.setting.piece_bytes)
      .Set("direct", cell.setting.direct)
      .Set("registered", cell.registered);
  if (!cell.refused.empty()) return json.Set("refused", cell.refused);
  return json.Set("bytes_per_second", SpreadJson(cell.bytes_per_second))
      .Set("cpu_seconds_per_gb", SpreadJson(cell.cpu_seconds_per_gb));
}

Json ReportJson(const io::DriveReport& report, const BenchDriveOptions& options,
                const std::string& machine) {
  Json cells{Json::Array()};
  for (const io::DriveCell& cell : report.cells) cells.Append(CellJson(cell));
  Json json;
  json.Set("version", kVersion)
      .Set("commit", kCommit)
      .Set("machine", machine)
      .Set("file", report.path)
      .Set("file_bytes", report.file_bytes)
      .Set("direct", io::DirectEvidenceText(report.evidence))
      .Set("direct_offset_bytes", report.alignment.offset_bytes)
      .Set("direct_memory_bytes", report.alignment.memory_bytes)
      .Set("rounds", options.rounds)
      .Set("seed", options.seed)
      .Set("cells", std::move(cells));
  return json;
}

}  // namespace

Result<ExitCode> BenchDrive(const BenchDriveOptions& options, Console& console) {
  if (options.rounds == 0) return Invalid("--rounds: 0, expected at least 1");
  SMOE_TRY_ASSIGN(const std::string file, FileToRead(options.path));
  const std::string machine = MachineText(ReadMachine());
  if (!options.json) {
    console.Print("smoe      {}\nmachine   {}\n", kVersion, Printable(machine));
  }
  ProgressBar progress(console, "bench");
  SMOE_TRY_ASSIGN(const io::DriveReport report,
                  io::MeasureDrive(file, {.round_count = options.rounds, .seed = options.seed},
                                   [&](uint64_t done, uint64_t total) {
                                     progress.UpdateCount(done, total, "cells");
                                   }));
  if (options.json) {
    console.Print("{}\n", ReportJson(report, options, machine).Dump(2));
  } else {
    PrintReport(report, options, console);
  }
  return ExitCode::kOk;
}

}  // namespace smoe::cli
