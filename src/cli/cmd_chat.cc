// smoe chat [MODEL]
//
// A conversation in the terminal. The answer streams to stdout, all else goes to stderr, so that
// a conversation can be piped. Ctrl-C stops the answer, not the program.
#include <filesystem>
#include <memory>

#include "cli/answer_stats.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/kv_file.h"
#include "cli/line_reader.h"
#include "cli/model_options.h"
#include "cli/sampling_options.h"
#include "io/atomic_file.h"
#include "text/token_stream.h"

namespace smoe::cli {

namespace {

constexpr char kHelpText[] =
    "  /system TEXT  starts anew with this system message (without TEXT: without one)\n"
    "  /reset        forgets the conversation\n"
    "  /stats        says what the last answer cost\n"
    "  /save FILE    writes the conversation as JSON\n"
    "  /quit         ends (so does Ctrl-D); Ctrl-C stops an answer\n";

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  KvFile kv_file;
  std::string system;
  uint32_t token_count = 1024;
  bool stats = false;
  std::string status = "auto";
};

class Chat {
 public:
  Chat(const Options& options, engine::SamplerOptions sampling, const text::TextModel& text,
       engine::Engine& engine, Console& console)
      : options_(options),
        sampling_(sampling),
        text_(text),
        engine_(engine),
        console_(console),
        system_(options.system) {
    Reset();
  }

  // Goes on with the conversation that --kv-file holds, if there is one.
  Status Restore() {
    SMOE_TRY_ASSIGN(const std::optional<model::KvFileContent> content,
                    options_.kv_file.Restore(engine_, console_));
    if (!content || content->note.empty()) return Ok();
    SMOE_TRY_ASSIGN(text::ChatRequest request,
                    ParseConversation(content->note, "--kv-file: its messages"));
    const std::string system = SystemOf(request.messages);
    if (!options_.system.empty() && options_.system != system) {
      return Invalid(
          "--system: the conversation in --kv-file has {}; leave one of the two options out",
          system.empty() ? "none" : "another");
    }
    system_ = system;
    request_ = std::move(request);
    console_.Note("(the conversation goes on after {} messages; /reset begins a new one)\n",
                  request_.messages.AsArray()->size());
    return Ok();
  }

  Status Loop() {
    // A queue that is broken fails the next request, by name; one that failed in a step is in the
    // engine still.
    LineReader reader(console_,
                      [this] { return engine_.idle() && engine_.ReadWhileIdle().value_or(false); });
    std::string line;
    for (;;) {
      const LineReader::Outcome outcome = reader.Read("> ", &line);
      if (outcome == LineReader::Outcome::kEnd) return Ok();
      if (outcome == LineReader::Outcome::kTooLong) {
        return Invalid("standard input: a line of more than {} bytes", kLineBytesMax);
      }
      if (outcome == LineReader::Outcome::kInterrupted) {
        console_.Note("\n(/quit or Ctrl-D ends)\n");
        continue;
      }
      if (line == "/quit" || line == "/exit") return Ok();
      if (line.empty()) continue;
      Status done = line[0] == '/' ? Obey(line) : Reply(line);
      // One answer that fails does not end the conversation.
      if (!done) console_.Note("smoe chat: {}\n", Printable(done.error().message()));
    }
  }

 private:
  void Reset() {
    request_ = text::ChatRequest();
    if (!system_.empty()) request_.Add("system", system_);
  }

  // The text of a leading system message; empty: there is none.
  static std::string SystemOf(const Json& messages) {
    const Json::Array& list = *messages.AsArray();
    if (list.empty()) return "";
    const auto text_of = [&](const char* key) {
      const Json* const member = list.front().Find(key);
      const std::string* const text = member == nullptr ? nullptr : member->AsString();
      return text == nullptr ? std::string() : *text;
    };
    return text_of("role") == "system" ? text_of("content") : "";
  }

  std::string MessagesText(size_t indent) const {
    Json json;
    json.Set("messages", request_.messages);
    return json.Dump(indent);
  }

  Status Obey(const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string verb = line.substr(0, space);
    const std::string rest = space < line.size() ? line.substr(space + 1) : "";
    if (verb == "/system") {
      system_ = rest;
      Reset();
      console_.Note("(a new conversation, {} system message)\n", rest.empty() ? "no" : "with this");
    } else if (verb == "/reset") {
      Reset();
      console_.Note("(a new conversation)\n");
    } else if (verb == "/stats") {
      console_.Note("{}", last_stats_.empty() ? "no answer yet\n" : last_stats_);
    } else if (verb == "/save") {
      return Save(rest);
    } else if (verb == "/help") {
      console_.Note("{}", kHelpText);
    } else {
      console_.Note("smoe chat: no command \"{}\"; the commands are\n{}", Printable(verb),
                    kHelpText);
    }
    return Ok();
  }

  Status Save(const std::string& path) {
    if (path.empty()) return Invalid("/save: no file named, expected /save FILE");
    // What this conversation has written before it may replace.
    std::error_code ignored;
    const bool is_own = path == saved_path_;
    if (!is_own && std::filesystem::exists(path, ignored)) {
      return Invalid("/save: {}: exists; name another file", path);
    }
    const std::string content = MessagesText(2) + "\n";
    SMOE_TRY(io::WriteFileAtomically(path, AsBytes(content), is_own));
    saved_path_ = path;
    console_.Note("{}: written\n", path);
    return Ok();
  }

  // Appends the message and streams the answer. A message whose answer fails, or is stopped before
  // it begins, is taken back: otherwise the next one would have to wait for it again.
  Status Reply(const std::string& message) {
    const Json before_message = request_.messages;
    request_.Add("user", message);
    std::string answer_text;
    Status done = StreamAnswer(&answer_text);
    if (!done || (was_stopped_ && answer_text.empty())) {
      request_.messages = before_message;
      return done;
    }
    request_.Add("assistant", answer_text);
    return options_.kv_file.Save(engine_, last_tokens_, MessagesText(0));
  }

  Status StreamAnswer(std::string* answer_text) {
    InterruptGuard::Clear();  // from here on one stops this answer, though its tokens are not known
    SMOE_TRY_ASSIGN(engine::Request request, NextRequest());
    last_tokens_ = request.prompt;
    const engine::EngineStats before = engine_.stats();
    text::TokenStream stream(*text_.tokenizer(), true);
    const auto emit = [&](const std::string& piece) {
      *answer_text += piece;
      console_.Print("{}", piece);
      return console_.Flush();
    };
    SMOE_TRY_ASSIGN(const Answer answer,
                    Generate(engine_, std::move(request), console_, StatusNamed(options_.status),
                             [&](uint32_t token) -> Status {
                               SMOE_TRY_ASSIGN(const std::string piece, stream.Push(token));
                               return emit(piece);
                             }));
    last_tokens_.insert(last_tokens_.end(), answer.tokens.begin(), answer.tokens.end());
    SMOE_TRY_ASSIGN(const std::string rest, stream.Finish());
    SMOE_TRY(emit(rest));
    console_.Print("\n");
    InterruptGuard::Clear();
    if (answer.reason == engine::FinishReason::kLength) console_.Note("(cut off: length)\n");
    was_stopped_ = answer.reason == engine::FinishReason::kCancelled;
    if (was_stopped_) {
      console_.Note("({})\n",
                    answer_text->empty() ? "stopped; the message is taken back" : "stopped");
    }
    last_stats_ = StatsText(engine_.setup(), before, engine_.stats(), answer);
    if (options_.stats) console_.Note("{}", last_stats_);
    return console_.Flush();
  }

  Result<engine::Request> NextRequest() {
    SMOE_TRY_ASSIGN(auto prompt, text_.EncodeChat(request_));
    if (prompt.prompt.differs_from_reference) {
      console_.Note("(a message holds control tokens; they were kept as plain text)\n");
    }
    engine::Request request;
    request.prompt = std::move(prompt.ids);
    request.sampling = sampling_;
    sampling_.seed += 1;  // each turn has its own numbers
    request.token_count_max = options_.token_count;
    for (const text::StopId& stop : text_.stop_ids()) request.stop_ids.push_back(stop.id);
    return request;
  }

  const Options& options_;
  engine::SamplerOptions sampling_;
  const text::TextModel& text_;
  engine::Engine& engine_;
  Console& console_;
  std::string system_;
  text::ChatRequest request_;
  std::vector<uint32_t> last_tokens_;  // of the last prompt and its answer
  std::string last_stats_;
  std::string saved_path_;
  bool was_stopped_ = false;
};

Result<ExitCode> RunChat(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
  SMOE_TRY(text.RequireTokenizer());
  SMOE_TRY(text.TemplateFor(false));
  SMOE_TRY_ASSIGN(const engine::SamplerOptions sampling,
                  ChooseSampling(options.sampling, files.side_files.generation_config));
  const std::string path = files.path;
  SMOE_TRY(options.kv_file.CheckPlace(files, options.model));
  SMOE_TRY_ASSIGN(auto engine, OpenEngine(std::move(files), options.model, 1, false));
  if (IsTerminal(console.in)) {
    console.Note("{}, {} tokens of context. /help says what else you can type.\n", path,
                 engine->context_tokens());
  }
  const InterruptGuard guard;
  Chat chat(options, sampling, text, *engine, console);
  SMOE_TRY(chat.Restore());
  SMOE_TRY(chat.Loop());
  return ExitCode::kOk;
}

}  // namespace

Runner DefineChat(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineOptionalModel(arguments, &options->model);
  arguments.Option("--system", &options->system, "TEXT", "A system message to begin with");
  arguments.Option("-n,--count", &options->token_count, "N",
                   "Tokens of an answer at most (default: 1024)");
  arguments.Flag("--stats", &options->stats, "Say after each answer what it cost");
  options->kv_file.Define(arguments);
  DefineStatus(arguments, &options->status);
  DefineSamplingOptions(arguments, &options->sampling);
  DefineEngineOptions(arguments, &options->model);
  DefineWarmStart(arguments, &options->model);
  return [options](Console& console) { return RunChat(*options, console); };
}

}  // namespace smoe::cli
