// convert/progress.h: how far a long job is. The program draws the bar; the library only tells.
#pragma once

#include <cstdint>
#include <string_view>

namespace smoe::convert {

class Progress {
 public:
  virtual ~Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A phase begins: "converting", "validating", "recovering", "extracting". `total_bytes` of its
  // input; the pieces of Advance add up to it. Phases follow each other and never overlap.
  virtual void Begin(std::string_view phase, uint64_t total_bytes) = 0;
  // Threads: any, several at a time. Called every few megabytes at least.
  virtual void Advance(uint64_t bytes) = 0;
  // The phase is over, also after a failure.
  virtual void End() = 0;

 protected:
  Progress() = default;
};

class NoProgress final : public Progress {
 public:
  void Begin(std::string_view, uint64_t) override {}
  void Advance(uint64_t) override {}
  void End() override {}
};

// A phase that ends with its scope.
class ProgressPhase {
 public:
  ProgressPhase(Progress& progress, std::string_view phase, uint64_t total_bytes)
      : progress_(progress) {
    progress_.Begin(phase, total_bytes);
  }
  ~ProgressPhase() { progress_.End(); }
  ProgressPhase(const ProgressPhase&) = delete;
  ProgressPhase& operator=(const ProgressPhase&) = delete;

 private:
  Progress& progress_;
};

}  // namespace smoe::convert
