// smoe pack CHECKPOINT OUT_DIR
//
// An NVFP4 expert-record store: see convert/packer.h for what it promises about kills, full drives
// and memory.
#include <memory>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "cli/convert_summary.h"
#include "cli/error_figures.h"
#include "cli/version.h"
#include "convert/packer.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string checkpoint;
  std::string out;
  convert::PackOptions pack;
  std::string quantiser = "mse";
  std::string trunk_format;
  bool json = false;
};

void PrintSummary(const convert::PackReport& report, bool dry_run, Console& console) {
  ConvertSummary summary(console);
  summary.Checkpoint(report.checkpoint_path, report.model_type, report.naming);
  summary.Written(dry_run, fmt::format("{}, {}", report.out_path, SizeText(report.out_bytes)));
  summary.Line(
      "experts",
      fmt::format("{} in {} layers, NVFP4, {}{}", report.expert_count, report.layer_count,
                  report.moves_bytes ? "moved as they are" : "quantiser " + report.quantiser,
                  report.is_partial ? " (PARTIAL: not all of the checkpoint)" : ""));
  summary.Line("record",
               fmt::format("{} bytes, {} x {}", report.record_stride, report.inter, report.hidden));
  summary.Resumed(report.resumed_expert_count);
  summary.Trunk(report.trunk_formats, report.trunk_errors);
  if (report.non_finite_count != 0) {
    summary.Line("warning", fmt::format("{} weights were NaN or infinite and are 0 now",
                                        report.non_finite_count));
  }
  if (!dry_run) summary.Time(report.seconds, report.expert_source_bytes, "/s of checkpoint");
  summary.Remarks(report.decisions, report.warnings);
  if (report.errors) console.Note("\n{}", ProjErrorsText(*report.errors));
}

Result<ExitCode> Pack(Options& options, Console& console) {
  SMOE_TRY(CheckCheckpointFolder(options.checkpoint));
  options.pack.quantiser =
      options.quantiser == "amax" ? tensor::Nvfp4Quantiser::kAmax : tensor::Nvfp4Quantiser::kMse;
  options.pack.writer = std::string("smoe ") + kVersion;
  SMOE_TRY(ParseTrunkOption(options.trunk_format, &options.pack.trunk_formats));
  ConvertProgress progress(console);
  SMOE_TRY_ASSIGN(const convert::PackReport report,
                  convert::Pack(options.checkpoint, options.out, options.pack, progress));
  if (options.json) {
    console.Print("{}\n", report.ToJson().Dump(2));
  } else {
    PrintSummary(report, options.pack.dry_run, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefinePack(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  convert::PackOptions& pack = options->pack;
  arguments.Positional("CHECKPOINT", &options->checkpoint, "A Hugging Face folder");
  arguments.Positional("OUT", &options->out, "The folder to write");
  arguments.Choice("--quantiser", &options->quantiser, {"mse", "amax"},
                   "For experts that are not NVFP4 yet. mse: least error (default); amax: plain");
  arguments.Option("--layers", &pack.layers, "LIST", "Only these layers, as in 1-3,7");
  DefineTrunkOption(arguments, &options->trunk_format);
  arguments.Flag("--resume", &pack.resume, "Go on with an interrupted packing");
  arguments.Flag("--force", &pack.force, "Replace a store that is there");
  arguments.Flag("--dry-run", &pack.dry_run, "Check everything, write nothing");
  arguments.Flag("--include-mtp", &pack.include_mtp,
                 "Also the experts of multi-token-prediction layers");
  arguments.Flag("--allow-non-finite", &pack.allow_non_finite,
                 "Weights that are NaN or infinite become 0 instead of an error");
  arguments.Flag("--allow-broken-text", &pack.allow_broken_text,
                 "Pack although the tokenizer or chat template cannot be used");
  arguments.Option("--threads", &pack.threads, "N", "Workers (default: physical cores and one)");
  arguments.Flag("--json", &options->json, "The summary as JSON on stdout");
  return [options](Console& console) { return Pack(*options, console); };
}

}  // namespace smoe::cli
