// convert/files_for_test.h: folders, files and child processes for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "convert/progress.h"

namespace smoe::convert {

// A folder that lives as long as the test; in memory where there is enough, since every conversion
// waits for the drive several times.
class TestFolder {
 public:
  TestFolder() {
    std::filesystem::path parent = std::filesystem::temp_directory_path();
    std::error_code error;
    const auto space = std::filesystem::space("/dev/shm", error);
    if (!error && space.available > (uint64_t{2} << 30) && ::access("/dev/shm", W_OK) == 0) {
      parent = "/dev/shm";
    }
    std::string pattern = (parent / "smoe_convert_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string Path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string TinyMoe() { return std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe"; }
inline std::string Reference(const std::string& name) {
  return std::string(SMOE_SHARED_DIR) + "/reference/" + name;
}

// Runs `body` in a child process; returns its wait status. The child leaves with body's result.
inline int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// Calls back at every step.
class CallbackProgress final : public Progress {
 public:
  explicit CallbackProgress(std::function<void()> on_advance)
      : on_advance_(std::move(on_advance)) {}
  void Begin(std::string_view, uint64_t) override {}
  void Advance(uint64_t) override { on_advance_(); }
  void End() override {}

 private:
  std::function<void()> on_advance_;
};

// Wants to stop after so many steps.
class StoppingProgress final : public Progress {
 public:
  explicit StoppingProgress(int step_count) : left_(step_count) {}
  void Begin(std::string_view, uint64_t) override {}
  void Advance(uint64_t) override { --left_; }
  void End() override {}
  bool WantsStop() const override { return left_ <= 0; }

 private:
  std::atomic<int> left_;
};

}  // namespace smoe::convert
