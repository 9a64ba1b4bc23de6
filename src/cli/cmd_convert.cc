// smoe convert MODEL OUT
//
// From one expert store to another: see convert/converter.h for what it promises about kills, full
// drives and memory.
#include <memory>
#include <optional>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "cli/convert_summary.h"
#include "cli/error_figures.h"
#include "cli/model_options.h"
#include "cli/version.h"
#include "convert/converter.h"
#include "store/stripe/stripe.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  std::string out;
  std::string to;
  std::string bits;
  std::optional<uint32_t> group_size;
  std::string quantiser = "mse";
  std::string trunk_format;
  convert::ConvertOptions convert;
  bool json = false;
};

// What was asked for by --to, or by the name of OUT.
Status ChooseFormat(Options* options) {
  if (options->to.empty()) options->to = options->out.ends_with(".smoe") ? "vault" : "records";
  convert::ConvertOptions& convert = options->convert;
  convert.to = options->to == "vault" ? convert::StoreKind::kVault : convert::StoreKind::kRecords;
  if (options->to == "records" && (!options->bits.empty() || options->group_size)) {
    return Invalid(
        "{}: a record store has 4 bits and groups of 16; for a vault name OUT.smoe or "
        "--to vault",
        options->bits.empty() ? "--group-size" : "--bits");
  }
  if (options->bits == "2") convert.bits = tensor::SmoeBits::kQ2;
  convert.group_size = options->group_size.value_or(convert.group_size);
  return Ok();
}

// Either format has a quantiser that the other has not.
Status ChooseQuantiser(Options* options) {
  convert::ConvertOptions& convert = options->convert;
  const bool is_vault = convert.to == convert::StoreKind::kVault;
  const char* other = is_vault ? "reference" : "amax";
  if (options->quantiser == "mse") return Ok();
  if (options->quantiser != other) {
    return Invalid("--quantiser {}: a {} has mse and {}", options->quantiser,
                   is_vault ? "vault" : "record store", other);
  }
  convert.vault_quantiser = tensor::Quantiser::kReference;
  convert.record_quantiser = tensor::Nvfp4Quantiser::kAmax;
  return Ok();
}

Json ToJson(const convert::ConvertReport& report, bool dry_run) {
  const auto errors = [](const std::vector<convert::LayerErrors>& layers) {
    return layers.empty() ? Json() : LayerErrorsJson(layers);
  };
  Json json;
  json.Set("model", report.model_path)
      .Set("out", report.out_path)
      .Set("dry_run", dry_run)
      .Set("source_format", report.source_format)
      .Set("target_format", report.target_format)
      .Set("experts", report.expert_count)
      .Set("expert_source_bytes", report.expert_source_bytes)
      .Set("trunk_bytes", report.trunk_bytes)
      .Set("trunk", convert::TrunkFormatJson(report.trunk_formats, report.trunk_errors))
      .Set("out_bytes", report.out_bytes)
      .Set("resumed_experts", report.resumed_expert_count)
      .Set("seconds", report.seconds)
      .Set("added_errors", errors(report.added))
      .Set("source_to_original", errors(report.source_to_original))
      .Set("target_to_original", errors(report.target_to_original))
      .Set("decisions", Json::ListOf(report.decisions))
      .Set("warnings", Json::ListOf(report.warnings));
  return json;
}

void PrintErrors(const char* title, const std::vector<convert::LayerErrors>& layers,
                 Console& console) {
  if (layers.empty()) return;
  console.Note("\n{}\n{}", title, LayerErrorsText(layers));
}

void PrintSummary(const convert::ConvertReport& report, bool dry_run, Console& console) {
  ConvertSummary summary(console);
  summary.Line("model", fmt::format("{} ({})", report.model_path, report.source_format));
  summary.Written(dry_run, fmt::format("{} ({}), {}{}", report.out_path, report.target_format,
                                       dry_run ? "at most " : "", SizeText(report.out_bytes)));
  summary.Line("experts", fmt::format("{}, {} before", report.expert_count,
                                      SizeText(report.expert_source_bytes)));
  summary.Resumed(report.resumed_expert_count);
  summary.Trunk(report.trunk_formats, report.trunk_errors);
  if (!dry_run) summary.Time(report.seconds, report.expert_source_bytes, "/s of experts");
  summary.Remarks(report.decisions, report.warnings);
  PrintErrors("what the conversion added", report.added, console);
  PrintErrors("before, against the original", report.source_to_original, console);
  PrintErrors("now, against the original", report.target_to_original, console);
}

Status CheckIsWhole(const std::string& model) {
  if (!store::stripe::IsStripeFile(model)) return Ok();
  SMOE_TRY_ASSIGN(const store::stripe::Stripe stripe, store::stripe::ReadStripe(model));
  return Invalid("{}: a striped model; convert the one that it was made of, which is whole: {}",
                 model, stripe.model);
}

Result<ExitCode> Convert(Options& options, Console& console) {
  SMOE_TRY(CheckIsWhole(options.model.model));
  SMOE_TRY(ChooseFormat(&options));
  SMOE_TRY(ChooseQuantiser(&options));
  convert::ConvertOptions& convert = options.convert;
  convert.files = options.model.files;
  convert.writer = std::string("smoe ") + kVersion;
  SMOE_TRY(ParseTrunkOption(options.trunk_format, &options.convert.trunk_formats));
  ConvertProgress progress(console);
  SMOE_TRY_ASSIGN(const convert::ConvertReport report,
                  convert::Convert(options.model.model, options.out, convert, progress));
  if (options.json) {
    console.Print("{}\n", ToJson(report, convert.dry_run).Dump(2));
  } else {
    PrintSummary(report, convert.dry_run, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineConvert(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  convert::ConvertOptions& convert = options->convert;
  arguments.Positional("MODEL", &options->model.model, "A .smoe vault or a record store");
  arguments.Positional("OUT", &options->out, "What to write: NAME.smoe, or a folder");
  arguments.Choice("--to", &options->to, {"vault", "records"},
                   "The format (default: vault if OUT ends in .smoe, else records)");
  arguments.Choice("--bits", &options->bits, {"4", "2"}, "Bits of a vault's weight (default: 4)");
  arguments.Option("--group-size", &options->group_size, "N",
                   "Weights of a vault that share a scale: 8, 16, 32, 64 or 128 (default: 64)");
  arguments.Choice("--quantiser", &options->quantiser, {"mse", "reference", "amax"},
                   "mse: least error (default); reference: the original converter's, for vaults; "
                   "amax: plain, for record stores");
  arguments.Option("--original", &convert.original, "FOLDER",
                   "The checkpoint, to measure the error against it too");
  DefineTrunkOption(arguments, &options->trunk_format);
  arguments.Flag("--resume", &convert.resume, "Go on with an interrupted conversion");
  arguments.Flag("--force", &convert.force, "Replace OUT if it exists");
  arguments.Flag("--dry-run", &convert.dry_run, "Check everything, write nothing");
  arguments.Option("--threads", &convert.threads, "N", "Workers (default: physical cores and one)");
  arguments.Flag("--json", &options->json, "The summary as JSON on stdout");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return Convert(*options, console); };
}

}  // namespace smoe::cli
