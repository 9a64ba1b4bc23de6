// smoe shatter CHECKPOINT OUT.smoe
//
// The Sculptor: see convert/sculptor.h for what it promises about kills, full drives and memory.
#include <memory>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "cli/convert_summary.h"
#include "cli/error_figures.h"
#include "cli/version.h"
#include "convert/sculptor.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string checkpoint;
  std::string out;
  convert::ShatterOptions shatter;
  std::string bits = "4";
  std::string quantiser = "mse";
  std::string trunk_format;
  bool include_mtp = false;
  bool json = false;
};

void PrintSummary(const convert::ShatterReport& report, const Options& options, Console& console) {
  const bool dry_run = options.shatter.dry_run;
  ConvertSummary summary(console);
  summary.Checkpoint(report.checkpoint_path, report.model_type, report.naming);
  summary.Written(dry_run, fmt::format("{}, {}", report.out_path, SizeText(report.out_bytes)));
  if (!report.scout_path.empty()) {
    summary.Line("trunk", fmt::format("{}, {}", report.scout_path, SizeText(report.scout_bytes)));
  }
  summary.Line(
      "experts",
      fmt::format("{} in {} layers, Q{} group {}, quantiser {}{}", report.expert_count,
                  report.layer_count, options.bits, options.shatter.group_size, options.quantiser,
                  report.is_partial ? " (PARTIAL: not all of the checkpoint)" : ""));
  summary.Resumed(report.resumed_expert_count);
  summary.Trunk(report.trunk_formats, report.trunk_errors);
  if (report.validated_expert_count != 0) {
    summary.Line("validated", fmt::format("{} experts equal a fresh quantisation",
                                          report.validated_expert_count));
  }
  if (!dry_run) summary.Time(report.seconds, report.expert_source_bytes, "/s of checkpoint");
  summary.Remarks(report.decisions, report.warnings);
  if (report.errors) console.Note("\n{}", ProjErrorsText(*report.errors));
}

Result<ExitCode> Shatter(Options& options, Console& console) {
  SMOE_TRY(CheckCheckpointFolder(options.checkpoint));
  options.shatter.bits = options.bits == "2" ? tensor::SmoeBits::kQ2 : tensor::SmoeBits::kQ4;
  options.shatter.quantiser =
      options.quantiser == "reference" ? tensor::Quantiser::kReference : tensor::Quantiser::kMse;
  if (options.include_mtp) options.shatter.include_mtp = true;
  options.shatter.writer = std::string("smoe ") + kVersion;
  SMOE_TRY(ParseTrunkOption(options.trunk_format, &options.shatter.trunk_formats));
  ConvertProgress progress(console);
  SMOE_TRY_ASSIGN(const convert::ShatterReport report,
                  convert::Shatter(options.checkpoint, options.out, options.shatter, progress));
  if (options.json) {
    console.Print("{}\n", report.ToJson().Dump(2));
  } else {
    PrintSummary(report, options, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineShatter(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  convert::ShatterOptions& shatter = options->shatter;
  arguments.Positional("CHECKPOINT", &options->checkpoint, "A Hugging Face folder");
  arguments.Positional("OUT", &options->out, "The .smoe vault to write");
  arguments.Choice("--bits", &options->bits, {"4", "2"}, "Bits of a weight (default: 4)");
  arguments.Option("--group-size", &shatter.group_size, "N",
                   "Weights that share a scale: 8, 16, 32, 64 or 128 (default: 64)");
  arguments.Choice("--quantiser", &options->quantiser, {"mse", "reference"},
                   "mse: least error; reference: the original converter's bytes");
  arguments.Flag("--split", &shatter.split,
                 "The original's pair: no annex, the trunk in STEM.scout.safetensors");
  DefineTrunkOption(arguments, &options->trunk_format);
  arguments.Flag("--resume", &shatter.resume, "Go on with an interrupted conversion");
  arguments.Flag("--force", &shatter.force, "Replace OUT if it exists");
  arguments.Flag("--dry-run", &shatter.dry_run, "Check everything, write nothing");
  arguments.Flag("--validate", &shatter.validate,
                 "Afterwards compare every expert with a fresh quantisation");
  arguments.Flag("--measure-error", &shatter.measure_error,
                 "RMSE, largest error and SNR of each tensor kind");
  arguments.Option("--max-layers", &shatter.max_layers, "N", "Only the first N sparse layers");
  arguments.Option("--max-experts", &shatter.max_experts, "N",
                   "Only the first N experts of each layer");
  arguments.Flag("--include-mtp", &options->include_mtp,
                 "Also the experts of multi-token-prediction layers");
  arguments.Flag("--allow-non-finite", &shatter.allow_non_finite,
                 "Weights that are NaN or infinite become 0 instead of an error");
  arguments.Flag("--allow-broken-text", &shatter.allow_broken_text,
                 "Convert although the tokenizer or chat template cannot be used");
  arguments.Option("--threads", &shatter.threads, "N", "Workers (default: physical cores and one)");
  arguments.Flag("--json", &options->json, "The summary as JSON on stdout");
  return [options](Console& console) { return Shatter(*options, console); };
}

}  // namespace smoe::cli
