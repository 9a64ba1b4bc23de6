// cli/interrupt.h: Ctrl-C as a question that loops ask, instead of a sudden end.
#pragma once

namespace smoe::cli {

// While it lives, SIGINT sets a flag instead of ending the program. A second SIGINT before the flag
// was cleared ends the program at once, so that a stuck loop can still be left.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool Requested();
  static void Clear();
};

}  // namespace smoe::cli
