// text/tokenizer.h: text to token ids and back, exactly as the reference library does it, because
// it is the reference library (Hugging Face tokenizers, through rust/text).
//
// Three kinds of tokens matter here. *Added* tokens are found in the text before anything else.
// *Special* added tokens (<|im_end|>) are also hidden when decoding with skip_special. *Control*
// tokens are those that steer the model: special ones, and added ones in the shape of a marker
// (<think>, <tool_call>, [INST]), which are shown but must not be forged by users either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/prompt.h"

struct SmoeTokenizer;

namespace smoe::text {

// Which added tokens Encode recognises in a text.
enum class ParseTokens {
  kAll,         // as the reference library: for text that we or a template wrote
  kNotSpecial,  // as its encode_special_tokens: special ones are ordinary text
  kNoControl,   // for text that anybody may have written
};

struct EncodeOptions {
  bool add_special = false;  // what the tokenizer's post-processor adds, usually BOS in front
  ParseTokens parse = ParseTokens::kAll;
};

// Immutable. Move-only; a TokenStream keeps what it needs of it alive by itself.
// Threads: any number of callers at a time.
class Tokenizer {
 public:
  // Reads the text of a tokenizer.json; `what` names it in messages, usually its path.
  // Errors: kCorrupt with the library's reason, also for a pre-tokenizer, normaliser or model type
  //         that it does not implement: nothing is approximated.
  // Cost:   about 0.05 s per megabyte of JSON
  static Result<Tokenizer> Load(std::string_view tokenizer_json, std::string_view what);

  // Ids of one text. Bytes that are not UTF-8 become U+FFFD first, one per maximal broken part,
  // like Python's decode(errors="replace").
  // Cost: about 1 s per megabyte
  Result<std::vector<uint32_t>> Encode(std::string_view text,
                                       const EncodeOptions& options = {}) const;

  // Ids of a prompt; its breaks are respected. Nothing is added in front (see TextModel for BOS).
  // Errors: kInvalid if the text is not UTF-8 or a break is not on a character border.
  Result<std::vector<uint32_t>> Encode(const Prompt& prompt) const;

  // `text` with breaks through every control token in it: for building prompts by hand.
  Result<Prompt> OrdinaryText(std::string_view text) const;

  // Text of ids; broken UTF-8 becomes U+FFFD. Equal to the sum of what a TokenStream returns.
  // Errors: kInvalid with the id and the vocabulary's size if an id is out of range.
  Result<std::string> Decode(std::span<const uint32_t> ids, bool skip_special) const;

  // The token as it is spelt in the vocabulary (with its byte-level letters); empty for an id that
  // has none. Errors: kInvalid if the id is out of range.
  Result<std::string> TokenText(uint32_t id) const;

  std::optional<uint32_t> FindToken(std::string_view token) const;
  bool IsSpecial(uint32_t id) const;  // false for an id that is out of range

  // The largest id plus one. A model's output layer may have more rows, which are padding.
  uint32_t vocab_size() const;

  // The ids that add_special puts in front of a text.
  const std::vector<uint32_t>& prefix_ids() const { return prefix_ids_; }

  const SmoeTokenizer* handle() const { return handle_.get(); }  // for this folder only

 private:
  struct Free {
    void operator()(SmoeTokenizer* tokenizer) const;
  };

  explicit Tokenizer(SmoeTokenizer* handle) : handle_(handle) {}

  std::unique_ptr<SmoeTokenizer, Free> handle_;
  std::vector<uint32_t> prefix_ids_;
};

}  // namespace smoe::text
