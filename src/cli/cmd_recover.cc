// smoe recover VAULT --checkpoint FOLDER
#include <memory>

#include "cli/command.h"
#include "cli/convert_progress.h"
#include "convert/recover.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string vault;
  std::string checkpoint;
  convert::RecoverOptions recover;
  bool json = false;
};

Result<ExitCode> Recover(const Options& options, Console& console) {
  if (options.checkpoint.empty()) {
    return Invalid("--checkpoint: missing, expected the folder that the vault was made from");
  }
  ConvertProgress progress(console);
  SMOE_TRY_ASSIGN(const convert::RecoverReport report,
                  convert::Recover(options.checkpoint, options.vault, options.recover, progress));
  for (const std::string& warning : report.warnings) {
    console.Note("warning: {}\n", Printable(warning));
  }
  if (options.json) {
    console.Print("{}\n", report.ToJson().Dump(2));
  } else {
    console.Note("{}: {} experts compared, all equal (Q{} group {}, quantiser {}); header{} {}\n",
                 Printable(options.vault), report.expert_count, static_cast<int>(report.bits),
                 report.group_size,
                 report.quantiser == tensor::Quantiser::kMse ? "mse" : "reference",
                 report.table_was_lost ? " and table" : "",
                 options.recover.dry_run ? "can be written" : "written");
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineRecover(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional("VAULT", &options->vault, "The vault without a header; mended in place");
  arguments.Option("--checkpoint", &options->checkpoint, "FOLDER",
                   "Required: the Hugging Face folder that it was made from");
  arguments.Flag("--dry-run", &options->recover.dry_run, "Compare everything, write nothing");
  arguments.Option("--threads", &options->recover.threads, "N",
                   "Workers (default: physical cores and one)");
  arguments.Flag("--json", &options->json, "As JSON");
  return [options](Console& console) { return Recover(*options, console); };
}

}  // namespace smoe::cli
