// cli/interrupt.h: Ctrl-C as a question that loops ask, instead of a sudden end.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/command.h"

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

// The end of a command that did not write `out`: an error, or, after Ctrl-C under a guard, a note
// and kInterrupted. Only what a later run can go on with may be left by a sudden end.
Result<ExitCode> NotWritten(const std::string& out, Error error, const Console& console);

}  // namespace smoe::cli
