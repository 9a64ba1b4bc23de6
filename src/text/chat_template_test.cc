#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/test_files.h"

namespace smoe::text {
namespace {

TEST(TinyMoeTemplate, RendersEveryGoldenAsTheReferenceDoes) {
  Result<ChatTemplate> chat_template =
      ChatTemplate::Compile(TinyMoeFile("chat_template.jinja"), "chat_template.jinja", {});
  ASSERT_TRUE(chat_template) << chat_template.error().message();
  Result<Tokenizer> tokenizer = Tokenizer::Load(TinyMoeFile("tokenizer.json"), "tokenizer.json");
  ASSERT_TRUE(tokenizer);
  const Json goldens = ParseTestJson(TinyMoeFile("template_goldens.json"));
  ASSERT_GT(goldens.AsArray()->size(), 10u);
  for (const Json& golden : *goldens.AsArray()) {
    ChatRequest request;
    request.messages = *golden.Find("messages");
    if (const Json* tools = golden.Find("tools")) request.tools = *tools;
    request.add_generation_prompt = *golden.Find("add_generation_prompt")->AsBool();
    const std::string& text = *golden.Find("text")->AsString();
    EXPECT_EQ(chat_template->RenderText(request).value(), text);
    EXPECT_EQ(chat_template->Render(request, *tokenizer).value().text, text);
  }
}

}  // namespace
}  // namespace smoe::text
