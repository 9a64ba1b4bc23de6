// smoe stripe MODEL OUT DIR... [--weights N,N,...] [--force]
#include <charconv>
#include <filesystem>
#include <memory>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress_bar.h"
#include "io/atomic_file.h"
#include "store/stripe/stripe_writer.h"

namespace smoe::cli {

namespace {

namespace stripe = store::stripe;

struct Options {
  ModelOptions model;
  std::string out;
  std::vector<std::string> folders;
  std::optional<std::string> weights;
  bool force = false;
};

// Numbers with a comma between them; the writer knows their limits.
Result<std::vector<uint32_t>> ParseWeights(const std::string& text) {
  std::vector<uint32_t> weights;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    uint32_t weight = 0;
    const auto [stop, error] = std::from_chars(at, end, weight);
    if (error != std::errc() || (stop != end && *stop != ',')) {
      return Invalid(
          "--weights: \"{}\", expected numbers such as 2,1,1: MODEL's own, then one "
          "for each DIR",
          text);
    }
    weights.push_back(weight);
    if (stop == end) return weights;
    at = stop + 1;
  }
}

Result<std::vector<uint32_t>> MeasureWeights(const Options& options,
                                             const store::ExpertStore& store, Console& console) {
  std::vector<double> rates;
  SMOE_TRY_ASSIGN(const double own, stripe::MeasureStore(store));
  rates.push_back(own);
  for (const std::string& folder : options.folders) {
    SMOE_TRY_ASSIGN(const double rate, stripe::MeasureFolder(folder));
    rates.push_back(rate);
  }
  std::vector<uint32_t> weights = stripe::WeightsOf(rates);
  for (size_t i = 0; i < rates.size(); ++i) {
    console.Note("{}: {:.2f} GB/s, weight {}\n",
                 Printable(i == 0 ? options.model.model : options.folders[i - 1]), rates[i] / 1e9,
                 weights[i]);
  }
  return weights;
}

// The files that a model is made of, so far as they are named or were found.
std::vector<std::string> InputsOf(const ModelOptions& model, const store::ModelFiles& files) {
  namespace fs = std::filesystem;
  std::vector<std::string> inputs;
  for (const io::File& file : files.trunk.files()) inputs.push_back(file.path());
  const store::ModelFilesOptions& parts = model.files;
  for (const std::string& part : {model.model, parts.trunk, parts.config, parts.tokenizer}) {
    if (part.empty()) continue;
    inputs.push_back(part);
    std::error_code end;
    for (fs::directory_iterator at(part, end), last; !end && at != last; at.increment(end)) {
      inputs.push_back(at->path().string());
    }
  }
  return inputs;
}

void NoteSharedDrives(const Options& options, Console& console) {
  const auto shared = stripe::SharedDrives(options.model.model, options.folders);
  for (size_t i = 0; i < shared.size(); ++i) {
    if (shared[i].empty()) continue;
    console.Note("warning: {} is on the file system of {}: no drive is gained by it\n",
                 Printable(options.folders[i]), Printable(shared[i]));
  }
}

Result<ExitCode> StripeModel(const Options& options, Console& console) {
  SMOE_TRY(store::CheckModelExists(options.model.model));
  if (stripe::IsStripeFile(options.model.model)) {
    return Invalid("{}: a striped model already; name the model that it was made of",
                   options.model.model);
  }
  SMOE_TRY_ASSIGN(const store::ModelFiles files,
                  store::OpenModelFiles(options.model.model, options.model.files));
  stripe::WriteStripeOptions write;
  write.model = options.model.model;
  write.out = options.out;
  write.folders = options.folders;
  write.overwrite = options.force;
  write.inputs = InputsOf(options.model, files);
  if (options.weights) {
    SMOE_TRY_ASSIGN(write.weights, ParseWeights(*options.weights));
  }
  SMOE_TRY(stripe::CheckStripePlaces(write));  // before the drives are measured
  NoteSharedDrives(options, console);
  if (!options.weights) {
    SMOE_TRY_ASSIGN(write.weights, MeasureWeights(options, *files.experts, console));
  }
  ProgressBar progress(console, "stripe");
  write.progress = [&](uint64_t done, uint64_t total) { progress.Update(done, total); };
  const InterruptGuard guard;
  write.is_stopped = InterruptGuard::Requested;
  auto written = stripe::WriteStripe(*files.experts, write);
  if (!written) return NotWritten(options.out, std::move(written.error()), console);
  for (const stripe::Part& part : written->parts) {
    console.Note("{}: {}\n", Printable(part.path), SizeText(part.file_bytes));
  }
  console.Note("{}: use it in the place of {}, which stays and keeps its share\n",
               Printable(options.out), Printable(written->model));
  return ExitCode::kOk;
}

}  // namespace

Runner DefineStripe(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional("MODEL", &options->model.model,
                       "A .smoe vault or a record store; it stays as it is, and is still needed");
  arguments.Positional("OUT", &options->out, "The small file to write, then a MODEL itself");
  arguments.Positionals("DIR", &options->folders, "A folder on each further drive, for its part");
  arguments.Option("--weights", &options->weights, "N,N,...",
                   "Shares of MODEL's own drive and of each DIR (default: as measured); 0 for the "
                   "first: it is read only for the rest");
  arguments.Flag("--force", &options->force, "Replace OUT and its parts");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return StripeModel(*options, console); };
}

}  // namespace smoe::cli
