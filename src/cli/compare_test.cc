// smoe compare as a user meets it, on the bundled checkpoint and vaults made of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "cli/console_for_test.h"
#include "convert/files_for_test.h"

namespace smoe::cli {
namespace {

using convert::Reference;
using convert::TestFolder;
using convert::TinyMoe;
using testing::HasSubstr;

// A vault of tiny-moe in `folder`.
std::string MakeVault(const TestFolder& folder, const std::string& bits) {
  const std::string path = folder.Path("q" + bits + ".smoe");
  EXPECT_EQ(RunForTest({"shatter", TinyMoe(), path, "--bits", bits}).code, 0);
  return path;
}

Json ParseOut(const ProgramOutput& output) {
  EXPECT_EQ(output.code, 0) << output.err;
  auto json = Json::Parse(output.out, "output");
  EXPECT_TRUE(json) << output.out;
  return json ? std::move(*json) : Json();
}

double Number(const Json& json, const std::vector<const char*>& path) {
  const Json* at = &json;
  for (const char* key : path) {
    at = at->Find(key);
    if (at == nullptr) return NAN;
  }
  return at->AsDouble().value_or(NAN);
}

TEST(Compare, AModelWithItselfDiffersInNothing) {
  const Json json = ParseOut(RunForTest({"compare", TinyMoe(), TinyMoe(), "--json"}));
  EXPECT_EQ(Number(json, {"logits", "kl_mean"}), 0);
  EXPECT_EQ(Number(json, {"logits", "kl_max"}), 0);
  EXPECT_EQ(Number(json, {"logits", "top1_agreement"}), 1);
  EXPECT_EQ(Number(json, {"weights", "all", "up", "rmse"}), 0);
  // 4 layers, 4 experts each, 3 matrices of 256 x 128 in bf16.
  EXPECT_EQ(Number(json, {"a", "token_bytes"}), 4 * 4 * 3 * 256 * 128 * 2);
}

// The bundled model against itself: exact in f32 with its own trunk, not with the default.
TEST(Compare, AReferenceIsF32WithTheTrunkAsItIs) {
  const auto compare = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"compare", TinyMoe(), TinyMoe(), "--reference", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return ParseOut(RunForTest(words));
  };
  const Json same = compare({"--arithmetic", "f32"});
  EXPECT_EQ(Number(same, {"logits", "kl_max"}), 0);
  const Json usual = compare({});
  EXPECT_GT(Number(usual, {"logits", "kl_mean"}), 0);
  EXPECT_LT(Number(usual, {"logits", "kl_mean"}), 1e-3);
  EXPECT_GT(Number(usual, {"b", "trunk", "parts", "head", "relative_rmse"}), 0);
  EXPECT_LT(Number(usual, {"b", "trunk", "bytes"}), Number(usual, {"a", "trunk", "bytes"}));
}

// The table's perplexity is the one of the command that measures nothing else.
TEST(Compare, PerplexitiesAreThoseOfTheCommandPerplexity) {
  const TestFolder folder;
  const std::string vault = MakeVault(folder, "2");
  const std::string text = folder.Path("text");
  std::ofstream(text) << "Once upon a time, there was a fox. The fox was hungry and sad.";
  const Json json = ParseOut(RunForTest({"compare", TinyMoe(), vault, "--text", text, "--window",
                                         "7", "--json", "--cache-experts", "16"}));
  for (const auto& [side, path] :
       {std::pair<const char*, std::string>{"a", TinyMoe()}, {"b", vault}}) {
    const Json alone =
        ParseOut(RunForTest({"perplexity", path, "--text", text, "--window", "7", "--json"}));
    EXPECT_EQ(Number(json, {side, "perplexity"}), Number(alone, {"perplexity"})) << side;
  }
  EXPECT_GT(Number(json, {"logits", "kl_mean"}), 0);
  EXPECT_GT(Number(json, {"weights", "all", "down", "rmse"}), 0);
}

TEST(Compare, PrintsATableToChooseBy) {
  const ProgramOutput output = RunForTest({"compare", TinyMoe(), TinyMoe(), "--tokens", "1,2,3"});
  EXPECT_EQ(output.code, 0) << output.err;
  for (const char* word : {"KL(A||B)", "top-1 agreement  100.00 % (3 of 3)", "on the drive",
                           "T, read per token", "perplexity", "exact"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
}

TEST(Compare, WrongRequestsAreNamed) {
  const TestFolder folder;
  const std::string text = folder.Path("empty");
  std::ofstream(text) << "";
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--text", "/no/such.txt"}, "/no/such.txt"},
      {{"--text", text}, "0 tokens, expected at least 2"},
      {{"--text", text, "--tokens", "1"}, "--text and --tokens: both given"},
      {{"--tokens", "1,x"}, "\"x\", expected ids"},
      {{"--tokens", "1,4000"}, "4000"},
      {{"--window", "1"}, "--window: 1, expected at least 2"},
      {{"--cache", "1KiB"}, "--cache"},
  };
  for (const auto& [more, message] : cases) {
    std::vector<std::string> arguments = {"compare", TinyMoe(), TinyMoe()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramOutput output = RunForTest(arguments);
    EXPECT_NE(output.code, 0) << message;
    EXPECT_THAT(output.err, HasSubstr(message));
    EXPECT_EQ(output.out, "") << message;
  }
  EXPECT_THAT(RunForTest({"compare", TinyMoe(), "/no/such"}).err, HasSubstr("/no/such: no such"));
  EXPECT_EQ(RunForTest({"compare", TinyMoe()}).code, 2);
}

TEST(Compare, TwoModelsAreToldApartByTheField) {
  if (!std::filesystem::exists(Reference("checkpoints"))) {
    GTEST_SKIP() << "no " << Reference("checkpoints");
  }
  const ProgramOutput output =
      RunForTest({"compare", TinyMoe(), Reference("checkpoints/qwen3_moe")});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("vocab_size is 2048 in "));
}

TEST(Compare, ATokenizerThatDiffersIsNamedAndIdsStillWork) {
  const TestFolder folder;
  std::filesystem::copy(TinyMoe(), folder.Path("copy"));
  std::ofstream(folder.Path("copy/tokenizer.json"), std::ios::app) << "\n";
  const ProgramOutput output = RunForTest({"compare", TinyMoe(), folder.Path("copy")});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("tokenizer.json: "));
  EXPECT_EQ(RunForTest({"compare", TinyMoe(), folder.Path("copy"), "--tokens", "5,6"}).code, 0);
}

}  // namespace
}  // namespace smoe::cli
