// smoe compare A B [--text FILE | --tokens IDS]
//
// Two forms of one model: the weights of all experts, then what both say to the same text, and a
// table of what each costs. A is the original. One engine is open at a time.
#include <filesystem>
#include <memory>

#include "base/memory_limits.h"
#include "cli/command.h"
#include "cli/convert_progress.h"
#include "cli/error_figures.h"
#include "cli/model_options.h"
#include "cli/token_ids.h"
#include "cli/trunk_figures.h"
#include "convert/expert_error.h"
#include "engine/compare_logits.h"
#include "io/file.h"
#include "store/model_size.h"
#include "store/records/record_folder.h"

namespace smoe::cli {

namespace {

constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;

// Plain enough for a model that knows only stories. Source: models/tiny-moe/make_data.py, documents
// that the model was not trained on.
constexpr char kOwnText[] =
    "The Gentle Hedgehog\n\nA long time ago, a gentle hedgehog named Toby lived in the village. "
    "All "
    "the others could dance, but Toby could not. He tried once, but it did not work.\n\n\"I will "
    "never learn it,\" said Toby. An old frog named Rosie sat down beside him. \"Nobody can dance "
    "on "
    "the first day,\" said the frog. \"Let us practise together.\" Every day they met near the "
    "well "
    "and practised. Toby made many mistakes, but he did not give up.\n\nAt last Toby could dance "
    "all "
    "alone. Everyone clapped, and Toby was glad. Toby smiled all the way home.\n\n"
    "A shelf is a piece of furniture. A cucumber is a vegetable. A mouse is grey. The sun rises in "
    "the east. The plural of lady is ladies. 1 + 12 = 13. A year has twelve months. January is the "
    "first month of the year. December is the last month of the year. 13 - 2 = 11.\n";

struct Options {
  ModelOptions model;  // what both share; model.model is A
  std::string b;
  std::string text;
  std::string tokens;
  uint32_t window = 512;
  bool reference = false;
  bool json = false;
};

struct Side {
  std::string path;
  std::string format;
  store::ModelSize size;
  std::string arithmetic = {};
  model::TrunkReport trunk = {};
};

struct Comparison {
  Side a;
  Side b;
  std::string text_source;
  std::vector<uint32_t> tokens;
  std::vector<convert::LayerErrors> layers;
  engine::LogitComparison logits;
};

// A checkpoint folder brings its own trunk and config and refuses others.
ModelOptions OptionsFor(const ModelOptions& shared, const std::string& path) {
  ModelOptions options = shared;
  options.model = path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored) && !store::records::IsRecordFolder(path)) {
    options.files.trunk.clear();
    options.files.config.clear();
  }
  return options;
}

Status CheckSameModel(const store::ModelFiles& a, const store::ModelFiles& b) {
  struct Row {
    const char* field;
    uint64_t in_a;
    uint64_t in_b;
  };
  const auto& x = a.config;
  const auto& y = b.config;
  for (const Row& row : {
           Row{"vocab_size", x.vocab_size, y.vocab_size},
           Row{"hidden_size", x.hidden_size, y.hidden_size},
           Row{"num_hidden_layers", x.num_hidden_layers, y.num_hidden_layers},
           Row{"num_attention_heads", x.num_attention_heads, y.num_attention_heads},
           Row{"num_key_value_heads", x.num_key_value_heads, y.num_key_value_heads},
           Row{"head_dim", x.head_dim, y.head_dim},
           Row{"number of experts", x.num_experts, y.num_experts},
           Row{"num_experts_per_tok", x.num_experts_per_tok, y.num_experts_per_tok},
           Row{"moe_intermediate_size", x.moe_intermediate_size, y.moe_intermediate_size},
       }) {
    if (row.in_a == row.in_b) continue;
    return Invalid("{} is {} in {} and {} in {}: two models cannot be compared", row.field,
                   row.in_a, a.path, row.in_b, b.path);
  }
  return Ok();
}

Status CheckSameTokenizer(const store::ModelFiles& a, const store::ModelFiles& b) {
  const auto& of_a = a.side_files.tokenizer;
  const auto& of_b = b.side_files.tokenizer;
  if (!of_a || !of_b || *of_a == *of_b) return Ok();
  return Invalid(
      "tokenizer.json: {} bytes with checksum {:016x} in {}, {} with {:016x} in {}; compare them "
      "on ids by --tokens",
      of_a->size(), Checksum(AsBytes(std::string_view(*of_a))), a.path, of_b->size(),
      Checksum(AsBytes(std::string_view(*of_b))), b.path);
}

// With one there is nothing to predict.
Status CheckTokenCount(const Comparison& comparison) {
  if (comparison.tokens.size() >= 2) return Ok();
  return Invalid("{}: {} tokens, expected at least 2", comparison.text_source,
                 comparison.tokens.size());
}

Status ReadTokens(const Options& options, const store::ModelFiles& a, const store::ModelFiles& b,
                  Comparison* comparison) {
  if (!options.tokens.empty()) {
    comparison->text_source = "--tokens";
    SMOE_TRY_ASSIGN(comparison->tokens, ParseTokenIds(options.tokens));
    return CheckTokenCount(*comparison);
  }
  SMOE_TRY(CheckSameTokenizer(a, b));
  std::string content = kOwnText;
  comparison->text_source = "a short text of the program's own (another by --text)";
  if (!options.text.empty()) {
    SMOE_TRY_ASSIGN(content, io::ReadWholeFile(options.text, kTextBytesMax));
    comparison->text_source = options.text;
  }
  const store::ModelFiles& with_tokenizer = a.side_files.tokenizer ? a : b;
  SMOE_TRY_ASSIGN(const text::TextModel text,
                  store::LoadText(with_tokenizer.side_files, with_tokenizer.path));
  SMOE_TRY_ASSIGN(comparison->tokens, text.EncodeRaw(content));
  return CheckTokenCount(*comparison);
}

// Everything but the logits. Read through the page cache: one pass, in pieces.
Status CompareStores(const Options& options, const ModelOptions& options_a,
                     const ModelOptions& options_b, Console& console, Comparison* comparison) {
  ModelOptions plain_a = options_a;
  ModelOptions plain_b = options_b;
  plain_a.buffered = true;
  plain_b.buffered = true;
  SMOE_TRY_ASSIGN(const store::ModelFiles a, OpenFiles(plain_a));
  SMOE_TRY_ASSIGN(const store::ModelFiles b, OpenFiles(plain_b));
  SMOE_TRY(CheckSameModel(a, b));
  SMOE_TRY(ReadTokens(options, a, b, comparison));
  SMOE_TRY_ASSIGN(const store::ModelSize size_a, store::MeasureSize(a));
  SMOE_TRY_ASSIGN(const store::ModelSize size_b, store::MeasureSize(b));
  comparison->a = {a.path, a.experts->format_name(), size_a, options_a.arithmetic};
  comparison->b = {b.path, b.experts->format_name(), size_b, options_b.arithmetic};
  ConvertProgress progress(console);
  SMOE_TRY_ASSIGN(
      comparison->layers,
      convert::CompareExperts(*a.experts, *b.experts, options.model.thread_count, progress));
  return Ok();
}

Status CompareLogits(const Options& options, const ModelOptions& options_a,
                     const ModelOptions& options_b, Console& console, Comparison* comparison) {
  const auto opener = [](const ModelOptions& model, Side* side) {
    return [&model, side]() -> Result<std::unique_ptr<engine::Engine>> {
      SMOE_TRY_ASSIGN(store::ModelFiles files,
                      store::OpenModelFiles(model.model, FilesOptions(model)));
      SMOE_TRY_ASSIGN(auto engine, OpenEngine(std::move(files), model, 1, true));
      side->trunk = engine->trunk_report();
      return engine;
    };
  };
  ProgressBar progress(console, "logits");
  SMOE_TRY_ASSIGN(
      comparison->logits,
      engine::CompareLogits(opener(options_a, &comparison->a), opener(options_b, &comparison->b),
                            comparison->tokens, options.window, [&](uint64_t done, uint64_t total) {
                              progress.UpdateCount(done, total, "positions");
                            }));
  return Ok();
}

Json SideJson(const Side& side, const engine::TextScore& score) {
  Json json;
  json.Set("path", side.path)
      .Set("format", side.format)
      .Set("drive_bytes", side.size.drive_bytes)
      .Set("expert_bytes", side.size.expert_bytes)
      .Set("experts", side.size.expert_count)
      .Set("token_bytes", side.size.token_bytes)
      .Set("arithmetic", side.arithmetic)
      .Set("trunk", TrunkJson(side.trunk))
      .Set("perplexity", score.perplexity())
      .Set("nats_per_token", score.nats_per_token());
  return json;
}

Json ToJson(const Comparison& comparison, const Options& options) {
  const engine::LogitComparison& logits = comparison.logits;
  Json logits_json;
  logits_json.Set("positions", logits.position_count)
      .Set("kl_mean", logits.kl_mean())
      .Set("kl_max", logits.kl_max)
      .Set("kl_max_position", logits.kl_max_position)
      .Set("top1_equal", logits.top_token_equal_count)
      .Set("top1_agreement", logits.top_token_agreement());
  Json text;
  text.Set("source", comparison.text_source)
      .Set("tokens", uint64_t{comparison.tokens.size()})
      .Set("tokens_scored", logits.a.token_count)
      .Set("window", options.window);
  Json json;
  json.Set("a", SideJson(comparison.a, logits.a))
      .Set("b", SideJson(comparison.b, logits.b))
      .Set("weights", LayerErrorsJson(comparison.layers))
      .Set("logits", std::move(logits_json))
      .Set("text", std::move(text));
  return json;
}

void PrintChoice(const Comparison& comparison, Console& console) {
  const auto row = [&](const char* name, const std::string& a, const std::string& b) {
    console.Print("{:<20}{:>20}{:>20}\n", name, Printable(a), Printable(b));
  };
  const Side& a = comparison.a;
  const Side& b = comparison.b;
  row("", "A", "B");
  row("experts", a.format, b.format);
  row("on the drive", SizeText(a.size.drive_bytes), SizeText(b.size.drive_bytes));
  row("all experts", SizeText(a.size.expert_bytes), SizeText(b.size.expert_bytes));
  row("T, read per token", SizeText(a.size.token_bytes), SizeText(b.size.token_bytes));
  row("arithmetic", a.arithmetic, b.arithmetic);
  row("trunk", checkpoint::TrunkFormatsText(a.trunk.asked),
      checkpoint::TrunkFormatsText(b.trunk.asked));
  row("trunk in memory", SizeText(a.trunk.bytes), SizeText(b.trunk.bytes));
  row("perplexity", fmt::format("{:.4f}", comparison.logits.a.perplexity()),
      fmt::format("{:.4f}", comparison.logits.b.perplexity()));
}

void Print(const Comparison& comparison, const Options& options, Console& console) {
  const engine::LogitComparison& logits = comparison.logits;
  console.Print("A  {}\nB  {}\n\n", Printable(comparison.a.path), Printable(comparison.b.path));
  console.Print("{}", LayerErrorsText(comparison.layers));
  console.Print("\nlogits: {} positions, windows of {}\n", logits.position_count, options.window);
  console.Print("text: {}\n", Printable(comparison.text_source));
  console.Print("KL(A||B)         mean {:.6g}, largest {:.6g} nats (position {})\n",
                logits.kl_mean(), logits.kl_max, logits.kl_max_position);
  console.Print("top-1 agreement  {:.2f} % ({} of {})\n\n", 100 * logits.top_token_agreement(),
                logits.top_token_equal_count, logits.position_count);
  PrintChoice(comparison, console);
  console.Print("\nT: bytes of experts that a token reads when none is in memory\n");
}

Result<ExitCode> Compare(const Options& options, Console& console) {
  if (!options.text.empty() && !options.tokens.empty()) {
    return Invalid("--text and --tokens: both given, expected one of them");
  }
  if (options.window < 2) return Invalid("--window: {}, expected at least 2", options.window);
  ModelOptions options_a = OptionsFor(options.model, options.model.model);
  if (options.reference) {
    options_a.arithmetic = "f32";
    options_a.trunk_format = "source";
    options_a.kv = "f32";
  }
  const ModelOptions options_b = OptionsFor(options.model, options.b);
  Comparison comparison;
  SMOE_TRY(CompareStores(options, options_a, options_b, console, &comparison));
  SMOE_TRY(CompareLogits(options, options_a, options_b, console, &comparison));
  if (options.json) {
    console.Print("{}\n", ToJson(comparison, options).Dump(2));
  } else {
    Print(comparison, options, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineCompare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional("A", &options->model.model,
                       "The original: a .smoe vault, a record store or a checkpoint folder");
  arguments.Positional("B", &options->b, "Another form of the same model");
  arguments.Option("--text", &options->text, "FILE",
                   "The text to predict (default: a short one of the program's own)");
  arguments.Option("--tokens", &options->tokens, "IDS", "Token ids instead of a text, as 1,2,3");
  arguments.Option("--window", &options->window, "N", "Tokens read from one start (default: 512)");
  arguments.Flag("--reference", &options->reference,
                 "Compute A with --arithmetic f32 and --trunk-format source");
  arguments.Flag("--json", &options->json, "As JSON");
  DefineEngineOptions(arguments, &options->model);
  return [options](Console& console) { return Compare(*options, console); };
}

}  // namespace smoe::cli
