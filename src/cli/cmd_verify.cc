// smoe verify MODEL
//
// Reads everything. One line on stdout for each problem, so that `wc -l` counts them; exit status 1
// if there is one.
#include <filesystem>
#include <memory>

#include "base/memory_limits.h"
#include "base/stopwatch.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_bar.h"
#include "store/verify_model.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  uint32_t thread_count = 0;
  bool vault_only = false;
  bool json = false;
};

Result<store::vault::VerifyReport> Check(const Options& options, Console& console) {
  store::VerifyModelOptions verify;
  verify.files = options.model.files;
  verify.vault_only = options.vault_only;
  if (options.thread_count != 0) verify.blobs.thread_count = options.thread_count;
  ProgressBar progress(console, "verify");
  verify.blobs.progress = [&](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return store::VerifyModel(options.model.model, verify);
}

Json ReportJson(const store::vault::VerifyReport& report) {
  Json json;
  json.Set("sound", report.ok())
      .Set("experts", report.expert_count)
      .Set("tensors", report.tensor_count)
      .Set("checked_bytes", report.checked_bytes)
      .Set("checksums", report.has_checksums)
      .Set("problem_count", report.problem_count)
      .Set("problems", Json::ListOf(report.problems))
      .Set("warnings", Json::ListOf(report.warnings));
  return json;
}

void PrintReport(const store::vault::VerifyReport& report, const std::string& path, double seconds,
                 Console& console) {
  for (const std::string& problem : report.problems) console.Print("{}\n", Printable(problem));
  if (report.problem_count > report.problems.size()) {
    console.Note("... and {} more\n", report.problem_count - report.problems.size());
  }
  for (const std::string& warning : report.warnings) {
    console.Note("warning: {}\n", Printable(warning));
  }
  // A checkpoint's experts are tensors like the others, and none is counted as an expert.
  std::error_code ignored;
  const std::string tensors =
      report.expert_count == 0 && std::filesystem::is_directory(path, ignored)
          ? fmt::format("{} tensors", report.tensor_count)
          : fmt::format("{} experts, {} trunk tensors", report.expert_count, report.tensor_count);
  console.Note(
      "{}: {}, {} problem{}; {} in {:.2f} s, {}\n", Printable(path), tensors, report.problem_count,
      report.problem_count == 1 ? "" : "s", SizeText(report.checked_bytes), seconds,
      report.has_checksums ? "every checksum compared"
                           : "no checksums in the file: only what cannot be right is found");
}

Result<ExitCode> Verify(const Options& options, Console& console) {
  const Stopwatch stopwatch;
  SMOE_TRY_ASSIGN(const store::vault::VerifyReport report, Check(options, console));
  const double seconds = stopwatch.seconds();
  if (options.json) {
    console.Print("{}\n", ReportJson(report).Dump(2));
  } else {
    PrintReport(report, options.model.model, seconds, console);
  }
  return report.ok() ? ExitCode::kOk : ExitCode::kCorrupt;
}

}  // namespace

Runner DefineVerify(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.Option("--threads", &options->thread_count, "N", "Readers (default: physical cores)");
  arguments.Flag("--vault-only", &options->vault_only,
                 "A vault without its trunk is no problem: check what is there");
  arguments.Flag("--json", &options->json, "As JSON");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return Verify(*options, console); };
}

}  // namespace smoe::cli
