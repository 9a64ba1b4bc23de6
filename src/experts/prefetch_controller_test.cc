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

TEST(PrefetchController, KeepsTheFasterWay) {
  PrefetchController controller(PrefetchMode::kAuto);
  RunTrusted(controller);
  EXPECT_FALSE(controller.is_on());
  RunWindow(controller, 100, 30);
  EXPECT_TRUE(controller.is_on());  // now with guesses
  RunWindow(controller, 90, 20);
  for (size_t i = 0; i < PrefetchController::kKeptWindows; ++i) {
    EXPECT_TRUE(controller.is_on());
    RunWindow(controller, 90, 20);
  }
  EXPECT_FALSE(controller.is_on());  // both are timed again
  RunWindow(controller, 80, 30);
  EXPECT_TRUE(controller.is_on());
  RunWindow(controller, 90, 20);
  EXPECT_FALSE(controller.is_on());  // this time they lost
}

TEST(PrefetchController, WithoutWaitingThereIsNothingToGuess) {
  PrefetchController controller(PrefetchMode::kAuto);
  RunTrusted(controller);
  for (int i = 0; i < 40; ++i) {
    RunWindow(controller, 100, 1);
    EXPECT_FALSE(controller.is_on());
  }
}

TEST(PrefetchController, ADisturbedWindowDoesNotCount) {
  PrefetchController controller(PrefetchMode::kAuto);
  RunTrusted(controller);
  controller.TokenDone(1'000'000, 900'000);
  controller.Disturb();
  RunWindow(controller, 100, 30);
  EXPECT_TRUE(controller.is_on());
  RunWindow(controller, 150, 20);
  EXPECT_FALSE(controller.is_on());
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
