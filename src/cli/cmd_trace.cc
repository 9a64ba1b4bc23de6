// smoe trace MODEL --out FILE
//
// Which experts the routers choose, token by token. The tokens are read as a prompt, which routes
// them as decoding would (docs/decisions/0003).
#include <functional>
#include <memory>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress_bar.h"
#include "cli/token_ids.h"
#include "engine/benchmark.h"
#include "experts/trace.h"
#include "io/atomic_file.h"
#include "io/file.h"

namespace smoe::cli {

namespace {

constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;
constexpr uint32_t kRandomTokensMax = uint32_t{1} << 24;

struct Options {
  ModelOptions model;
  std::string tokens;
  std::string text;
  std::string out;
  uint32_t random_count = 0;
  uint64_t seed = 1;
  bool force = false;
};

Result<std::vector<uint32_t>> Tokens(const Options& options, const store::ModelFiles& files) {
  const int given = (options.tokens.empty() ? 0 : 1) + (options.text.empty() ? 0 : 1) +
                    (options.random_count == 0 ? 0 : 1);
  if (given != 1) return Invalid("expected one of --tokens, --text and --random, got {}", given);
  if (!options.tokens.empty()) return ParseTokenIds(options.tokens);
  if (!options.text.empty()) {
    SMOE_TRY_ASSIGN(const std::string content, io::ReadWholeFile(options.text, kTextBytesMax));
    SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
    return text.EncodeRaw(content);
  }
  if (options.random_count > kRandomTokensMax) {
    return Invalid("--random: {}, expected at most {}", options.random_count, kRandomTokensMax);
  }
  return engine::RandomTokens(options.seed, options.random_count, files.config.vocab_size);
}

// The lines of one chunk: its rows have each layer's choices side by side, the file goes row by
// row.
std::string Lines(const model::StepTaps& taps, size_t row_count, size_t top_k) {
  std::string lines;
  for (size_t row = 0; row < row_count; ++row) {
    for (uint32_t layer = 0; layer < taps.layers.size(); ++layer) {
      const std::vector<uint32_t>& ids = taps.layers[layer].router_ids;
      if (ids.empty()) continue;
      experts::AppendTraceLine(layer, std::span(ids).subspan(row * top_k, top_k), &lines);
    }
  }
  return lines;
}

// Runs the tokens and gives the lines of each chunk to `append`.
Status Record(engine::Engine& engine, std::span<const uint32_t> tokens, size_t top_k,
              Console& console, const std::function<Status(const std::string&)>& append) {
  ProgressBar progress(console, "trace");
  model::StepTaps want;
  want.want_router = true;
  const auto sink = [&](size_t first, std::span<const float> logits,
                        const model::StepTaps& taps) -> Status {
    const size_t row_count = logits.size() / engine.config().vocab_size;
    if (InterruptGuard::Requested()) return Invalid("interrupted");
    SMOE_TRY(append(Lines(taps, row_count, top_k)));
    progress.UpdateCount(first + row_count, tokens.size(), "tokens");
    return Ok();
  };
  return engine.Evaluate(tokens, std::move(want), sink);
}

Result<ExitCode> WriteTrace(const Options& options, Console& console) {
  if (options.out.empty()) return Invalid("--out: missing, expected a file to write");
  SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY(CheckSparesModel(options.out, files, options.model, {options.text}));
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> tokens, Tokens(options, files));
  experts::Trace facts;
  facts.expert_count = files.config.num_experts;
  facts.top_k = files.config.num_experts_per_tok;
  facts.model = Printable(files.path);
  const auto layers = files.experts->layers();
  if (layers.empty()) return Invalid("{}: no layer with routed experts", files.path);
  facts.expert_bytes = files.experts->Locate({layers[0].layer_index, 0}).read_bytes();
  SMOE_TRY_ASSIGN(auto engine, OpenEngine(std::move(files), options.model, 1, true));
  SMOE_TRY_ASSIGN(auto file, io::AtomicFile::Open(options.out, {.overwrite = options.force}));
  uint64_t offset = 0;
  const auto append = [&](const std::string& text) -> Status {
    SMOE_TRY(file.file().WriteAt(offset, AsBytes(text)));
    offset += text.size();
    return Ok();
  };
  const InterruptGuard guard;  // so that Ctrl-C leaves no partial file
  SMOE_TRY(append(experts::TraceHeader(facts)));
  if (Status done = Record(*engine, tokens, facts.top_k, console, append); !done) {
    return NotWritten(options.out, std::move(done.error()), console);
  }
  SMOE_TRY(file.Commit());
  console.Note("{}: {} tokens, {} layer{}, {} of {} experts each\n", Printable(options.out),
               tokens.size(), layers.size(), layers.size() == 1 ? "" : "s", facts.top_k,
               facts.expert_count);
  return ExitCode::kOk;
}

}  // namespace

Runner DefineTrace(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.Option("--out", &options->out, "FILE", "Required: the trace to write");
  arguments.Option("--text", &options->text, "FILE", "A text to read, as one prompt");
  arguments.Option("--tokens", &options->tokens, "IDS", "Token ids to read, as 1,2,3");
  arguments.Option("--random", &options->random_count, "N",
                   "So many random tokens, for models without a tokenizer");
  arguments.Option("--seed", &options->seed, "N", "Other random tokens (default: 1)");
  arguments.Flag("--force", &options->force, "Replace FILE if it exists");
  DefineEngineOptions(arguments, &options->model);
  return [options](Console& console) { return WriteTrace(*options, console); };
}

}  // namespace smoe::cli
