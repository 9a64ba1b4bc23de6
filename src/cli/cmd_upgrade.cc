// smoe upgrade VAULT --config FILE_OR_FOLDER [--force]
#include <memory>

#include "cli/command.h"
#include "store/vault/arch.h"
#include "store/vault/upgrade.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string vault;
  store::vault::UpgradeOptions upgrade;
};

Result<ExitCode> Upgrade(const Options& options, Console& console) {
  if (options.upgrade.source.empty()) {
    return Invalid("--config: missing, expected the model's config.json or a folder with it");
  }
  SMOE_TRY_ASSIGN(const auto report, store::vault::UpgradeVault(options.vault, options.upgrade));
  for (const std::string& decision : report.decisions) console.Note("{}\n", Printable(decision));
  console.Note("{}: version 2, arch block of {} at byte {}\n", Printable(options.vault),
               Printable(store::vault::ArchModelType(report.arch)), report.arch_offset);
  return ExitCode::kOk;
}

}  // namespace

Runner DefineUpgrade(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional("VAULT", &options->vault, "A .smoe vault of version 1; changed in place");
  arguments.Option("--config", &options->upgrade.source, "FILE",
                   "Required: the model's config.json, or the checkpoint folder");
  arguments.Flag("--force", &options->upgrade.force, "Write a version 2 vault's block anew");
  return [options](Console& console) { return Upgrade(*options, console); };
}

}  // namespace smoe::cli
