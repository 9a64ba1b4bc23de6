// experts/prefetch_controller.h: does reading ahead pay? Measured, not believed.
//
// A guess at the next layer's experts hides reads where it is right and takes the drive's time
// where it is wrong; which of the two weighs more depends on model, drive and cache. So the tokens
// are cut into windows: one is timed with guesses, one without, and the faster way is kept for
// kKeptWindows before both are timed again. It begins with guesses, which won on average
// wherever it was measured (docs/streaming.md), and times both after kTrustedWindows.
//
// Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smoe::experts {

enum class PrefetchMode : uint8_t { kOff, kAuto, kOn };

class PrefetchController {
 public:
  explicit PrefetchController(PrefetchMode mode) : mode_(mode) {}

  // Whether the token that runs now guesses.
  bool is_on() const;
  // A token has taken `ns`, of which the drive was waited for `wait_ns`. A window without waiting
  // has nothing to hide, and is not followed by one with guesses.
  void TokenDone(uint64_t ns, uint64_t wait_ns);
  // What ran since the last token was no token of this kind: its window does not count.
  void Disturb();

  static constexpr size_t kWindowTokens = 16;
  static constexpr size_t kKeptWindows = 16;
  static constexpr size_t kTrustedWindows = 4;
  // Waiting below this share of the time is nothing to hide.
  static constexpr double kWaitShareMin = 0.02;

 private:
  enum class Phase : uint8_t { kWithout, kWith, kKept };
  void WindowDone();

  PrefetchMode mode_;
  Phase phase_ = Phase::kKept;
  bool keeps_on_ = true;
  size_t kept_count_ = kKeptWindows - kTrustedWindows;
  size_t token_count_ = 0;  // of the window
  uint64_t window_ns_ = 0;
  uint64_t wait_ns_ = 0;
  uint64_t without_ns_ = 0;  // of the last window without guesses
};

}  // namespace smoe::experts
