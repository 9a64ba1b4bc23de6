// smoe run [MODEL] -p TEXT | --chat TEXT | --tokens IDS
//
// The answer streams to stdout; with --json one object at the end instead.
#include <memory>

#include "cli/answer_stats.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/kv_file.h"
#include "cli/model_options.h"
#include "cli/profile_text.h"
#include "cli/sampling_options.h"
#include "cli/token_ids.h"
#include "cli/trunk_figures.h"
#include "text/token_stream.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  KvFile kv_file;
  std::optional<std::string> prompt;
  std::optional<std::string> chat;
  std::string tokens;
  std::string system;
  uint32_t token_count = 256;
  bool raw_ids = false;
  bool stats = false;
  std::string status = "auto";
  bool profile = false;
  bool json = false;
};

Status CheckPrompt(const Options& options) {
  const int given =
      (options.prompt ? 1 : 0) + (options.chat ? 1 : 0) + (options.tokens.empty() ? 0 : 1);
  if (given != 1) return Invalid("-p, --chat, --tokens: {} given, expected one of them", given);
  if (!options.system.empty() && !options.chat) {
    return Invalid("--system: goes with --chat; -p and --tokens are sent as they are");
  }
  return Ok();
}

Result<std::vector<uint32_t>> PromptTokens(const Options& options, const text::TextModel& text) {
  if (!options.tokens.empty()) return ParseTokenIds(options.tokens);
  if (options.prompt) return text.EncodeRaw(*options.prompt);
  SMOE_TRY_ASSIGN(auto prompt, text.EncodeChat(OneMessage(options.system, *options.chat)));
  return std::move(prompt.ids);
}

// Writes an answer as it comes: text, or ids where text is not wanted or not to be had.
class AnswerWriter {
 public:
  AnswerWriter(const Options& options, const text::TextModel& text, Console& console)
      : quiet_(options.json), console_(console) {
    if (!options.raw_ids && text.tokenizer() != nullptr) stream_.emplace(*text.tokenizer(), true);
  }

  Status Write(uint32_t token) {
    if (!stream_) return Emit(fmt::format("{}{}", text_.empty() ? "" : " ", token));
    SMOE_TRY_ASSIGN(const std::string piece, stream_->Push(token));
    return Emit(piece);
  }
  Status Finish() {
    if (stream_) {
      SMOE_TRY_ASSIGN(const std::string rest, stream_->Finish());
      SMOE_TRY(Emit(rest));
    }
    if (quiet_) return Ok();
    console_.Print("\n");
    return console_.Flush();
  }
  const std::string& text() const { return text_; }

 private:
  Status Emit(const std::string& piece) {
    text_ += piece;
    if (quiet_ || piece.empty()) return Ok();
    console_.Print("{}", piece);
    return console_.Flush();
  }

  const bool quiet_;
  Console& console_;
  std::optional<text::TokenStream> stream_;
  std::string text_;
};

// The prompt as a whole, and the tokens behind its first.
struct Profiles {
  Profiles(const engine::Engine& engine, const engine::EngineStats& before,
           const engine::EngineStats& after)
      : prefill(after.prefill.Since(before.prefill)),
        decode(after.decode.Since(before.decode)),
        decode_steps(after.decode_step_count - before.decode_step_count),
        threads(engine.setup().thread_count) {}

  std::string Text() const {
    return ProfileText("prefill, the prompt", prefill, 1, threads) +
           ProfileText("decode, a token", decode, decode_steps, threads);
  }
  Json ToJson() const {
    return Json()
        .Set("prefill", ProfileJson(prefill, 1, threads))
        .Set("decode", ProfileJson(decode, decode_steps, threads));
  }

  engine::StepTimes prefill;
  engine::StepTimes decode;
  uint64_t decode_steps;
  size_t threads;
};

Json AnswerJson(const Options& options, const engine::Engine& engine, const Answer& answer,
                const AnswerWriter& writer, const engine::EngineStats& before,
                const engine::EngineStats& after) {
  Json json;
  json.Set("text", writer.text())
      .Set("ids", Json::ListOf(answer.tokens))
      .Set("finish_reason", engine::FinishReasonName(answer.reason))
      .Set("arithmetic", options.model.arithmetic)
      .Set("kv", kernels::KvKindName(engine.kv_kind()))
      .Set("trunk", TrunkJson(engine.trunk_report()))
      .Set("reads", engine.setup().read_setup.ToJson())
      .Set("lossy", false)
      .Set("stats", StatsJson(engine.setup(), before, after, answer));
  return json;
}

Result<ExitCode> Run(const Options& options, Console& console) {
  SMOE_TRY(CheckPrompt(options));
  SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
  engine::Request request;
  SMOE_TRY_ASSIGN(request.prompt, PromptTokens(options, text));
  SMOE_TRY_ASSIGN(request.sampling,
                  ChooseSampling(options.sampling, files.side_files.generation_config));
  request.token_count_max = options.token_count;
  for (const text::StopId& stop : text.stop_ids()) request.stop_ids.push_back(stop.id);
  SMOE_TRY(options.kv_file.CheckPlace(files, options.model));
  SMOE_TRY_ASSIGN(auto engine, OpenEngine(std::move(files), options.model, 1, false));
  SMOE_TRY(options.kv_file.Restore(*engine, console));
  std::vector<uint32_t> prompt = request.prompt;

  const InterruptGuard guard;
  const engine::EngineStats before = engine->stats();
  AnswerWriter writer(options, text, console);
  SMOE_TRY_ASSIGN(const Answer answer,
                  Generate(*engine, std::move(request), console, StatusNamed(options.status),
                           [&](uint32_t token) { return writer.Write(token); }));
  SMOE_TRY(writer.Finish());
  // A file that cannot be written is said at the end: the answer is there all the same.
  const Status saved = options.kv_file.SaveAnswer(*engine, std::move(prompt), answer);
  const engine::EngineStats after = engine->stats();
  const Profiles profiles(*engine, before, after);
  if (options.json) {
    Json json = AnswerJson(options, *engine, answer, writer, before, after);
    if (options.profile) json.Set("profile", profiles.ToJson());
    console.Print("{}\n", json.Dump(2));
  } else if (options.profile) {
    console.Note("{}", profiles.Text());
  }
  if (options.stats) {
    console.Note("{}numbers   {}, trunk {}, keys and values {}, no lossy shortcut\n",
                 StatsText(engine->setup(), before, after, answer), options.model.arithmetic,
                 checkpoint::TrunkFormatsText(engine->trunk_report().asked),
                 kernels::KvKindName(engine->kv_kind()));
  }
  SMOE_TRY(saved);
  return answer.reason == engine::FinishReason::kCancelled ? ExitCode::kInterrupted : ExitCode::kOk;
}

}  // namespace

Runner DefineRun(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineOptionalModel(arguments, &options->model);
  arguments.Option("-p,--prompt", &options->prompt, "TEXT", "Text to go on with, as it is");
  arguments.Option("--chat", &options->chat, "TEXT", "A question, put into the chat template");
  arguments.Option("--tokens", &options->tokens, "IDS", "Token ids to go on with, as 1,2,3");
  arguments.Option("--system", &options->system, "TEXT", "A system message before --chat");
  arguments.Option("-n,--count", &options->token_count, "N",
                   "Tokens to generate at most (default: 256)");
  arguments.Flag("--raw-ids", &options->raw_ids, "Print token ids instead of text");
  arguments.Flag("--stats", &options->stats, "Say at the end what the answer cost");
  arguments.Flag("--profile", &options->profile,
                 "Say at the end where the time went: attention, router, experts, head, waiting");
  arguments.Flag("--json", &options->json, "One JSON object at the end");
  options->kv_file.Define(arguments);
  DefineStatus(arguments, &options->status);
  DefineSamplingOptions(arguments, &options->sampling);
  DefineEngineOptions(arguments, &options->model);
  DefineWarmStart(arguments, &options->model);
  return [options](Console& console) { return Run(*options, console); };
}

}  // namespace smoe::cli
