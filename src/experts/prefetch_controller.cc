#include "experts/prefetch_controller.h"

namespace smoe::experts {

bool PrefetchController::is_on() const {
  if (mode_ != PrefetchMode::kAuto) return mode_ == PrefetchMode::kOn;
  return phase_ == Phase::kWith || (phase_ == Phase::kKept && keeps_on_);
}

void PrefetchController::TokenDone(uint64_t ns, uint64_t wait_ns) {
  window_ns_ += ns;
  wait_ns_ += wait_ns;
  if (++token_count_ < kWindowTokens) return;
  WindowDone();
  Disturb();
}

void PrefetchController::Disturb() {
  token_count_ = 0;
  window_ns_ = 0;
  wait_ns_ = 0;
}

void PrefetchController::WindowDone() {
  switch (phase_) {
    case Phase::kWithout: {
      without_ns_ = window_ns_;
      const bool waits =
          static_cast<double>(wait_ns_) > kWaitShareMin * static_cast<double>(window_ns_);
      if (waits) phase_ = Phase::kWith;
      return;
    }
    case Phase::kWith:
      keeps_on_ = window_ns_ < without_ns_;
      kept_count_ = 0;
      phase_ = Phase::kKept;
      return;
    case Phase::kKept:
      if (++kept_count_ == kKeptWindows) phase_ = Phase::kWithout;
      return;
  }
}

}  // namespace smoe::experts
