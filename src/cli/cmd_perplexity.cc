// smoe perplexity MODEL --text FILE
//
// The text is cut into windows of --window tokens; each is read from its own start and every token
// but the window's first is predicted. perplexity = exp(mean of -ln p(token | those before it)).
#include <cmath>
#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_bar.h"
#include "io/file.h"

namespace smoe::cli {

namespace {

constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;

struct Options {
  ModelOptions model;
  std::string text;
  uint32_t window = 512;
  bool json = false;
};

struct Score {
  double nats = 0;  // sum of -ln p
  uint64_t token_count = 0;
};

// -ln softmax(logits)[token], in double.
double Surprise(std::span<const float> logits, uint32_t token) {
  double largest = -HUGE_VAL;
  for (const float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) + largest - static_cast<double>(logits[token]);
}

Status ScoreWindow(engine::Engine& engine, std::span<const uint32_t> window, Score* score) {
  const size_t vocab_size = engine.config().vocab_size;
  const auto sink = [&](size_t first, std::span<const float> logits, const model::StepTaps&) {
    for (size_t row = 0; row * vocab_size < logits.size(); ++row) {
      const size_t next = first + row + 1;
      if (next == window.size()) break;
      score->nats += Surprise(logits.subspan(row * vocab_size, vocab_size), window[next]);
      ++score->token_count;
    }
    return Ok();
  };
  return engine.Evaluate(window, {}, sink);
}

Result<ExitCode> Perplexity(const Options& options, Console& console) {
  if (options.text.empty()) return Invalid("--text: missing, expected a text file");
  if (options.window < 2) return Invalid("--window: {}, expected at least 2", options.window);
  SMOE_TRY_ASSIGN(const std::string content, io::ReadWholeFile(options.text, kTextBytesMax));
  SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> tokens, text.EncodeRaw(content));
  if (tokens.size() < 2) {
    return Invalid("{}: {} tokens, expected at least 2", options.text, tokens.size());
  }
  SMOE_TRY_ASSIGN(auto engine, OpenEngine(std::move(files), options.model, 1, true));

  Score score;
  {
    ProgressBar progress(console, "perplexity");
    const std::span<const uint32_t> all = tokens;
    for (size_t first = 0; first + 1 < all.size(); first += options.window) {
      const size_t count = std::min<size_t>(options.window, all.size() - first);
      SMOE_TRY(ScoreWindow(*engine, all.subspan(first, count), &score));
      progress.UpdateCount(first + count, all.size(), "tokens");
    }
  }
  const double nats = score.nats / static_cast<double>(score.token_count);
  if (options.json) {
    Json json;
    json.Set("perplexity", std::exp(nats))
        .Set("nats_per_token", nats)
        .Set("tokens_scored", score.token_count)
        .Set("window", options.window)
        .Set("arithmetic", options.model.arithmetic);
    console.Print("{}\n", json.Dump(2));
  } else {
    console.Print("perplexity {:.4f} ({:.5f} nats a token, {} tokens, windows of {}, {})\n",
                  std::exp(nats), nats, score.token_count, options.window,
                  options.model.arithmetic);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefinePerplexity(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.Option("--text", &options->text, "FILE", "Required: the text to predict");
  arguments.Option("--window", &options->window, "N", "Tokens read from one start (default: 512)");
  arguments.Flag("--json", &options->json, "As JSON");
  DefineEngineOptions(arguments, &options->model);
  return [options](Console& console) { return Perplexity(*options, console); };
}

}  // namespace smoe::cli
