// model/step_profile.h: where the time of forward passes goes.
//
// Always counted: a look at the clock at both ends of a phase, some 20 times in a layer, is far
// below a thousandth of a step. Phases are timed on the caller's thread and do not overlap, so that
// they and the rest add up to the whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace smoe::model {

enum class Phase : uint8_t {
  kProjections,  // queries, keys, values and the output of attention
  kAttend,       // rotation, the KV cache, scores and their sums
  kRouter,
  kExperts,  // routed ones, waiting for the drive included
  kDense,    // dense layers and shared experts
  kHead,
};
inline constexpr size_t kPhaseCount = 6;
inline constexpr const char* kPhaseNames[kPhaseCount] = {"projections", "attend", "router",
                                                         "experts",     "dense",  "head"};

struct StepProfile {
  uint64_t total_ns = 0;  // whole steps: what no phase has is embedding, norms, additions, checks
  std::array<uint64_t, kPhaseCount> phase_ns{};

  // For a Timed of base/stopwatch.h.
  uint64_t* of(Phase phase) { return &phase_ns[static_cast<size_t>(phase)]; }
  uint64_t rest_ns() const {
    uint64_t sum = 0;
    for (const uint64_t ns : phase_ns) sum += ns;
    return total_ns - sum;
  }
  StepProfile& operator+=(const StepProfile& other) {
    total_ns += other.total_ns;
    for (size_t i = 0; i < kPhaseCount; ++i) phase_ns[i] += other.phase_ns[i];
    return *this;
  }
  // What was counted between `before` and now.
  StepProfile Since(const StepProfile& before) const {
    StepProfile difference = *this;
    difference.total_ns -= before.total_ns;
    for (size_t i = 0; i < kPhaseCount; ++i) difference.phase_ns[i] -= before.phase_ns[i];
    return difference;
  }
};

}  // namespace smoe::model
