// smoe perplexity MODEL --text FILE
//
// The text is cut into windows of --window tokens; each is read from its own start and every token
// but the window's first is predicted. perplexity = exp(mean of -ln p(token | those before it)).
#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_bar.h"
#include "cli/trunk_figures.h"
#include "engine/text_score.h"
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

  engine::TextScore score;
  {
    ProgressBar progress(console, "perplexity");
    SMOE_TRY(engine::EvaluateWindows(
        *engine, tokens, options.window,
        [&](size_t position, std::span<const float> logits, const uint32_t* next) {
          if (next != nullptr) score.Add(logits, *next);
          progress.UpdateCount(position + 1, tokens.size(), "tokens");
          return Ok();
        }));
  }
  const double nats = score.nats_per_token();
  if (options.json) {
    Json json;
    json.Set("perplexity", score.perplexity())
        .Set("nats_per_token", nats)
        .Set("tokens_scored", score.token_count)
        .Set("window", options.window)
        .Set("arithmetic", options.model.arithmetic)
        .Set("trunk", TrunkJson(engine->trunk_report()));
    console.Print("{}\n", json.Dump(2));
  } else {
    console.Print(
        "perplexity {:.4f} ({:.5f} nats a token, {} tokens, windows of {}, {}, trunk {})\n",
        score.perplexity(), nats, score.token_count, options.window, options.model.arithmetic,
        checkpoint::TrunkFormatsText(engine->trunk_report().asked));
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
