// base/stopwatch.h: how long something has taken, by the clock that never jumps.
#pragma once

#include <chrono>
#include <cstdint>

namespace smoe {

// Runs from its construction. Cost of a reading: some 20 ns.
class Stopwatch {
 public:
  uint64_t ns() const {
    const std::chrono::nanoseconds passed = Clock::now() - started_;
    return static_cast<uint64_t>(passed.count());
  }
  double seconds() const { return 1e-9 * static_cast<double>(ns()); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_ = Clock::now();
};

}  // namespace smoe
