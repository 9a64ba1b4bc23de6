#include "text/text_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/files_for_test.h"
#include "text/toy_tokenizers.h"

namespace smoe::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TextModel LoadOrDie(const TextFiles& files) {
  Result<TextModel> model = TextModel::Load(files);
  if (!model) ADD_FAILURE() << model.error().message();
  return std::move(*model);
}

TextFiles Toy() {
  TextFiles files;
  files.tokenizer_json = ByteTokenizerJson({{"<s>", true}, {"</s>", true}, {"<end>", true}});
  files.where = "toy";
  return files;
}

ChatRequest Hello() {
  ChatRequest request;
  request.Add("user", "x");
  return request;
}

constexpr char kWritesBos[] = "{{ bos_token }}{{ messages[0].content }}";
constexpr char kWritesNone[] = "{{ messages[0].content }}";

TEST(Bos, B04ExactlyOneWhereTemplateAndTokenizerBothAddIt) {
  TextFiles files = Toy();
  files.tokenizer_config_json = R"({"bos_token": "<s>", "add_bos_token": true})";
  files.chat_template_jinja = kWritesBos;
  const TextModel model = LoadOrDie(files);
  EXPECT_THAT(model.EncodeChat(Hello()).value().ids, ElementsAre(256, 'x'));
  EXPECT_THAT(model.EncodeRaw("x").value(), ElementsAre(256, 'x'));
  EXPECT_THAT(model.EncodeRaw("<s>x").value(), ElementsAre(256, 'x'));
  EXPECT_EQ(model.prefix_source(), "tokenizer_config.json add_bos_token");
}

TEST(Bos, B04OneWhereOnlyTheTokenizerAddsIt) {
  TextFiles files = Toy();
  files.tokenizer_config_json =
      R"({"bos_token": {"__type": "AddedToken", "content": "<s>"}, "add_bos_token": true})";
  files.chat_template_jinja = kWritesNone;
  const TextModel model = LoadOrDie(files);
  EXPECT_THAT(model.EncodeChat(Hello()).value().ids, ElementsAre(256, 'x'));
  EXPECT_THAT(model.EncodeRaw("x").value(), ElementsAre(256, 'x'));
}

TEST(Bos, B04NoneWhereNobodyAddsIt) {
  TextFiles files = Toy();
  files.tokenizer_config_json = R"({"bos_token": "<s>", "add_bos_token": false})";
  files.chat_template_jinja = kWritesNone;
  const TextModel model = LoadOrDie(files);
  EXPECT_THAT(model.EncodeChat(Hello()).value().ids, ElementsAre('x'));
  EXPECT_THAT(model.EncodeRaw("x").value(), ElementsAre('x'));
}

TEST(Bos, B04ThePostProcessorCountsWhereTheConfigIsSilent) {
  TextFiles files;
  files.tokenizer_json = SentencePieceTokenizerJson();
  const TextModel model = LoadOrDie(files);
  EXPECT_THAT(model.prefix_ids(), ElementsAre(1));
  EXPECT_THAT(model.EncodeRaw("h").value(), ElementsAre(1, 259, 260));
  files.tokenizer_config_json = R"({"bos_token": "<s>", "add_bos_token": false})";
  EXPECT_THAT(LoadOrDie(files).EncodeRaw("h").value(), ElementsAre(259, 260));
}

TEST(Bos, AUserWhoTypesItDoesNotReplaceIt) {
  TextFiles files = Toy();
  files.tokenizer_config_json = R"({"bos_token": "<s>", "add_bos_token": true})";
  files.chat_template_jinja = kWritesNone;
  ChatRequest request;
  request.Add("user", "<s>");
  EXPECT_THAT(LoadOrDie(files).EncodeChat(request).value().ids, ElementsAre(256, '<', 's', '>'));
}

TEST(StopIds, B05AreTheUnionOfThreeFilesWithTheirSources) {
  TextFiles files = Toy();
  files.config_json = R"({"eos_token_id": 5})";
  files.generation_config_json = R"({"eos_token_id": [5, 6]})";
  files.tokenizer_config_json = R"({"eos_token": "</s>"})";
  const TextModel model = LoadOrDie(files);
  ASSERT_EQ(model.stop_ids().size(), 3u);
  EXPECT_EQ(model.stop_ids()[0].id, 5u);
  EXPECT_THAT(model.stop_ids()[0].sources,
              ElementsAre("config.json eos_token_id", "generation_config.json eos_token_id"));
  EXPECT_EQ(model.stop_ids()[1].id, 6u);
  EXPECT_EQ(model.stop_ids()[2].id, 257u);
  EXPECT_EQ(model.stop_ids()[2].token, "</s>");
  EXPECT_THAT(model.stop_ids()[2].sources, ElementsAre("tokenizer_config.json eos_token"));
  EXPECT_TRUE(model.IsStop(5) && model.IsStop(6) && model.IsStop(257));
  EXPECT_FALSE(model.IsStop(7));
}

TEST(StopIds, B05NestedConfigsNullAndMinusOne) {
  TextFiles files = Toy();
  files.config_json = R"({"eos_token_id": 9, "text_config": {"eos_token_id": [7, 8]}})";
  files.generation_config_json = R"({"eos_token_id": null})";
  files.tokenizer_config_json = R"({"eos_token": "<nowhere>"})";
  const TextModel model = LoadOrDie(files);
  ASSERT_EQ(model.stop_ids().size(), 2u);
  EXPECT_EQ(model.stop_ids()[0].id, 7u);
  EXPECT_THAT(model.notices(), ElementsAre(HasSubstr("<nowhere> is not in the vocabulary")));
  files.generation_config_json = R"({"eos_token_id": -1})";
  EXPECT_EQ(LoadOrDie(files).stop_ids().size(), 2u);
}

TEST(StopIds, B05AFieldOfAnotherTypeIsRefused) {
  for (const char* bad : {R"("x")", "1.5", "[1, \"2\"]", "[-1]", "{}", "4294967296", "true"}) {
    TextFiles files = Toy();
    files.config_json = fmt::format(R"({{"eos_token_id": {}}})", bad);
    const Result<TextModel> model = TextModel::Load(files);
    ASSERT_FALSE(model) << bad;
    EXPECT_EQ(model.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(model.error().message(), HasSubstr("toy: config.json eos_token_id"));
  }
}

std::string Rendered(const TextModel& model, bool with_tools) {
  return model.TemplateFor(with_tools).value()->RenderText({}).value();
}

TEST(Templates, B11TheFileWinsOverTheInlineOne) {
  TextFiles files = Toy();
  files.tokenizer_config_json = R"({"chat_template": "inline"})";
  EXPECT_EQ(Rendered(LoadOrDie(files), false), "inline");
  files.chat_template_jinja = "file";
  EXPECT_EQ(Rendered(LoadOrDie(files), false), "file");
  EXPECT_EQ(LoadOrDie(files).template_sources()[0].second, "chat_template.jinja");
  files.tokenizer_config_json.reset();
  EXPECT_EQ(Rendered(LoadOrDie(files), true), "file");
}

TEST(Templates, B11OfAListToolUseIsTakenWithToolsAndDefaultWithout) {
  TextFiles files = Toy();
  files.tokenizer_config_json = R"({"chat_template": [{"name": "default", "template": "plain"},
                                                      {"name": "tool_use", "template": "tools"}]})";
  EXPECT_EQ(Rendered(LoadOrDie(files), false), "plain");
  EXPECT_EQ(Rendered(LoadOrDie(files), true), "tools");
  files.tokenizer_config_json = R"({"chat_template": [{"name": "default", "template": "plain"}]})";
  EXPECT_EQ(Rendered(LoadOrDie(files), true), "plain");
  files.chat_template_jinja = "file";
  files.named_templates = {{"tool_use", "extra"}};
  EXPECT_EQ(Rendered(LoadOrDie(files), true), "extra");
  EXPECT_EQ(Rendered(LoadOrDie(files), false), "file");
}

TEST(Templates, B11NoneSaysSoAndRawTextWorks) {
  const TextModel model = LoadOrDie(Toy());
  const auto chat = model.EncodeChat(Hello());
  ASSERT_FALSE(chat);
  EXPECT_EQ(chat.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(chat.error().message(), HasSubstr("toy: the model has no chat template"));
  EXPECT_THAT(model.EncodeRaw("x").value(), ElementsAre('x'));
  EXPECT_TRUE(model.template_status());
}

TEST(Templates, ABrokenOneStopsConvertersAndChatsButNotRawText) {
  TextFiles files = Toy();
  files.chat_template_jinja = "{{ x|frobnicate }}";
  const TextModel model = LoadOrDie(files);
  ASSERT_FALSE(model.template_status());
  EXPECT_THAT(model.template_status().error().message(),
              HasSubstr("toy: chat_template.jinja: line 1"));
  EXPECT_FALSE(model.EncodeChat(Hello()));
  EXPECT_TRUE(model.EncodeRaw("x"));
}

TEST(AddedTokens, ADisagreementOfTheTwoFilesIsNoticed) {
  TextFiles files = Toy();
  files.tokenizer_config_json = R"({"added_tokens_decoder": {"256": {"content": "<s>"},
      "300": {"content": "</s>"}, "301": {"content": "<more>"}}})";
  EXPECT_THAT(LoadOrDie(files).notices(),
              ElementsAre(HasSubstr("</s> has id 300, tokenizer.json has 257"),
                          HasSubstr("<more> has id 301, tokenizer.json has no such token")));
}

TEST(NoTokenizer, IsAModelForIdsOnly) {
  TextFiles files;
  files.config_json = R"({"eos_token_id": 5})";
  files.where = "bare.smoe";
  const TextModel model = LoadOrDie(files);
  EXPECT_EQ(model.tokenizer(), nullptr);
  EXPECT_TRUE(model.IsStop(5));
  EXPECT_THAT(model.EncodeRaw("x").error().message(),
              HasSubstr("bare.smoe: the model has no token"));
}

TEST(Damage, EachFileIsNamedWhereItDoesNotParse) {
  for (const char* text : {"", "{", "[]", "{\"a\": 1, \"a\": 2}", "\xff"}) {
    TextFiles files = Toy();
    files.generation_config_json = text;
    const Result<TextModel> model = TextModel::Load(files);
    ASSERT_FALSE(model) << text;
    EXPECT_THAT(model.error().message(), HasSubstr("toy: generation_config.json"));
  }
}

TEST(TinyMoe, ReadsAllItsFiles) {
  TextFiles files;
  files.tokenizer_json = TinyMoeFile("tokenizer.json");
  files.tokenizer_config_json = TinyMoeFile("tokenizer_config.json");
  files.chat_template_jinja = TinyMoeFile("chat_template.jinja");
  files.generation_config_json = TinyMoeFile("generation_config.json");
  files.config_json = TinyMoeFile("config.json");
  const TextModel model = LoadOrDie(files);
  ASSERT_EQ(model.stop_ids().size(), 2u);
  EXPECT_EQ(model.stop_ids()[0].id, 2041u);
  EXPECT_EQ(model.stop_ids()[1].id, 2043u);
  EXPECT_EQ(model.stop_ids()[1].sources.size(), 3u);
  EXPECT_THAT(model.prefix_ids(), IsEmpty());
  EXPECT_TRUE(model.template_status());
  EXPECT_THAT(model.notices(), IsEmpty());
}

}  // namespace
}  // namespace smoe::text
