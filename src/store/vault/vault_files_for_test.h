// store/vault/vault_files_for_test.h: the reference vaults, and damaged copies of one of them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/file.h"

namespace smoe::store::vault {

inline std::string ReferencePath(const std::string& name) {
  return std::string(SMOE_SHARED_DIR) + "/reference/" + name;
}

#define SMOE_SKIP_WITHOUT_REFERENCE()                                                 \
  if (!std::filesystem::exists(::smoe::store::vault::ReferencePath("vaults"))) {      \
    GTEST_SKIP() << ::smoe::store::vault::ReferencePath("vaults") << " is not there"; \
  }                                                                                   \
  static_assert(true)

// A folder that is gone at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "smoe_store_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  Result<std::string> content = io::ReadWholeFile(path, uint64_t{1} << 30);
  EXPECT_TRUE(content) << content.error().message();
  return content ? *content : std::string();
}

inline void WriteFile(const std::string& path, std::string_view content) {
  Result<io::File> file = io::File::Create(path);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_TRUE(file->WriteAt(0, AsBytes(content)));
}

inline Json ReadJson(const std::string& path) {
  Result<Json> json = Json::Parse(ReadFile(path), path);
  EXPECT_TRUE(json) << json.error().message();
  return json ? std::move(*json) : Json();
}

struct DamagedFile {
  std::string name;   // "bits_3.smoe"
  std::string kind;   // "refuse", "interrupted", ...
  std::string field;  // may be empty
  std::string content;
};

inline std::string HexToBytes(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// All files of damaged.json whose names end in `suffix`, made from their base in memory.
inline std::vector<DamagedFile> LoadDamagedFiles(const std::string& suffix) {
  const std::string folder = ReferencePath("vaults/damaged/");
  const Json list = ReadJson(folder + "damaged.json");
  const std::string vault_base = ReadFile(folder + *list.Find("base")->AsString());
  const std::string trunk_base = ReadFile(folder + *list.Find("trunk_base")->AsString());
  std::vector<DamagedFile> files;
  for (const Json& item : *list.Find("files")->AsArray()) {
    DamagedFile file;
    file.name = *item.Find("file")->AsString();
    if (!file.name.ends_with(suffix)) continue;
    file.kind = *item.Find("class")->AsString();
    if (const Json* field = item.Find("field")) file.field = *field->AsString();
    const Json* edits = item.Find("edits");
    if (edits == nullptr) {
      file.content = ReadFile(folder + file.name);
      files.push_back(std::move(file));
      continue;
    }
    file.content = file.name.ends_with(".scout.safetensors") ? trunk_base : vault_base;
    file.content.resize(*item.Find("bytes")->AsUint(), '\0');
    for (const Json& edit : *edits->AsArray()) {
      const Json& value = (*edit.AsArray())[1];
      const std::string bytes =
          value.is_string() ? HexToBytes(*value.AsString()) : std::string(*value.AsUint(), '\0');
      file.content.replace(*(*edit.AsArray())[0].AsUint(), bytes.size(), bytes);
    }
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace smoe::store::vault
