#include "experts/prefetch_controller.h"

#include <gtest/gtest.h>

namespace smoe::experts {
namespace {

void RunWindow(PrefetchController& controller, uint64_t ns, uint64_t wait_ns) {
  for (size_t i = 0; i < PrefetchController::kWindowTokens; ++i) {
    controller.TokenDone(ns, wait_ns);
  }
}

void RunTrusted(PrefetchController& controller) {
  for (size_t i = 0; i < PrefetchController::kTrustedWindows; ++i) {
    EXPECT_TRUE(controller.is_on());
    RunWindow(controller, 100, 0);
  }
}

// Every other token guesses, the first does not.
void RunTrial(PrefetchController& controller, uint64_t ns, uint64_t wait_without,
              uint64_t wait_with) {
  for (size_t i = 0; i < PrefetchController::kWindowTokens; ++i) {
    EXPECT_FALSE(controller.is_on());
    controller.TokenDone(ns, wait_without);
    EXPECT_TRUE(controller.is_on());
    controller.TokenDone(ns, wait_with);
  }
}

void RunKept(PrefetchController& controller, bool is_on) {
  for (size_t i = 0; i < PrefetchController::kKeptWindows; ++i) {
    EXPECT_EQ(controller.is_on(), is_on);
    RunWindow(controller, 100, 50);
  }
}

TEST(PrefetchController, KeepsTheWayThatWaitsLess) {
  PrefetchController controller(PrefetchMode::kAuto);
  RunTrusted(controller);
  RunTrial(controller, 100, 30, 20);
  RunKept(controller, true);
  RunTrial(controller, 100, 20, 30);
  RunKept(controller, false);
  RunTrial(controller, 100, 30, 29);
  RunKept(controller, false);  // 1 in 100 less waiting, and a guess costs 2
  RunTrial(controller, 100, 30, 27);
  RunKept(controller, true);
}

TEST(PrefetchController, WithoutWaitingThereIsNothingToGuess) {
  PrefetchController controller(PrefetchMode::kAuto);
  RunTrusted(controller);
  RunTrial(controller, 100, 1, 0);
  RunKept(controller, false);
}

TEST(PrefetchController, ADisturbedTrialBeginsAnew) {
  PrefetchController controller(PrefetchMode::kAuto);
  RunTrusted(controller);
  controller.TokenDone(1'000'000, 900'000);
  controller.Disturb();
  RunTrial(controller, 100, 20, 30);
  RunKept(controller, false);
}

TEST(PrefetchController, OnAndOffAreOrders) {
  PrefetchController on(PrefetchMode::kOn);
  PrefetchController off(PrefetchMode::kOff);
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(on.is_on());
    EXPECT_FALSE(off.is_on());
    RunWindow(on, 100, 50);
    RunWindow(off, 100, 50);
  }
}

}  // namespace
}  // namespace smoe::experts
