// text/special_tokens.h: the named tokens of tokenizer_config.json (bos_token, eos_token, ...).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace smoe::text {

// A token is written as a text, or as {"content": text, ...}. nullopt if absent or null.
// Errors: kCorrupt for any other type.
Result<std::optional<std::string>> TokenString(const Json& tokenizer_config, std::string_view key);

// What templates get to see, as in transformers: every named token that is set, by its name, and
// additional_special_tokens as a list.
Result<Json::Object> SpecialTokens(const Json& tokenizer_config);

}  // namespace smoe::text
