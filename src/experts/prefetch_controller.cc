#include "experts/prefetch_controller.h"

namespace smoe::experts {

bool PrefetchController::is_on() const {
  if (mode_ != PrefetchMode::kAuto) return mode_ == PrefetchMode::kOn;
  return is_trial_ ? token_count_ % 2 != 0 : keeps_on_;
}

void PrefetchController::TokenDone(uint64_t ns, uint64_t wait_ns) {
  if (is_trial_) {
    trial_ns_ += ns;
    (token_count_ % 2 != 0 ? wait_with_ns_ : wait_without_ns_) += wait_ns;
    if (++token_count_ == 2 * kWindowTokens) TrialDone();
    return;
  }
  if (++token_count_ < kWindowTokens) return;
  token_count_ = 0;
  is_trial_ = ++kept_count_ == kKeptWindows;
}

void PrefetchController::Disturb() {
  token_count_ = 0;
  trial_ns_ = 0;
  wait_with_ns_ = 0;
  wait_without_ns_ = 0;
}

void PrefetchController::TrialDone() {
  const double saved = static_cast<double>(wait_without_ns_) - static_cast<double>(wait_with_ns_);
  keeps_on_ = saved > kGuessCostShare * static_cast<double>(trial_ns_) / 2;
  kept_count_ = 0;
  is_trial_ = false;
  Disturb();
}

}  // namespace smoe::experts
