// smoe pack CHECKPOINT OUT_DIR
//
// An NVFP4 expert-record store: see convert/packer.h for what it promises about kills, full drives
// and memory.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "cli/version.h"
#include "convert/packer.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string checkpoint;
  std::string out;
  convert::PackOptions pack;
  std::string quantiser = "mse";
  bool json = false;
};

void PrintErrors(const convert::PackReport& report, Console& console) {
  if (!report.errors) return;
  console.Note("\n{:<8}{:>14}{:>14}{:>10}\n", "tensor", "RMSE", "largest", "SNR");
  for (int proj = 0; proj < checkpoint::kProjCount; ++proj) {
    const tensor::QuantisationError& error = (*report.errors)[static_cast<size_t>(proj)];
    console.Note("{:<8}{:>14.6g}{:>14.6g}{:>7.2f} dB\n",
                 checkpoint::ProjName(static_cast<checkpoint::Proj>(proj)), error.Rmse(),
                 error.error_max, error.SnrDb());
  }
}

void PrintSummary(const convert::PackReport& report, const Options& options, Console& console) {
  const auto line = [&](const char* name, const std::string& value) {
    console.Note("{:<12}{}\n", name, Printable(value));
  };
  line("checkpoint",
       fmt::format("{} ({}, {})", report.checkpoint_path, report.model_type, report.naming));
  line(options.pack.dry_run ? "would write" : "written",
       fmt::format("{}, {}", report.out_path, SizeText(report.out_bytes)));
  line("experts",
       fmt::format("{} in {} layers, NVFP4, {}{}", report.expert_count, report.layer_count,
                   report.moves_bytes ? "moved as they are" : "quantiser " + report.quantiser,
                   report.is_partial ? " (PARTIAL: not all of the checkpoint)" : ""));
  line("record",
       fmt::format("{} bytes, {} x {}", report.record_stride, report.inter, report.hidden));
  if (report.resumed_expert_count != 0) {
    line("resumed", fmt::format("{} experts were there already", report.resumed_expert_count));
  }
  if (report.non_finite_count != 0) {
    line("warning",
         fmt::format("{} weights were NaN or infinite and are 0 now", report.non_finite_count));
  }
  if (!options.pack.dry_run) {
    const double rate =
        static_cast<double>(report.expert_source_bytes) / std::max(report.seconds, 1e-3);
    line("time", fmt::format("{}, {}/s of checkpoint", DurationText(report.seconds),
                             SizeText(static_cast<uint64_t>(rate))));
  }
  const char* label = "decided";
  for (const std::string& decision : report.decisions) line(std::exchange(label, ""), decision);
  for (const std::string& warning : report.warnings) line("warning", warning);
  PrintErrors(report, console);
}

// A single file would be taken for a config.json.
Status CheckFolder(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) return Ok();
  return Invalid("{}: {}, expected a Hugging Face folder (config.json and *.safetensors)", path,
                 std::filesystem::exists(status) ? "is no folder" : "no such folder");
}

Result<ExitCode> Pack(Options& options, Console& console) {
  SMOE_TRY(CheckFolder(options.checkpoint));
  options.pack.quantiser =
      options.quantiser == "amax" ? tensor::Nvfp4Quantiser::kAmax : tensor::Nvfp4Quantiser::kMse;
  options.pack.writer = std::string("smoe ") + kVersion;
  ConvertProgress progress(console);
  SMOE_TRY_ASSIGN(const convert::PackReport report,
                  convert::Pack(options.checkpoint, options.out, options.pack, progress));
  if (options.json) {
    console.Print("{}\n", report.ToJson().Dump(2));
  } else {
    PrintSummary(report, options, console);
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
