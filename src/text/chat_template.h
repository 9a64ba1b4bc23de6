// text/chat_template.h: a conversation as the text that the model was trained on.
//
// A checkpoint brings its own Jinja template. It is rendered as transformers does it (sandboxed
// Jinja2 with trim_blocks, lstrip_blocks, loop controls, its own tojson, raise_exception,
// strftime_now, generation blocks), to the byte. What cannot be rendered is refused when the
// template is compiled; there is no fallback to another template.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

struct SmoeTemplate;

namespace smoe::text {

// One request to a chat template.
struct ChatRequest {
  // Array of {"role", "content", "tool_calls", ...} in the OpenAI form. Arguments of tool calls may
  // be JSON text or an object: each template gets the shape it can use. Text that is not an object
  // is passed on as text.
  Json messages = Json::Array{};
  Json tools;                         // array of tool definitions, or null
  bool add_generation_prompt = true;  // end with the opening of the model's turn
  Json::Object extra;                 // more names for the template, such as enable_thinking

  // Appends {"role": role, "content": content}.
  void Add(std::string_view role, std::string_view content);
};

// Immutable. Move-only. Threads: any number of callers at a time.
class ChatTemplate {
 public:
  struct Options {
    // Names the template may use that are the model's own and trusted, such as {"bos_token":
    // "<s>"}.
    Json::Object special_tokens;
    // Seconds since 1970 for strftime_now; empty means the system's clock.
    std::function<int64_t()> clock;
  };

  // `what` names the template in messages.
  // Errors: kUnsupported with line and column for a syntax error, an unknown tag, filter, test or
  //         method.
  static Result<ChatTemplate> Compile(std::string_view source, std::string_view what,
                                      Options options);

  // The text alone, with nothing kept apart: what the reference returns.
  // Errors: kInvalid if the template refuses the conversation (raise_exception: its text, and the
  //         index of the message that made it do so, counted from 0, where that can be told) or
  //         cannot render it (line and column).
  // Limits: about a second of work, then kInvalid ("engine ran out of fuel")
  Result<std::string> RenderText(const ChatRequest& request) const;

  // As RenderText, but control tokens of `tokenizer` that stand in the request are kept from
  // becoming real ones. In an earlier answer (role assistant, its content and reasoning) visible
  // marks such as <think> stay real, since templates look for them and the model wrote them.
  // Cost: a second rendering if the request holds something like a control token
  Result<Prompt> Render(const ChatRequest& request, const Tokenizer& tokenizer) const;

  // The template wants tool-call arguments as JSON text and not as a mapping. Found by trying.
  bool wants_arguments_as_text() const;

 private:
  struct Free {
    void operator()(SmoeTemplate* chat_template) const;
  };

  Result<Prompt> Run(const ChatRequest& request, const Tokenizer* tokenizer) const;

  std::unique_ptr<SmoeTemplate, Free> handle_;
  std::function<int64_t()> clock_;
};

}  // namespace smoe::text
