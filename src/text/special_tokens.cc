#include "text/special_tokens.h"

namespace smoe::text {

namespace {

// Source: SPECIAL_TOKENS_ATTRIBUTES of transformers.
constexpr std::string_view kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};

const std::string* TextOf(const Json& token) {
  if (token.is_string()) return token.AsString();
  const Json* content = token.Find("content");
  return content != nullptr ? content->AsString() : nullptr;
}

}  // namespace

Result<std::optional<std::string>> TokenString(const Json& tokenizer_config, std::string_view key) {
  const Json* token = tokenizer_config.Find(key);
  if (token == nullptr) return std::nullopt;
  const std::string* text = TextOf(*token);
  if (text == nullptr) {
    return Corrupt("tokenizer_config.json: {}: expected a text or an object with content, found {}",
                   key, token->type_name());
  }
  return *text;
}

Result<Json::Object> SpecialTokens(const Json& tokenizer_config) {
  Json::Object tokens;
  for (const std::string_view key : kNamedTokens) {
    SMOE_TRY_ASSIGN(std::optional<std::string> text, TokenString(tokenizer_config, key));
    if (text) tokens.emplace_back(key, std::move(*text));
  }
  const Json* more = tokenizer_config.Find("additional_special_tokens");
  if (more != nullptr && more->is_array()) {
    Json list = Json::Array{};
    for (const Json& token : *more->AsArray()) {
      if (const std::string* text = TextOf(token)) list.Append(*text);
    }
    tokens.emplace_back("additional_special_tokens", std::move(list));
  }
  return tokens;
}

}  // namespace smoe::text
