#include "text/tokenizer.h"

#include <fmt/core.h>

#include "text/rust_call.h"

namespace smoe::text {

void Tokenizer::Free::operator()(SmoeTokenizer* tokenizer) const { smoe_tokenizer_free(tokenizer); }

Result<Tokenizer> Tokenizer::Load(std::string_view tokenizer_json, std::string_view what) {
  SmoeTokenizer* handle = nullptr;
  Status loaded = CallRust([&](SmoeBytes* error) {
    return smoe_tokenizer_load(Borrow(tokenizer_json), &handle, error);
  });
  if (!loaded) return While(what, std::move(loaded));
  Tokenizer tokenizer(handle);
  SmoeIds prefix{nullptr, 0};
  Status found =
      CallRust([&](SmoeBytes* error) { return smoe_tokenizer_prefix(handle, &prefix, error); });
  if (!found) return While(what, std::move(found));
  tokenizer.prefix_ids_ = Take(prefix);
  return tokenizer;
}

Result<std::vector<uint32_t>> Tokenizer::Encode(std::string_view text,
                                                const EncodeOptions& options) const {
  SmoeIds ids{nullptr, 0};
  SMOE_TRY(CallRust([&](SmoeBytes* error) {
    return smoe_tokenizer_encode(handle(), Borrow(text), options.add_special,
                                 static_cast<int>(options.parse), &ids, error);
  }));
  return Take(ids);
}

Result<std::vector<uint32_t>> Tokenizer::Encode(const Prompt& prompt) const {
  SmoeIds ids{nullptr, 0};
  SMOE_TRY(CallRust([&](SmoeBytes* error) {
    return smoe_tokenizer_encode_broken(handle(), Borrow(prompt.text), prompt.breaks.data(),
                                        prompt.breaks.size(), false, &ids, error);
  }));
  return Take(ids);
}

Result<Prompt> Tokenizer::OrdinaryText(std::string_view text) const {
  SmoeOffsets breaks{nullptr, 0};
  SMOE_TRY(CallRust([&](SmoeBytes* error) {
    return smoe_tokenizer_breaks(handle(), Borrow(text), &breaks, error);
  }));
  Prompt prompt;
  prompt.text = text;
  prompt.breaks = Take(breaks);
  return prompt;
}

Result<std::string> Tokenizer::Decode(std::span<const uint32_t> ids, bool skip_special) const {
  SmoeBytes text{nullptr, 0};
  SMOE_TRY(CallRust([&](SmoeBytes* error) {
    return smoe_tokenizer_decode(handle(), ids.data(), ids.size(), skip_special, &text, error);
  }));
  return Take(text);
}

Result<std::string> Tokenizer::TokenText(uint32_t id) const {
  SmoeBytes text{nullptr, 0};
  SMOE_TRY(CallRust(
      [&](SmoeBytes* error) { return smoe_tokenizer_token_text(handle(), id, &text, error); }));
  return Take(text);
}

std::optional<uint32_t> Tokenizer::FindToken(std::string_view token) const {
  uint32_t id = 0;
  bool found = false;
  // The only failure is a text that is not UTF-8, and no token is spelt that way.
  const Status looked = CallRust([&](SmoeBytes* error) {
    return smoe_tokenizer_token_id(handle(), Borrow(token), &id, &found, error);
  });
  return looked && found ? std::optional(id) : std::nullopt;
}

bool Tokenizer::IsSpecial(uint32_t id) const { return smoe_tokenizer_is_special(handle(), id); }

uint32_t Tokenizer::vocab_size() const { return smoe_tokenizer_vocab_size(handle()); }

}  // namespace smoe::text
