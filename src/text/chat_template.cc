#include "text/chat_template.h"

#include <utility>

#include "text/rust_call.h"

namespace smoe::text {

void ChatRequest::Add(std::string_view role, std::string_view content) {
  Json message;
  message.Set("role", role);
  message.Set("content", content);
  messages.Append(std::move(message));
}

void ChatTemplate::Free::operator()(SmoeTemplate* chat_template) const {
  smoe_template_free(chat_template);
}

Result<ChatTemplate> ChatTemplate::Compile(std::string_view source, std::string_view what,
                                           Options options) {
  const std::string globals = Json(std::move(options.special_tokens)).Dump();
  SmoeTemplate* handle = nullptr;
  Status compiled = CallRust([&](SmoeBytes* error) {
    return smoe_template_new(Borrow(source), Borrow(globals), &handle, error);
  });
  if (!compiled) return While(what, std::move(compiled));
  ChatTemplate chat_template;
  chat_template.handle_.reset(handle);
  chat_template.clock_ = std::move(options.clock);
  return chat_template;
}

Result<Prompt> ChatTemplate::Run(const ChatRequest& request, const Tokenizer* tokenizer) const {
  Json names;
  names.Set("messages", request.messages);
  names.Set("tools", request.tools);
  names.Set("add_generation_prompt", request.add_generation_prompt);
  for (const auto& [name, value] : request.extra) names.Set(name, value);
  const std::string text = names.Dump();
  const int64_t now = clock_ ? clock_() : 0;

  SmoeBytes rendered{nullptr, 0};
  SmoeOffsets breaks{nullptr, 0};
  Prompt prompt;
  SMOE_TRY(CallRust([&](SmoeBytes* error) {
    return smoe_template_render(handle_.get(), tokenizer != nullptr ? tokenizer->handle() : nullptr,
                                Borrow(text), clock_ ? &now : nullptr, &rendered, &breaks,
                                &prompt.differs_from_reference, error);
  }));
  prompt.text = Take(rendered);
  prompt.breaks = Take(breaks);
  return prompt;
}

Result<std::string> ChatTemplate::RenderText(const ChatRequest& request) const {
  SMOE_TRY_ASSIGN(Prompt prompt, Run(request, nullptr));
  return std::move(prompt.text);
}

Result<Prompt> ChatTemplate::Render(const ChatRequest& request, const Tokenizer& tokenizer) const {
  return Run(request, &tokenizer);
}

bool ChatTemplate::wants_arguments_as_text() const {
  return smoe_template_wants_text(handle_.get());
}

}  // namespace smoe::text
