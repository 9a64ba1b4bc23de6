// cli/convert_progress.h: draws the progress that conversions tell, from any of their threads.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "cli/interrupt.h"
#include "cli/progress_bar.h"
#include "convert/progress.h"

namespace smoe::cli {

class ConvertProgress final : public convert::Progress {
 public:
  explicit ConvertProgress(Console& console) : console_(console) {}

  void Begin(std::string_view phase, uint64_t total_bytes) override {
    const std::lock_guard lock(mutex_);
    done_bytes_ = 0;
    total_bytes_ = total_bytes;
    bar_.emplace(console_, std::string(phase));
  }
  void Advance(uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    done_bytes_ += bytes;
    if (bar_) bar_->Update(done_bytes_, total_bytes_);
  }
  // Only under a guard, which commands have whose work no later run goes on with.
  bool WantsStop() const override { return InterruptGuard::Requested(); }
  void End() override {
    const std::lock_guard lock(mutex_);
    bar_.reset();
  }

 private:
  Console& console_;
  std::mutex mutex_;
  std::optional<ProgressBar> bar_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace smoe::cli
