// smoe doctor [PATH]
//
// Looks at the machine, and at PATH's drive and model: see engine/doctor.h.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/json.h"
#include "base/machine.h"
#include "cli/command.h"
#include "cli/version.h"
#include "engine/doctor.h"

namespace smoe::cli {

namespace {

using engine::Finding;
using engine::Severity;

struct Options {
  std::string path = ".";
  bool numa = false;
  bool json = false;
};

constexpr char kBelow[] = "         {:<14}{}{}\n";

void PrintFinding(const Finding& finding, Console& console) {
  console.Print("{:<9}{:<14}{}\n", engine::SeverityName(finding.severity), finding.subject,
                Printable(finding.found));
  if (!finding.meaning.empty()) console.Print(kBelow, "", "", Printable(finding.meaning));
  if (!finding.remedy.empty()) console.Print(kBelow, "", "to change: ", Printable(finding.remedy));
}

Json FindingJson(const Finding& finding) {
  Json json;
  json.Set("severity", engine::SeverityName(finding.severity))
      .Set("subject", finding.subject)
      .Set("found", finding.found)
      .Set("meaning", finding.meaning)
      .Set("remedy", finding.remedy)
      .Set("blocks", finding.blocks.has_value());
  return json;
}

size_t Count(const std::vector<Finding>& findings, Severity severity) {
  return static_cast<size_t>(
      std::ranges::count_if(findings, [&](const Finding& f) { return f.severity == severity; }));
}

std::string Plural(size_t count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

Result<ExitCode> Doctor(const Options& options, Console& console) {
  engine::DoctorOptions doctor{.path = options.path, .isa = {}, .numa = options.numa, .root = {}};
  if (const char* isa = std::getenv("SMOE_ISA")) doctor.isa = isa;
  const std::vector<Finding> findings = engine::Examine(doctor);
  const auto blocking =
      std::ranges::find_if(findings, [](const Finding& f) { return f.blocks.has_value(); });
  const bool can_run = blocking == findings.end();
  const std::string machine = MachineText(ReadMachine());
  if (options.json) {
    Json list{Json::Array()};
    for (const Finding& finding : findings) list.Append(FindingJson(finding));
    Json json;
    json.Set("version", kVersion)
        .Set("machine", machine)
        .Set("path", options.path)
        .Set("can_run", can_run)
        .Set("findings", std::move(list));
    console.Print("{}\n", json.Dump(2));
  } else {
    console.Print("{}\n", Printable(machine));
    for (const Finding& finding : findings) PrintFinding(finding, console);
    console.Print("{}, {}, {} ok{}\n", Plural(Count(findings, Severity::kProblem), "problem"),
                  Plural(Count(findings, Severity::kNote), "note"), Count(findings, Severity::kOk),
                  can_run ? "" : "; nothing can run as it is");
  }
  return can_run ? ExitCode::kOk : ExitCodeOf(*blocking->blocks);
}

}  // namespace

Runner DefineDoctor(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.OptionalPositional("PATH", &options->path,
                               "A model, or a folder where models lie (default: this folder)");
  arguments.Flag("--numa", &options->numa,
                 "Also memory nodes: their processors, memory, and where pages land");
  arguments.Flag("--json", &options->json, "As JSON");
  return [options](Console& console) { return Doctor(*options, console); };
}

}  // namespace smoe::cli
