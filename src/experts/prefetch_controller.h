// experts/prefetch_controller.h: does reading ahead pay? Measured, not believed.
//
// A guess at the next layer's experts hides reads where it is right and takes the drive's time
// where it is wrong; which of the two weighs more depends on model, drive and cache. So in a trial
// every other token guesses, and for kKeptWindows the better way is kept before the next trial.
// What counts is the waiting for the drive, which guesses must shorten by more than they cost.
// Neither whole times would do, which differ by more than that for other reasons, nor one stretch
// of tokens behind the other: a text wants new experts in bursts. It begins with guesses, which won
// on average wherever it was measured (docs/streaming.md), and tries after kTrustedWindows.
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
  // A token has taken `ns`, of which the drive was waited for `wait_ns`.
  void TokenDone(uint64_t ns, uint64_t wait_ns);
  // What ran since the last token was no token of this kind: its window, or trial, begins anew.
  void Disturb();

  static constexpr size_t kWindowTokens = 16;
  static constexpr size_t kKeptWindows = 16;
  static constexpr size_t kTrustedWindows = 4;
  // Of the time, for asking a router twice: 0.5 ms of 30 where that was measured.
  static constexpr double kGuessCostShare = 0.02;

 private:
  void TrialDone();

  PrefetchMode mode_;
  bool is_trial_ = false;
  bool keeps_on_ = true;
  size_t kept_count_ = kKeptWindows - kTrustedWindows;
  size_t token_count_ = 0;  // of the window, or of the trial, which has two windows' tokens
  uint64_t trial_ns_ = 0;
  uint64_t wait_with_ns_ = 0;  // of the trial's tokens with guesses
  uint64_t wait_without_ns_ = 0;
};

}  // namespace smoe::experts
