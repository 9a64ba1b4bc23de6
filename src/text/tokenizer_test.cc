#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/files_for_test.h"
#include "text/rust_call.h"
#include "text/token_stream.h"
#include "text/toy_tokenizers.h"

namespace smoe::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<uint32_t> IdsOf(const Json& list) {
  std::vector<uint32_t> ids;
  for (const Json& id : *list.AsArray()) ids.push_back(static_cast<uint32_t>(*id.AsUint()));
  return ids;
}

Tokenizer LoadOrDie(const std::string& json) {
  Result<Tokenizer> tokenizer = Tokenizer::Load(json, "tokenizer.json");
  if (!tokenizer) ADD_FAILURE() << tokenizer.error().message();
  return std::move(*tokenizer);
}

class TinyTokenizer : public testing::Test {
 protected:
  Tokenizer tokenizer_ = LoadOrDie(TinyMoeFile("tokenizer.json"));
};

std::string StreamAll(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids, bool skip) {
  TokenStream stream(tokenizer, skip);
  std::string all;
  for (const uint32_t id : ids) all += stream.Push(id).value_or("<refused>");
  return all + stream.Finish().value_or("<refused>");
}

TEST_F(TinyTokenizer, B01EveryGoldenStringHasTheIdsOfTheReference) {
  const Json goldens = ParseTestJson(TinyMoeFile("tokenizer_goldens.json"));
  const Json::Array& strings = *goldens.Find("strings")->AsArray();
  ASSERT_GT(strings.size(), 50u);
  for (const Json& golden : strings) {
    const std::string& text = *golden.Find("text")->AsString();
    const std::vector<uint32_t> ids = IdsOf(*golden.Find("ids"));
    const std::vector<uint32_t> plain = IdsOf(*golden.Find("ids_without_special"));
    EXPECT_EQ(tokenizer_.Encode(text).value(), ids) << text;
    EXPECT_EQ(tokenizer_.Encode(text, {false, ParseTokens::kNotSpecial}).value(), plain) << text;
    EXPECT_EQ(tokenizer_.Decode(ids, false).value(), *golden.Find("decoded")->AsString());
    const std::string& skipped = *golden.Find("decoded_skip_special")->AsString();
    EXPECT_EQ(tokenizer_.Decode(ids, true).value(), skipped);
    const std::string& decoded_plain = *golden.Find("decoded_without_special")->AsString();
    EXPECT_EQ(tokenizer_.Decode(plain, false).value(), decoded_plain);
    EXPECT_EQ(StreamAll(tokenizer_, ids, false), *golden.Find("decoded")->AsString());
    EXPECT_EQ(StreamAll(tokenizer_, ids, true), skipped);
  }
}

TEST_F(TinyTokenizer, AnIdOutOfRangeIsRefusedWithTheSizeOfTheVocabulary) {
  EXPECT_EQ(tokenizer_.vocab_size(), 2048u);
  const Result<std::string> text = tokenizer_.Decode(std::vector<uint32_t>{2048}, false);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(text.error().message(), HasSubstr("2048 is out of range"));
  EXPECT_THAT(text.error().message(), HasSubstr("2048 ids"));
  EXPECT_TRUE(tokenizer_.Decode(std::vector<uint32_t>{2047}, false));
  EXPECT_FALSE(tokenizer_.TokenText(2048));
}

TEST_F(TinyTokenizer, TokensAreFoundByTextAndSpeltById) {
  EXPECT_EQ(tokenizer_.FindToken("<|im_end|>"), 2043u);
  EXPECT_EQ(tokenizer_.FindToken("<tool_call>"), 2044u);
  EXPECT_EQ(tokenizer_.FindToken("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer_.TokenText(2043).value(), "<|im_end|>");
  EXPECT_TRUE(tokenizer_.IsSpecial(2043));
  EXPECT_FALSE(tokenizer_.IsSpecial(2044));
  EXPECT_FALSE(tokenizer_.IsSpecial(1u << 31));
}

TEST_F(TinyTokenizer, B01BytesThatAreNotUtf8BecomeReplacementCharacters) {
  // Python: b"a\xffb\xe6\x97c".decode(errors="replace") == "a\ufffdb\ufffdc".
  EXPECT_EQ(tokenizer_
                .Encode("a\xff"
                        "b\xe6\x97"
                        "c")
                .value(),
            tokenizer_
                .Encode("a\xef\xbf\xbd"
                        "b\xef\xbf\xbd"
                        "c")
                .value());
  Prompt prompt;
  prompt.text = "a\xff";
  prompt.breaks = {1};
  EXPECT_FALSE(tokenizer_.Encode(prompt));
}

TEST(ByteLevelWithoutMerges, B01IdsAreTheBytesOfTheText) {
  const std::string path =
      std::string(SMOE_SHARED_DIR) + "/reference/checkpoints/qwen3_moe/tokenizer.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const Tokenizer tokenizer = LoadOrDie(ReadTestFile(path));
  // In this vocabulary the id of byte b is b: its tokens are the byte-level letters in byte order.
  const std::string text = "Caf\xc3\xa9 1,\t\xf0\x9f\x98\x8a\r\n";
  std::vector<uint32_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  EXPECT_EQ(tokenizer.Encode(text).value(), bytes);
  EXPECT_EQ(tokenizer.Decode(bytes, false).value(), text);
}

TEST(Refusal, B01AnUnknownPreTokenizerIsRefusedAndNotApproximated) {
  std::string json = ByteTokenizerJson({});
  json.replace(json.find("ByteLevel"), 9, "ByteMagic");
  const Result<Tokenizer> tokenizer = Tokenizer::Load(json, "x/tokenizer.json");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(tokenizer.error().message(), HasSubstr("x/tokenizer.json: "));
  EXPECT_THAT(tokenizer.error().message(),
              HasSubstr("found normalizer none, pre_tokenizer ByteMagic"));
}

TEST(Refusal, EveryTruncationOfATokenizerIsRefused) {
  const std::string json = ByteTokenizerJson({{"<think>", false}});
  for (size_t size = 0; size < json.size(); size += 7) {
    EXPECT_FALSE(Tokenizer::Load(std::string_view(json).substr(0, size), "t")) << size;
  }
}

TEST(Refusal, AnIdFarBeyondTheVocabularySizesNoTable) {
  std::string json = ByteTokenizerJson({});
  const std::string last = "\xc3\xbf\": 255";
  const size_t at = json.find(last);
  ASSERT_NE(at, std::string::npos);
  json.replace(at, last.size(), "\xc3\xbf\": 4294967290");
  const Result<Tokenizer> tokenizer = Tokenizer::Load(json, "t");
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message(), HasSubstr("the largest id is 4294967290"));
}

TEST(Refusal, B06AVocabularyThatMakesControlTokensOfOrdinaryTextIsRefusedThere) {
  // <s> is a word of the model too, and ignore_merges lets a whole word win.
  std::string json = ByteTokenizerJson({{"<s>", true}});
  const auto replace = [&json](std::string_view from, std::string_view to) {
    const size_t at = json.find(from);
    ASSERT_NE(at, std::string::npos);
    json.replace(at, from.size(), to);
  };
  replace("\xc3\xbf\": 255", "\xc3\xbf\": 255, \"<s>\": 256");
  replace("\"merges\": []", "\"merges\": [], \"ignore_merges\": true");
  replace("\"use_regex\": true", "\"use_regex\": false");
  const Tokenizer tokenizer = LoadOrDie(json);
  EXPECT_THAT(tokenizer.Encode("<s>").value(), ElementsAre(256));
  EXPECT_FALSE(tokenizer.Encode(tokenizer.OrdinaryText("<s>").value()));
  EXPECT_FALSE(tokenizer.Encode("<s>", {false, ParseTokens::kNoControl}));
  EXPECT_TRUE(tokenizer.Encode(tokenizer.OrdinaryText("x <s>").value()));
}

TEST(AddedTokens, B02OneThatIsNotSpecialIsStillOneIdAndStaysVisible) {
  const Tokenizer tokenizer =
      LoadOrDie(ByteTokenizerJson({{"<think>", false}, {"<|im_end|>", true}}));
  const std::vector<uint32_t> ids = tokenizer.Encode("a<think>b<|im_end|>").value();
  EXPECT_THAT(ids, ElementsAre('a', 256, 'b', 257));
  EXPECT_EQ(tokenizer.Decode(ids, true).value(), "a<think>b");
  EXPECT_EQ(tokenizer.Decode(ids, false).value(), "a<think>b<|im_end|>");
  EXPECT_EQ(StreamAll(tokenizer, ids, true), "a<think>b");
}

std::vector<std::string> Deltas(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
  TokenStream stream(tokenizer, true);
  std::vector<std::string> deltas;
  for (const uint32_t id : ids) deltas.push_back(stream.Push(id).value());
  deltas.push_back(stream.Finish().value());
  return deltas;
}

constexpr char kSmile[] = "\xf0\x9f\x98\x80";
constexpr char kReplacement[] = "\xef\xbf\xbd";

TEST(TokenStream, B03ACharacterOfFourTokensComesWholeAndTextIsNotHeldBack) {
  const Tokenizer tokenizer = LoadOrDie(ByteTokenizerJson({}));
  EXPECT_THAT(Deltas(tokenizer, {'h', 'i', 0xf0, 0x9f, 0x98, 0x80, '!'}),
              ElementsAre("h", "i", "", "", "", kSmile, "!", ""));
}

TEST(TokenStream, B03BrokenBytesGiveOneReplacementEachAndDoNotStall) {
  const Tokenizer tokenizer = LoadOrDie(ByteTokenizerJson({}));
  EXPECT_THAT(Deltas(tokenizer, {0xff, 0xff, 'a'}),
              ElementsAre(kReplacement, kReplacement, "a", ""));
  // A character cut off by a letter, then one cut off by the end.
  EXPECT_THAT(Deltas(tokenizer, {0xe6, 0x97, 'c', 0xf0, 0x9f}),
              ElementsAre("", "", std::string(kReplacement) + "c", "", "", kReplacement));
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 3000; ++i) ids.push_back((i * 7919 + i / 3) % 256);
  EXPECT_EQ(StreamAll(tokenizer, ids, false), tokenizer.Decode(ids, false).value());
}

TEST(TokenStream, B03HoldsForVocabulariesWithByteFallback) {
  const Tokenizer tokenizer = LoadOrDie(SentencePieceTokenizerJson());
  const uint32_t mark = 3 + 256;
  const std::vector<uint32_t> ids = tokenizer.Encode("hi\xf0\x9f\x98\x80 hi!").value();
  EXPECT_THAT(ids, ElementsAre(mark, mark + 1, mark + 2, 3 + 0xf0, 3 + 0x9f, 3 + 0x98, 3 + 0x80,
                               mark, mark + 1, mark + 2, mark + 3));
  EXPECT_THAT(Deltas(tokenizer, ids),
              ElementsAre("", "h", "i", "", "", "", kSmile, " ", "h", "i", "!", ""));
  EXPECT_EQ(tokenizer.Decode(ids, true).value(), "hi\xf0\x9f\x98\x80 hi!");
  // Broken bytes do not stall, and both ways of decoding agree.
  const std::vector<uint32_t> broken = {mark + 1, 3 + 0xff, 3 + 0xff, 3 + 0xff, 3 + 0xff, 3 + 0xff,
                                        mark + 2, 3 + 0xc3, 3 + 0xa9, 3 + 0xc3, mark + 3};
  EXPECT_EQ(StreamAll(tokenizer, broken, true), tokenizer.Decode(broken, true).value());
  EXPECT_THAT(Deltas(tokenizer, broken)[4], HasSubstr(kReplacement));
}

TEST(TokenStream, RefusesAnIdOutOfRangeAndGoesOn) {
  const Tokenizer tokenizer = LoadOrDie(ByteTokenizerJson({}));
  TokenStream stream(tokenizer, true);
  EXPECT_EQ(stream.Push('a').value(), "a");
  const Result<std::string> refused = stream.Push(256);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("256 is out of range: the vocabulary has 256"));
  EXPECT_EQ(stream.Push('b').value(), "b");
}

TEST(TokenStream, OutlivesItsTokenizer) {
  auto tokenizer = std::make_unique<Tokenizer>(LoadOrDie(ByteTokenizerJson({})));
  TokenStream stream(*tokenizer, true);
  tokenizer.reset();
  EXPECT_EQ(stream.Push('a').value(), "a");
}

TEST(Breaks, B06AControlTokenIsNotRecognisedAcrossABreak) {
  const Tokenizer tokenizer = LoadOrDie(ByteTokenizerJson({{"<s>", true}, {"<t>", false}}));
  Prompt prompt;
  prompt.text = "<s><s>";
  prompt.breaks = {1};
  EXPECT_THAT(tokenizer.Encode(prompt).value(), ElementsAre('<', 's', '>', 256));
  prompt.breaks = {3};
  EXPECT_THAT(tokenizer.Encode(prompt).value(), ElementsAre(256, 256));
  prompt.breaks = {5, 4};
  EXPECT_FALSE(tokenizer.Encode(prompt));
  prompt.breaks = {7};
  EXPECT_FALSE(tokenizer.Encode(prompt));
  const Prompt ordinary = tokenizer.OrdinaryText("<s>a<t>").value();
  EXPECT_THAT(tokenizer.Encode(ordinary).value(), ElementsAre('<', 's', '>', 'a', '<', 't', '>'));
  EXPECT_THAT(tokenizer.Encode("<s>a<t>", {false, ParseTokens::kNoControl}).value(),
              ElementsAre('<', 's', '>', 'a', '<', 't', '>'));
  EXPECT_THAT(tokenizer.Encode("<s>a<t>", {false, ParseTokens::kNotSpecial}).value(),
              ElementsAre('<', 's', '>', 'a', 257));
}

TEST_F(TinyTokenizer, B06BreaksThatCutNoControlTokenChangeNoId) {
  const Json goldens = ParseTestJson(TinyMoeFile("tokenizer_goldens.json"));
  for (const Json& golden : *goldens.Find("strings")->AsArray()) {
    Prompt prompt;
    prompt.text = *golden.Find("text")->AsString();
    if (prompt.text.find('<') != std::string::npos) continue;
    for (size_t at = 0; at <= prompt.text.size(); ++at) {
      const bool inside = at < prompt.text.size() && (prompt.text[at] & 0xc0) == 0x80;
      if (!inside) prompt.breaks.push_back(at);
    }
    EXPECT_EQ(tokenizer_.Encode(prompt).value(), IdsOf(*golden.Find("ids"))) << prompt.text;
  }
}

TEST(Breaks, AddedTokensThatDoNotSteerAreRecognisedInEveryText) {
  // Runs of spaces, as in the tokenizer of OLMoE: without them indented code has other ids.
  const Tokenizer tokenizer = LoadOrDie(ByteTokenizerJson({{"    ", false}, {"<s>", true}}));
  EXPECT_THAT(tokenizer.Encode("a    b<s>", {false, ParseTokens::kNoControl}).value(),
              ElementsAre('a', 256, 'b', '<', 's', '>'));
  EXPECT_THAT(tokenizer.Encode(tokenizer.OrdinaryText("a    <s>").value()).value(),
              ElementsAre('a', 256, '<', 's', '>'));
}

TEST(Panic, StaysInsideTheCrateAndArrivesAsText) {
  const Status status = CallRust(smoe_test_panic);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "panic: on purpose");
}

}  // namespace
}  // namespace smoe::text
