// Cases B01 and B07: a tokenizer or template that cannot be used stops the conversion, with the
// place in the template, and not the first user of the vault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/files_for_test.h"
#include "convert/sculptor.h"

namespace smoe::convert {
namespace {

using testing::HasSubstr;

// tiny-moe with one file replaced.
std::string TinyMoeWith(const TestFolder& folder, const std::string& name,
                        const std::string& content) {
  const std::string path = folder.Path("checkpoint");
  std::filesystem::create_directory(path);
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja", "generation_config.json", "model.safetensors"}) {
    std::filesystem::create_symlink(TinyMoe() + "/" + file, path + "/" + file);
  }
  std::filesystem::remove(path + "/" + name);
  WriteText(path + "/" + name, content);
  return path;
}

TEST(ShatterText, AnUnknownTemplateConstructStopsWithLineAndColumn) {
  const TestFolder folder;
  NoProgress progress;
  const std::string checkpoint =
      TinyMoeWith(folder, "chat_template.jinja", "{{ 1 }}\n{{ 2 | no_such_filter }}\n");
  const std::string out = folder.Path("out.smoe");
  const auto refused = Shatter(checkpoint, out, {}, progress);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("no_such_filter"));
  EXPECT_THAT(refused.error().message(), HasSubstr("line 2"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));

  ShatterOptions options;
  options.allow_broken_text = true;
  const auto report = Shatter(checkpoint, out, options, progress);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_THAT(report->warnings, testing::Contains(HasSubstr("no_such_filter")));
}

TEST(ShatterText, ATokenizerThatIsNotImplementedStops) {
  const TestFolder folder;
  NoProgress progress;
  const std::string checkpoint =
      TinyMoeWith(folder, "tokenizer.json",
                  R"({"version": "1.0", "model": {"type": "Telepathy", "vocab": {}}})");
  const auto refused = Shatter(checkpoint, folder.Path("out.smoe"), {}, progress);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace smoe::convert
