#include "text/text_model.h"

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "text/special_tokens.h"

namespace smoe::text {

namespace {

Result<Json> ParseOptional(const std::optional<std::string>& text, const std::string& where,
                           std::string_view name) {
  if (!text) return Json();
  const std::string what = where.empty() ? std::string(name) : fmt::format("{}: {}", where, name);
  SMOE_TRY_ASSIGN(Json json, Json::Parse(*text, what));
  if (!json.is_object()) return Corrupt("{}: expected an object, found {}", what, json.type_name());
  return json;
}

std::optional<uint32_t> AsId(const Json& json) {
  const std::optional<uint64_t> id = json.AsUint();
  if (!id || *id > std::numeric_limits<uint32_t>::max()) return std::nullopt;
  return static_cast<uint32_t>(*id);
}

// The member of a config, or of its text_config: wrappers of several models nest it. Nested wins.
const Json* FindNested(const Json& config, std::string_view key) {
  if (const Json* nested = config.Find("text_config")) {
    if (const Json* found = nested->Find(key)) return found;
  }
  return config.Find(key);
}

}  // namespace

Result<TextModel> TextModel::Load(const TextFiles& files, Options options) {
  TextModel model;
  model.where_ = files.where;
  const auto parse = [&](const std::optional<std::string>& text, std::string_view name) {
    return ParseOptional(text, files.where, name);
  };
  SMOE_TRY_ASSIGN(const Json tokenizer_config,
                  parse(files.tokenizer_config_json, "tokenizer_config.json"));
  SMOE_TRY_ASSIGN(const Json generation,
                  parse(files.generation_config_json, "generation_config.json"));
  SMOE_TRY_ASSIGN(const Json config, parse(files.config_json, "config.json"));
  SMOE_TRY(model.ReadTokenizer(files));
  SMOE_TRY(model.ReadAllStopIds(tokenizer_config, generation, config));
  model.CompareAddedTokens(tokenizer_config);
  SMOE_TRY(model.ReadPrefix(tokenizer_config, generation, config));
  SMOE_TRY(model.ReadTemplates(files, tokenizer_config, options));
  return model;
}

Status TextModel::ReadTokenizer(const TextFiles& files) {
  if (!files.tokenizer_json) return Ok();
  const std::string what =
      where_.empty() ? "tokenizer.json" : fmt::format("{}: tokenizer.json", where_);
  SMOE_TRY_ASSIGN(tokenizer_, Tokenizer::Load(*files.tokenizer_json, what));
  return Ok();
}

void TextModel::AddStop(uint32_t id, const std::string& source) {
  const auto at =
      std::lower_bound(stop_ids_.begin(), stop_ids_.end(), id,
                       [](const StopId& stop, uint32_t wanted) { return stop.id < wanted; });
  if (at != stop_ids_.end() && at->id == id) {
    at->sources.push_back(source);
    return;
  }
  std::string token;
  if (tokenizer_) {
    // An id beyond the vocabulary is a padding row of the output layer: it still stops.
    if (Result<std::string> text = tokenizer_->TokenText(id)) token = *text;
  }
  stop_ids_.insert(at, StopId{id, std::move(token), {source}});
}

Status TextModel::ReadStopIds(const Json& ids, const std::string& source) {
  if (const std::optional<uint32_t> id = AsId(ids)) {
    AddStop(*id, source);
    return Ok();
  }
  const Json::Array* list = ids.AsArray();
  // -1 is how some configs write "none".
  if (list == nullptr && ids.AsInt() == -1) return Ok();
  if (list == nullptr) {
    return Corrupt("{}: {}: expected an id or a list of ids, found {}", where_, source, ids.Dump());
  }
  for (const Json& item : *list) {
    const std::optional<uint32_t> id = AsId(item);
    if (!id) return Corrupt("{}: {}: expected an id, found {}", where_, source, item.Dump());
    AddStop(*id, source);
  }
  return Ok();
}

Status TextModel::ReadAllStopIds(const Json& tokenizer_config, const Json& generation,
                                 const Json& config) {
  if (const Json* ids = FindNested(config, "eos_token_id")) {
    SMOE_TRY(ReadStopIds(*ids, "config.json eos_token_id"));
  }
  if (const Json* ids = generation.Find("eos_token_id")) {
    SMOE_TRY(ReadStopIds(*ids, "generation_config.json eos_token_id"));
  }
  SMOE_TRY_ASSIGN(const std::optional<std::string> eos, TokenString(tokenizer_config, "eos_token"));
  if (!eos || !tokenizer_) return Ok();
  if (const std::optional<uint32_t> id = tokenizer_->FindToken(*eos)) {
    AddStop(*id, "tokenizer_config.json eos_token");
  } else {
    notices_.push_back(fmt::format(
        "tokenizer_config.json: eos_token {} is not in the vocabulary of tokenizer.json", *eos));
  }
  return Ok();
}

bool TextModel::IsStop(uint32_t id) const {
  return std::any_of(stop_ids_.begin(), stop_ids_.end(),
                     [id](const StopId& stop) { return stop.id == id; });
}

void TextModel::CompareAddedTokens(const Json& tokenizer_config) {
  const Json* listed = tokenizer_config.Find("added_tokens_decoder");
  if (!tokenizer_ || listed == nullptr || !listed->is_object()) return;
  for (const auto& [id, token] : *listed->AsObject()) {
    const Json* content = token.Find("content");
    if (content == nullptr || !content->is_string()) continue;
    const std::optional<uint32_t> found = tokenizer_->FindToken(*content->AsString());
    if (found && std::to_string(*found) == id) continue;
    notices_.push_back(fmt::format(
        "tokenizer_config.json: added_tokens_decoder: {} has id {}, tokenizer.json has {}",
        *content->AsString(), id, found ? std::to_string(*found) : "no such token"));
  }
}

Status TextModel::ReadPrefix(const Json& tokenizer_config, const Json& generation,
                             const Json& config) {
  if (!tokenizer_) return Ok();
  const Json* add = tokenizer_config.Find("add_bos_token");
  if (add == nullptr) {
    prefix_ids_ = tokenizer_->prefix_ids();
    prefix_source_ = "tokenizer.json post_processor";
    return Ok();
  }
  prefix_source_ = "tokenizer_config.json add_bos_token";
  const std::optional<bool> wanted = add->AsBool();
  if (!wanted) {
    return Corrupt("{}: {}: expected true or false, found {}", where_, prefix_source_, add->Dump());
  }
  if (!*wanted) return Ok();
  SMOE_TRY_ASSIGN(const std::optional<std::string> bos, TokenString(tokenizer_config, "bos_token"));
  std::optional<uint32_t> id = bos ? tokenizer_->FindToken(*bos) : std::nullopt;
  for (const Json* found : {generation.Find("bos_token_id"), FindNested(config, "bos_token_id")}) {
    if (!id && found != nullptr) id = AsId(*found);
  }
  if (id) {
    prefix_ids_ = {*id};
  } else {
    notices_.push_back("tokenizer_config.json: add_bos_token is true, but no bos token is known");
  }
  return Ok();
}

void TextModel::AddTemplate(std::string_view name, std::string_view source, std::string_view origin,
                            const ChatTemplate::Options& options) {
  const bool known = std::any_of(templates_.begin(), templates_.end(),
                                 [name](const NamedTemplate& other) { return other.name == name; });
  if (known) return;  // an earlier source wins
  const std::string what =
      where_.empty() ? std::string(origin) : fmt::format("{}: {}", where_, origin);
  templates_.push_back({std::string(name), ChatTemplate::Compile(source, what, options)});
  template_sources_.emplace_back(name, origin);
}

Status TextModel::ReadTemplates(const TextFiles& files, const Json& tokenizer_config,
                                const Options& options) {
  SMOE_TRY_ASSIGN(Json::Object special_tokens, SpecialTokens(tokenizer_config));
  const ChatTemplate::Options compile{std::move(special_tokens), options.clock};
  if (files.chat_template_jinja) {
    AddTemplate("default", *files.chat_template_jinja, "chat_template.jinja", compile);
  }
  for (const auto& [name, source] : files.named_templates) {
    AddTemplate(name, source, fmt::format("additional_chat_templates/{}.jinja", name), compile);
  }
  const Json* inlined = tokenizer_config.Find("chat_template");
  // A file beats everything inline, the named ones included: they belong to the older default.
  if (inlined == nullptr || files.chat_template_jinja) return Ok();
  const std::string origin = "tokenizer_config.json chat_template";
  if (const std::string* source = inlined->AsString()) {
    AddTemplate("default", *source, origin, compile);
    return Ok();
  }
  const Json::Array* list = inlined->AsArray();
  if (list == nullptr) {
    return Corrupt("{}: {}: expected a text or a list, found {}", where_, origin,
                   inlined->type_name());
  }
  for (const Json& item : *list) {
    const Json* name = item.Find("name");
    const Json* source = item.Find("template");
    if (name == nullptr || !name->is_string() || source == nullptr || !source->is_string()) {
      return Corrupt("{}: {}: expected items with name and template, found {}", where_, origin,
                     item.type_name());
    }
    AddTemplate(*name->AsString(), *source->AsString(),
                fmt::format("{} {}", origin, *name->AsString()), compile);
  }
  return Ok();
}

Result<const Tokenizer*> TextModel::RequireTokenizer() const {
  if (tokenizer_) return &*tokenizer_;
  return Invalid("{}: the model has no tokenizer.json; give token ids, or name a tokenizer file",
                 where_);
}

Result<const ChatTemplate*> TextModel::TemplateFor(bool with_tools) const {
  const NamedTemplate* chosen = nullptr;
  for (const NamedTemplate& candidate : templates_) {
    if (candidate.name == "default" && chosen == nullptr) chosen = &candidate;
    if (candidate.name == "tool_use" && with_tools) chosen = &candidate;
  }
  if (chosen == nullptr) {
    return Invalid(
        "{}: the model has no chat template (neither chat_template.jinja nor chat_template in "
        "tokenizer_config.json); raw completion works",
        where_);
  }
  if (!chosen->compiled) return Unexpected(chosen->compiled.error());
  return &*chosen->compiled;
}

Status TextModel::template_status() const {
  for (const NamedTemplate& candidate : templates_) {
    if (!candidate.compiled) return Unexpected(candidate.compiled.error());
  }
  return Ok();
}

std::vector<uint32_t> TextModel::WithPrefix(std::vector<uint32_t> ids) const {
  const bool starts = ids.size() >= prefix_ids_.size() &&
                      std::equal(prefix_ids_.begin(), prefix_ids_.end(), ids.begin());
  if (!starts) ids.insert(ids.begin(), prefix_ids_.begin(), prefix_ids_.end());
  return ids;
}

Result<std::vector<uint32_t>> TextModel::EncodeRaw(std::string_view text) const {
  SMOE_TRY_ASSIGN(const Tokenizer* tokenizer, RequireTokenizer());
  SMOE_TRY_ASSIGN(std::vector<uint32_t> ids, tokenizer->Encode(text));
  return WithPrefix(std::move(ids));
}

Result<TextModel::ChatPrompt> TextModel::EncodeChat(const ChatRequest& request) const {
  SMOE_TRY_ASSIGN(const Tokenizer* tokenizer, RequireTokenizer());
  const Json::Array* tools = request.tools.AsArray();
  SMOE_TRY_ASSIGN(const ChatTemplate* chat_template,
                  TemplateFor(tools != nullptr && !tools->empty()));
  ChatPrompt chat;
  SMOE_TRY_ASSIGN(chat.prompt, chat_template->Render(request, *tokenizer));
  SMOE_TRY_ASSIGN(std::vector<uint32_t> ids, tokenizer->Encode(chat.prompt));
  chat.ids = WithPrefix(std::move(ids));
  if (chat.prompt.differs_from_reference) {
    LogWarning(
        "chat template: it looked for a control token in a message, where control tokens are "
        "ordinary text; the prompt differs from the reference's");
  }
  return chat;
}

}  // namespace smoe::text
