// text/toy_tokenizers.h: the smallest tokenizer.json files that have the traits under test.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace smoe::text {

struct ToyToken {
  std::string_view content;
  bool special;
};

inline std::string Utf8Of(uint32_t code) {  // code < 0x800 is enough here
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

inline Json AddedTokens(uint32_t first_id, const std::vector<ToyToken>& tokens) {
  Json list = Json::Array{};
  for (size_t i = 0; i < tokens.size(); ++i) {
    Json token;
    token.Set("id", first_id + static_cast<uint32_t>(i));
    token.Set("content", tokens[i].content);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      token.Set(flag, false);
    }
    token.Set("special", tokens[i].special);
    list.Append(std::move(token));
  }
  return list;
}

// One token per byte, id = the byte; then `added`, from 256 on. No merges.
// Source: the byte-to-letter table of GPT-2.
inline std::string ByteTokenizerJson(const std::vector<ToyToken>& added) {
  Json vocab;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    vocab.Set(Utf8Of(printable ? byte : next++), byte);
  }
  Json byte_level = Json::Object{{"type", "ByteLevel"},
                                 {"add_prefix_space", false},
                                 {"trim_offsets", true},
                                 {"use_regex", true}};
  Json json;
  json.Set("version", "1.0");
  json.Set("added_tokens", AddedTokens(256, added));
  json.Set("pre_tokenizer", byte_level);
  json.Set("decoder", byte_level);
  json.Set("model", Json::Object{{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::Array{}}});
  return json.Dump();
}

// As in SentencePiece models: a mark for each space, bytes for what is not in the vocabulary, BOS
// by the post-processor. Ids: <unk> 0, <s> 1, </s> 2, byte b = 3 + b, then the mark, h, i, !.
inline std::string SentencePieceTokenizerJson() {
  Json vocab;
  uint32_t id = 0;
  for (const char* token : {"<unk>", "<s>", "</s>"}) vocab.Set(token, id++);
  for (uint32_t byte = 0; byte < 256; ++byte) vocab.Set(fmt::format("<0x{:02X}>", byte), id++);
  for (const char* token : {"\xe2\x96\x81", "h", "i", "!"}) vocab.Set(token, id++);
  std::string text = R"({
    "version": "1.0", "added_tokens": ADDED,
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "MARK"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "MARK"}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "MARK"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": VOCAB, "merges": []}})";
  const auto replace = [&text](std::string_view name, const std::string& value) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size()) {
      text.replace(at, name.size(), value);
    }
  };
  replace("MARK", "\xe2\x96\x81");
  replace("ADDED", AddedTokens(0, {{"<unk>", true}, {"<s>", true}, {"</s>", true}}).Dump());
  replace("VOCAB", vocab.Dump());
  return text;
}

}  // namespace smoe::text
