#include "cli/interrupt.h"

#include <signal.h>

#include <utility>

namespace smoe::cli {

namespace {

volatile sig_atomic_t interrupt_requested = 0;
struct sigaction previous_action;

void OnInterrupt(int number) {
  if (interrupt_requested != 0) {
    signal(number, SIG_DFL);
    raise(number);
  }
  interrupt_requested = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  Clear();
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);  // no SA_RESTART: a blocked read of the terminal ends
  sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_action, nullptr); }

bool InterruptGuard::Requested() { return interrupt_requested != 0; }

void InterruptGuard::Clear() { interrupt_requested = 0; }

Result<ExitCode> NotWritten(const std::string& out, Error error, const Console& console) {
  if (!InterruptGuard::Requested()) return Unexpected(std::move(error));
  console.Note("{}: not written, interrupted\n", Printable(out));
  return ExitCode::kInterrupted;
}

}  // namespace smoe::cli
