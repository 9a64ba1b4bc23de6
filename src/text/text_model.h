// text/text_model.h: everything a model's files say about text, in one place.
//
// The files come from a checkpoint's folder or from a vault's annex; all are optional. Where two of
// them speak about one thing, the rule is written here:
//   - stop ids: the union of config.json, generation_config.json (eos_token_id, a number or a list)
//     and tokenizer_config.json (eos_token, a text), each with its sources
//   - ids in front of a text (BOS): add_bos_token of tokenizer_config.json, else what the
//     post-processor of tokenizer.json adds; never twice
//   - chat template: chat_template.jinja, else the one inside tokenizer_config.json, which may be
//     one text or a list of named ones; with tools the one named tool_use is preferred
// A model without tokenizer.json is fine: ids in, ids out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace smoe::text {

// The texts of the files of the same names.
struct TextFiles {
  std::optional<std::string> tokenizer_json;
  std::optional<std::string> tokenizer_config_json;
  std::optional<std::string> chat_template_jinja;
  std::optional<std::string> generation_config_json;
  std::optional<std::string> config_json;
  // additional_chat_templates/NAME.jinja, by NAME.
  std::vector<std::pair<std::string, std::string>> named_templates;
  std::string where;  // folder or vault, for messages
};

struct StopId {
  uint32_t id;
  std::string token;                 // as in the vocabulary; empty without a tokenizer
  std::vector<std::string> sources;  // such as "generation_config.json eos_token_id"
};

class TextModel {
 public:
  struct Options {
    std::function<int64_t()> clock;  // seconds since 1970 for templates; empty: the system's
  };

  // Errors: kCorrupt if a file does not parse, or a field has a type that it cannot have. A chat
  //         template that does not compile is no error here, since ids and raw text work without
  //         it: see template_status().
  static Result<TextModel> Load(const TextFiles& files, Options options);
  static Result<TextModel> Load(const TextFiles& files) { return Load(files, Options()); }

  // nullptr if there is no tokenizer.json.
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  // Errors: kInvalid, says that the model has none and that ids still work.
  Result<const Tokenizer*> RequireTokenizer() const;

  // The template for a conversation. Errors: kInvalid if the model has none; the compile error if
  // it has one that does not compile.
  Result<const ChatTemplate*> TemplateFor(bool with_tools) const;
  // The first template that does not compile; ok if all do or there are none. Converters stop here.
  Status template_status() const;
  // Names of all templates and where they are from: {"default", "chat_template.jinja"}.
  const std::vector<std::pair<std::string, std::string>>& template_sources() const {
    return template_sources_;
  }

  // Ascending by id.
  const std::vector<StopId>& stop_ids() const { return stop_ids_; }
  bool IsStop(uint32_t id) const;

  // Ids in front of every text, usually one BOS or none, and the rule that says so.
  const std::vector<uint32_t>& prefix_ids() const { return prefix_ids_; }
  const std::string& prefix_source() const { return prefix_source_; }

  // A raw completion: special tokens in the text count; the prefix is added unless the text
  // already starts with it.
  Result<std::vector<uint32_t>> EncodeRaw(std::string_view text) const;

  struct ChatPrompt {
    std::vector<uint32_t> ids;
    Prompt prompt;
  };
  // A conversation: rendered, then encoded with what users wrote kept ordinary text. The prefix is
  // added unless the template has written it.
  Result<ChatPrompt> EncodeChat(const ChatRequest& request) const;

  // What is odd but not wrong, one sentence each, such as an eos_token that is not in the
  // vocabulary.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  struct NamedTemplate {
    std::string name;
    Result<ChatTemplate> compiled;
  };

  Status ReadTokenizer(const TextFiles& files);
  Status ReadStopIds(const Json& ids, const std::string& source);
  Status ReadAllStopIds(const Json& tokenizer_config, const Json& generation, const Json& config);
  void CompareAddedTokens(const Json& tokenizer_config);
  Status ReadPrefix(const Json& tokenizer_config, const Json& generation, const Json& config);
  Status ReadTemplates(const TextFiles& files, const Json& tokenizer_config,
                       const Options& options);
  void AddStop(uint32_t id, const std::string& source);
  void AddTemplate(std::string_view name, std::string_view source, std::string_view origin,
                   const ChatTemplate::Options& options);
  std::vector<uint32_t> WithPrefix(std::vector<uint32_t> ids) const;

  std::string where_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<NamedTemplate> templates_;
  std::vector<std::pair<std::string, std::string>> template_sources_;
  std::vector<StopId> stop_ids_;
  std::vector<uint32_t> prefix_ids_;
  std::string prefix_source_;
  std::vector<std::string> notices_;
};

}  // namespace smoe::text
