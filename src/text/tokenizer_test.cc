#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/rust_call.h"
#include "text/test_files.h"
#include "text/token_stream.h"

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

TEST(Panic, StaysInsideTheCrateAndArrivesAsText) {
  const Status status = CallRust(smoe_test_panic);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "panic: on purpose");
}

}  // namespace
}  // namespace smoe::text
