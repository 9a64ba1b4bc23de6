#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace smoe {
namespace {

TEST(Json, KeepsOrderAndTypes) {
  const auto json = Json::Parse(R"({"b": 1, "a": 2.0, "n": null, "s": ")"
                                "\u00e9"
                                R"(", "l": [true]})",
                                "test");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->Dump(), R"({"b": 1, "a": 2.0, "n": null, "s": ")"
                          "\u00e9"
                          R"(", "l": [true]})");
  EXPECT_EQ(json->Find("a")->AsInt(), 2);
  EXPECT_EQ(json->Find("n"), nullptr) << "null counts as absent";
}

TEST(Json, WritesNothingThatATerminalObeys) {
  EXPECT_EQ(Json(std::string("a\x1b[1m\x7f\xc2\x9b[1m\xc2\x80\xc2\xa0\xff")).Dump(),
            "\"a\\u001b[1m\\u007f\\u009b[1m\\u0080\xc2\xa0\xef\xbf\xbd\"");
}

TEST(Json, RefusesDuplicateKeysByName) {
  const auto json = Json::Parse(R"({"x": 1, "x": 2})", "config.json");
  ASSERT_FALSE(json);
  EXPECT_EQ(json.error().message(), "config.json: no valid JSON: duplicate key \"x\"");
}

TEST(Json, RefusesDepthOneBeyondTheLimit) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(Json::Parse(nested(kJsonDepthMax), "t"));
  EXPECT_FALSE(Json::Parse(nested(kJsonDepthMax + 1), "t"));
  EXPECT_FALSE(Json::Parse(nested(200000), "t"));
}

TEST(Json, RefusesEveryTruncation) {
  const std::string text = R"({"a": [1, {"b": "c"}], "d": false})";
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(Json::Parse(text.substr(0, length), "t")) << length;
  }
}

}  // namespace
}  // namespace smoe
