// convert/progress.h: how far a long job is. The program draws the bar; the library only tells.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

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
  // True if the job shall end early. Asked between pieces by jobs that no later run goes on with;
  // the others can be killed. Threads: any.
  virtual bool WantsStop() const { return false; }

 protected:
  Progress() = default;
};

class NoProgress final : public Progress {
 public:
  void Begin(std::string_view, uint64_t) override {}
  void Advance(uint64_t) override {}
  void End() override {}
};

// kInvalid if `progress` wants the job to stop: as any failure it leaves nothing behind.
inline Status CheckGoesOn(const Progress& progress) {
  if (progress.WantsStop()) return Invalid("interrupted");
  return Ok();
}

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
