// smoe extract-trunk VAULT OUT.safetensors [--force]
#include <memory>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "convert/extract_trunk.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string vault;
  std::string out;
  bool force = false;
};

Result<ExitCode> Extract(const Options& options, Console& console) {
  ConvertProgress progress(console);
  const InterruptGuard guard;
  auto report = convert::ExtractTrunk(options.vault, options.out, options.force, progress);
  if (!report) return NotWritten(options.out, std::move(report.error()), console);
  console.Note("{}: {} tensors, {}\n", Printable(report->out_path), report->tensor_count,
               SizeText(report->bytes));
  return ExitCode::kOk;
}

}  // namespace

Runner DefineExtractTrunk(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional("VAULT", &options->vault, "A .smoe vault with its trunk inside");
  arguments.Positional("OUT", &options->out, "The safetensors file to write");
  arguments.Flag("--force", &options->force, "Replace OUT if it exists");
  return [options](Console& console) { return Extract(*options, console); };
}

}  // namespace smoe::cli
