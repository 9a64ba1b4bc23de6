#include "cli/interrupt.h"

#include <signal.h>

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

}  // namespace smoe::cli
