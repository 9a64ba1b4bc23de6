// smoe synth SHAPE OUT
//
// A model of a published shape with random weights: see convert/synthesizer.h.
#include <memory>
#include <optional>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "cli/convert_summary.h"
#include "cli/version.h"
#include "convert/synth_shape.h"
#include "convert/synthesizer.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string shape;
  std::string out;
  std::string format;
  std::string bits;
  std::optional<uint32_t> group_size;
  convert::SynthOptions synth;
  bool json = false;
};

// What was asked for by --format, or by the name of OUT.
Status ChooseFormat(Options* options) {
  if (options->format.empty()) {
    options->format = options->out.ends_with(".smoe") ? "vault" : "records";
  }
  convert::SynthOptions& synth = options->synth;
  synth.to = options->format == "vault" ? convert::StoreKind::kVault : convert::StoreKind::kRecords;
  if (options->format == "records" && (!options->bits.empty() || options->group_size)) {
    return Invalid(
        "{}: a record store has 4 bits and groups of 16; for a vault name OUT.smoe or "
        "--format vault",
        options->bits.empty() ? "--group-size" : "--bits");
  }
  if (options->bits == "2") synth.bits = tensor::SmoeBits::kQ2;
  synth.group_size = options->group_size.value_or(synth.group_size);
  return Ok();
}

void PrintSummary(const convert::SynthReport& report, bool dry_run, Console& console) {
  ConvertSummary summary(console);
  summary.Line("shape", fmt::format("{}: {}, {} layer{} of {} experts, {} per token, vocabulary {}",
                                    report.shape, report.model_type, report.layer_count,
                                    report.layer_count == 1 ? "" : "s", report.experts_per_layer,
                                    report.experts_per_token, report.vocab_size));
  summary.Written(dry_run, fmt::format("{} ({}), {}{}", report.out_path, report.format,
                                       dry_run ? "at most " : "", SizeText(report.out_bytes)));
  summary.Line("experts", SizeText(report.expert_bytes));
  summary.Line("trunk", fmt::format("{}, bf16", SizeText(report.trunk_bytes)));
  summary.Line(
      "routing",
      fmt::format("expected Gini {:.3f}; the busiest 8 % of experts take {:.0f} % of selections",
                  report.skew.gini, report.skew.busy_share * 100));
  summary.Line("seed", fmt::format("{}", report.seed));
  if (!dry_run) summary.Time(report.seconds, report.out_bytes, "/s");
}

Result<ExitCode> Synth(Options& options, Console& console) {
  SMOE_TRY(ChooseFormat(&options));
  options.synth.writer = std::string("smoe ") + kVersion;
  ConvertProgress progress(console);
  const InterruptGuard guard;
  auto report = convert::Synthesize(options.shape, options.out, options.synth, progress);
  if (!report) return NotWritten(options.out, std::move(report.error()), console);
  if (options.json) {
    console.Print("{}\n", report->ToJson().Dump(2));
  } else {
    PrintSummary(*report, options.synth.dry_run, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineSynth(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  convert::SynthOptions& synth = options->synth;
  arguments.Positional("SHAPE", &options->shape,
                       convert::SynthPresetNames() + ", or a config.json");
  arguments.Positional("OUT", &options->out, "What to write: NAME.smoe, or a folder");
  arguments.Choice("--format", &options->format, {"vault", "records"},
                   "The format (default: vault if OUT ends in .smoe, else records)");
  arguments.Choice("--bits", &options->bits, {"4", "2"}, "Bits of a vault's weight (default: 4)");
  arguments.Option("--group-size", &options->group_size, "N",
                   "Weights of a vault that share a scale: 8, 16, 32, 64 or 128 (default: 64)");
  arguments.Option("--layers", &synth.layers, "N", "Only so many layers (default: the shape's)");
  arguments.Option("--vocab", &synth.vocab, "N", "Only so many tokens (default: the shape's)");
  arguments.Option("--routing-gini", &synth.routing_gini, "G",
                   "How unequally experts are used, 0: alike (default: the busiest 8 % take half)");
  arguments.Option("--seed", &synth.seed, "N", "Another seed, other weights (default: 1)");
  arguments.Flag("--force", &synth.force, "Replace OUT if it exists");
  arguments.Flag("--dry-run", &synth.dry_run, "Check everything, write nothing");
  arguments.Option("--threads", &synth.threads, "N", "Workers (default: physical cores and one)");
  arguments.Flag("--json", &options->json, "The summary as JSON on stdout");
  return [options](Console& console) { return Synth(*options, console); };
}

}  // namespace smoe::cli
