// text/files_for_test.h: files that the tests of this folder read.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/json.h"

namespace smoe::text {

inline std::string ReadTestFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string TinyMoeFile(const std::string& name) {
  return ReadTestFile(std::filesystem::path(SMOE_SOURCE_DIR) / "models/tiny-moe" / name);
}

inline Json ParseTestJson(const std::string& text) {
  Result<Json> json = Json::Parse(text, "test");
  EXPECT_TRUE(json) << json.error().message();
  return json ? *json : Json();
}

}  // namespace smoe::text
