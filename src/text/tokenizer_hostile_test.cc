// A tokenizer.json is a program. None may grow, backtrack or allocate without end; all that is
// published stays far below the limits (rust/text/src/budget.rs, limits.rs).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/files_for_test.h"
#include "text/tokenizer.h"
#include "text/toy_tokenizers.h"

namespace smoe::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Toy(std::string_view field, const std::string& value,
                const std::vector<ToyToken>& added = {}) {
  Json json = ParseTestJson(ByteTokenizerJson(added));
  json.Set(field, ParseTestJson(value));
  return json.Dump();
}

std::string Sequence(std::string_view list, const std::string& step, int count) {
  std::string steps = step;
  for (int i = 1; i < count; ++i) steps += "," + step;
  return fmt::format(R"({{"type": "Sequence", "{}": [{}]}})", list, steps);
}

std::string Replace(const std::string& pattern, const std::string& content) {
  return fmt::format(R"({{"type": "Replace", "pattern": {{{}}}, "content": "{}"}})", pattern,
                     content);
}

std::string Split(const std::string& regex) {
  return fmt::format(R"({{"type": "Sequence", "pretokenizers": [
      {{"type": "Split", "pattern": {{"Regex": "{}"}}, "behavior": "Isolated", "invert": false}},
      {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false}}]}})",
                     regex);
}

// What refuses the file, or else the text, or else decoding its ids.
std::string Refusal(const std::string& json, std::string_view text) {
  const Result<Tokenizer> tokenizer = Tokenizer::Load(json, "t.json");
  const auto say = [](const Error& error) {
    const bool is_regex = error.message().find("does not end") != std::string::npos;
    EXPECT_EQ(error.code(), is_regex ? ErrorCode::kUnsupported : ErrorCode::kCorrupt);
    return error.message();
  };
  if (!tokenizer) return "load: " + say(tokenizer.error());
  const Result<std::vector<uint32_t>> ids = tokenizer->Encode(text);
  if (!ids) return "encode: " + say(ids.error());
  const Result<Prompt> prompt = tokenizer->OrdinaryText(text);
  if (prompt && !tokenizer->Encode(*prompt)) return "broken";
  const Result<std::string> back = tokenizer->Decode(*ids, false);
  return back ? "none" : "decode: " + say(back.error());
}

const char* const kDot = R"("String": ".")";

TEST(Growth, NormalizersThatMultiplyAreRefusedWithTheStepThatGoesTooFar) {
  const std::string twice = Toy("normalizer", Sequence("normalizers", Replace(kDot, ".."), 60));
  // 2^20 bytes fit in the floor of 1 MiB, and so one more than 20 doublings of "." are refused.
  EXPECT_THAT(Refusal(twice, "."),
              HasSubstr("normalizer.normalizers[20] (Replace): grows 1 bytes of text to 2097152; "
                        "expected at most 1048640"));
  const std::string empty =
      Toy("normalizer", Sequence("normalizers", Replace(R"("Regex": "")", "xx"), 60));
  EXPECT_THAT(Refusal(empty, "x"), HasSubstr("(Replace): grows"));
  const std::string prepend = Sequence(
      "normalizers", R"({"type": "Prepend", "prepend": ")" + std::string(9000, 'x') + R"("})", 200);
  EXPECT_THAT(Refusal(Toy("normalizer", prepend), "x"), HasSubstr("(Prepend): grows"));
  const std::string bytes = Sequence("normalizers", R"({"type": "ByteLevel"})", 60);
  EXPECT_THAT(Refusal(Toy("normalizer", bytes), "\xc3\xa9"), HasSubstr("(ByteLevel): grows"));
}

TEST(Growth, TheLimitIsSixtyFourForEachByteAndOneMebibyte) {
  const auto toy = [](size_t bytes) {
    Json json = ParseTestJson(Toy("normalizer", Replace(kDot, std::string(bytes, 'x'))));
    return json.Set("pre_tokenizer", Json()).Dump();
  };
  EXPECT_EQ(Refusal(toy((1 << 20) + 64), "."), "none");
  EXPECT_THAT(Refusal(toy((1 << 20) + 65), "."), HasSubstr("grows 1 bytes of text to 1048641"));
}

TEST(Growth, PiecesBetweenAddedTokensShareOneLimit) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "<s>.";
  const std::string toy =
      Toy("normalizer", Replace(kDot, std::string(100000, 'x')), {{"<s>", true}});
  EXPECT_THAT(Refusal(toy, text), HasSubstr("grows 400 bytes of text to 1100000"));
}

TEST(Growth, AddedTokensAreNormalisedByTheLoaderAndBoundedBefore) {
  Json json = ParseTestJson(Toy("normalizer", Sequence("normalizers", Replace(kDot, ".."), 60)));
  Json token = ParseTestJson(R"([{"id": 256, "content": ".", "single_word": false,
      "lstrip": false, "rstrip": false, "normalized": true, "special": false}])");
  json.Set("added_tokens", token);
  EXPECT_THAT(Refusal(json.Dump(), "a"), HasSubstr("load: t.json: added_tokens: \".\": normal"));
  json.Set("normalizer", Json());
  json.Set("added_tokens", AddedTokens(256, {{std::string(4096, 'x'), false}}));
  EXPECT_EQ(Refusal(json.Dump(), "a"), "none");
  json.Set("added_tokens", AddedTokens(256, {{std::string(4097, 'x'), false}}));
  EXPECT_THAT(Refusal(json.Dump(), "a"), HasSubstr("4097 bytes, expected at most 4096"));
}

TEST(Growth, PreTokenizersThatMultiplyAreRefused) {
  const std::string byte_level = R"({"type": "ByteLevel", "add_prefix_space": false,
      "trim_offsets": true, "use_regex": false})";
  const std::string sixty = Sequence("pretokenizers", byte_level, 60);
  EXPECT_THAT(Refusal(Toy("pre_tokenizer", sixty), "\xc3\xa9"),
              HasSubstr("pre_tokenizer.pretokenizers["));
}

TEST(Growth, DecodersThatMultiplyAreRefused) {
  const std::string decoders = Sequence("decoders", Replace(R"("String": "a")", "aa"), 60);
  EXPECT_THAT(Refusal(Toy("decoder", decoders), "a"),
              HasSubstr("decode: decoder.decoders[20] (Replace): grows 1 bytes"));
  const std::string spaces = Sequence("decoders", R"({"type": "BPEDecoder", "suffix": ""})", 60);
  EXPECT_THAT(Refusal(Toy("decoder", spaces), "aaaa"), HasSubstr("(BPEDecoder): grows"));
}

TEST(Growth, ATemplateThatRepeatsTheTextIsRefused) {
  const auto toy = [](int count) {
    std::string pieces = R"({"Sequence": {"id": "A", "type_id": 0}})";
    for (int i = 1; i < count; ++i) pieces += R"(, {"Sequence": {"id": "A", "type_id": 0}})";
    return Toy("post_processor", fmt::format(R"({{"type": "TemplateProcessing", "single": [{}],
        "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}], "special_tokens": {{}}}})",
                                             pieces));
  };
  EXPECT_EQ(Refusal(toy(4), "a"), "none");
  EXPECT_THAT(Refusal(toy(5), "a"),
              HasSubstr("post_processor.single: 5 times the text, expected at most 4"));
}

TEST(Steps, ThereAreAtMostTwoHundredAndFiftySix) {
  const std::string step = R"({"type": "Lowercase"})";
  EXPECT_EQ(Refusal(Toy("normalizer", Sequence("normalizers", step, 255)), "A"), "none");
  EXPECT_THAT(Refusal(Toy("normalizer", Sequence("normalizers", step, 257)), "A"),
              HasSubstr("normalizer.normalizers[256]: more than 256 steps"));
}

TEST(Regex, ThatBacktracksForEverIsRefusedAndNotCutShortInSilence) {
  const std::string text = std::string(64, 'a') + "b";
  EXPECT_THAT(Refusal(Toy("pre_tokenizer", Split(R"((a|a)+\\1c)")), text),
              HasSubstr("pre_tokenizer.pretokenizers[0] (Split): the regex does not end"));
  EXPECT_THAT(Refusal(Toy("normalizer", Replace(R"x("Regex": "(a|a)+\\1c")x", "x")), text),
              HasSubstr("normalizer (Replace): the regex does not end"));
  // Without look-around nothing backtracks: linear in the text.
  EXPECT_EQ(Refusal(Toy("pre_tokenizer", Split("(a+)+$")), text), "none");
}

TEST(Regex, ALongRunOfSpacesIsCutRightOrRefusedButNeverLeftWhole) {
  // The pattern of GPT-2, as a Split and built into ByteLevel: all but the last space are one word.
  const std::string split = Toy("pre_tokenizer", Split(R"x(\\s+(?!\\S)|\\s?\\S+|\\s+)x"));
  for (const std::string& json : {split, ByteTokenizerJson({})}) {
    const Result<Tokenizer> tokenizer = Tokenizer::Load(json, "t.json");
    ASSERT_TRUE(tokenizer);
    const std::string text(100000, ' ');
    EXPECT_EQ(tokenizer->Encode(text + "a").value().size(), text.size() + 1);
    // The regex library keeps a state for each space, and stops at a million.
    EXPECT_THAT(Refusal(json, std::string(1100000, ' ') + "a"), HasSubstr("does not end"));
  }
}

TEST(Limits, OfModelsThatWouldTakeTimeBeyondMeasure) {
  const auto words = [](uint64_t letters) {
    Json json = ParseTestJson(ByteTokenizerJson({}));
    Json model = ParseTestJson(R"({"type": "WordPiece", "unk_token": "[UNK]",
        "continuing_subword_prefix": "##", "vocab": {"[UNK]": 0, "a": 1}})");
    model.Set("max_input_chars_per_word", letters);
    json.Set("model", model);
    return json.Dump();
  };
  EXPECT_EQ(Refusal(words(1000), "a"), "none");
  EXPECT_THAT(Refusal(words(1001), "a"),
              HasSubstr("model.max_input_chars_per_word: 1001 letters, expected at most 1000"));
  for (const size_t bytes : {256u, 257u}) {
    Json json = ParseTestJson(ByteTokenizerJson({}));
    Json model = *json.Find("model");
    model.Set("end_of_word_suffix", std::string(bytes, 'x'));
    json.Set("model", model);
    EXPECT_EQ(Refusal(json.Dump(), "a") == "none", bytes == 256) << bytes;
  }
}

TEST(Limits, ACharsmapThatClaimsFourGigabytesAllocatesNothing) {
  // ff ff ff ff: the length of the trie.
  const std::string map = R"({"type": "Precompiled", "precompiled_charsmap": "/////w=="})";
  EXPECT_THAT(Refusal(Toy("normalizer", map), "a"),
              HasSubstr("precompiled_charsmap: a trie of 4294967295 bytes in 4"));
}

TEST(Legitimate, ShortTokensAreStrippedFromBothEnds) {
  const std::string strip = R"({"type": "Sequence", "decoders": [
      {"type": "Strip", "content": "a", "start": 1, "stop": 5}]})";
  const Tokenizer tokenizer = Tokenizer::Load(Toy("decoder", strip), "t.json").value();
  EXPECT_EQ(tokenizer.Decode(std::vector<uint32_t>{'a', 'b'}, false).value(), "b");
}

TEST(Legitimate, LongTextsOfSpacesAndOfWideLigaturesPass) {
  const Result<Tokenizer> llama = Tokenizer::Load(SentencePieceTokenizerJson(), "t.json");
  ASSERT_TRUE(llama);
  EXPECT_EQ(llama->Encode(std::string(100000, ' ')).value().size(), 100001u);  // one by Prepend
  const Result<Tokenizer> nfkc =
      Tokenizer::Load(Toy("normalizer", R"({"type": "NFKC"})"), "t.json");
  ASSERT_TRUE(nfkc);
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "\xef\xb7\xba";  // U+FDFA: 33 bytes each
  EXPECT_EQ(nfkc->Encode(text).value().size(), 330000u);
}

}  // namespace
}  // namespace smoe::text
