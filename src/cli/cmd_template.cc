// smoe template MODEL --chat TEXT | --messages FILE
#include <memory>

#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/model_options.h"
#include "cli/token_ids.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  std::string chat;
  std::string system;
  std::string messages;
  bool no_generation_prompt = false;
  bool ids = false;
};

Result<ExitCode> ShowTemplate(const Options& options, Console& console) {
  if (options.chat.empty() == options.messages.empty()) {
    return Invalid("--chat and --messages: expected one of them");
  }
  SMOE_TRY_ASSIGN(const store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
  text::ChatRequest request = OneMessage(options.system, options.chat);
  if (!options.messages.empty()) {
    SMOE_TRY_ASSIGN(request, ReadConversation(options.messages));
  }
  request.add_generation_prompt = !options.no_generation_prompt;
  if (options.ids) {
    SMOE_TRY_ASSIGN(const auto prompt, text.EncodeChat(request));
    console.Print("{}\n", TokenIdsText(prompt.ids));
    return ExitCode::kOk;
  }
  SMOE_TRY_ASSIGN(const text::ChatTemplate* chat_template,
                  text.TemplateFor(!request.tools.is_null()));
  SMOE_TRY_ASSIGN(const std::string rendered, chat_template->RenderText(request));
  console.Print("{}", rendered);
  return ExitCode::kOk;
}

}  // namespace

Runner DefineTemplate(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.Option("--chat", &options->chat, "TEXT", "One message of the user");
  arguments.Option("--system", &options->system, "TEXT", "A system message before it");
  arguments.Option("--messages", &options->messages, "FILE",
                   "A JSON array of messages, or an object with messages and tools");
  arguments.Flag("--no-generation-prompt", &options->no_generation_prompt,
                 "Do not open the answer's turn");
  arguments.Flag("--ids", &options->ids, "The token ids of the prompt instead of its text");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return ShowTemplate(*options, console); };
}

}  // namespace smoe::cli
