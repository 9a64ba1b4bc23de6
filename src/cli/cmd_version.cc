// smoe version [--licenses] [--json]
#include <memory>
#include <string_view>

#include "base/json.h"
#include "cli/command.h"
#include "cli/version.h"
#include "kernels/kernels.h"

namespace smoe::embedded {

std::string_view ThirdPartyText();  // docs/third_party.txt, put in by CMake

}  // namespace smoe::embedded

namespace smoe::cli {

namespace {

struct Options {
  bool licenses = false;
  bool json = false;
};

Result<ExitCode> Show(const Options& options, Console& console) {
  if (options.licenses) {
    console.Print("{}", embedded::ThirdPartyText());
    return ExitCode::kOk;
  }
  Json kernel_list;
  std::string kernel_text;
  for (const kernels::KernelTable* table : kernels::AllKernels()) {
    const bool runs = table->runs_here();
    kernel_list.Append(Json().Set("name", table->name).Set("runs_here", runs));
    kernel_text += fmt::format(" {}{}", table->name, runs ? "" : " (not on this CPU)");
  }
  if (options.json) {
    console.Print("{}\n", Json().Set("version", kVersion).Set("kernels", kernel_list).Dump(2));
  } else {
    console.Print("smoe {}\nkernels:{}\nlicence: MIT; third parties: smoe version --licenses\n",
                  kVersion, kernel_text);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineVersion(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Flag("--licenses", &options->licenses, "Names and licences of everything built in");
  arguments.Flag("--json", &options->json, "As JSON");
  return [options](Console& console) { return Show(*options, console); };
}

}  // namespace smoe::cli
