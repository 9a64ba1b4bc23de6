#include "engine/memory_guard.h"

#include <algorithm>
#include <chrono>

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory_limits.h"

namespace smoe::engine {

namespace {

constexpr uint32_t kShrinkDivisor = 8;
constexpr uint32_t kGrowDivisor = 32;

// Counters of another group, after the process was moved, may be lower.
double Rise(uint64_t now, uint64_t before) {
  return static_cast<double>(now - std::min(now, before));
}

}  // namespace

MemoryGuard::MemoryGuard(const Options& options) : options_(options) {
  stats_.slot_count = stats_.slot_count_min = options.slot_count;
}

uint32_t MemoryGuard::Decide(const PressureSample& sample) {
  if (!has_last_ || sample.time_ns <= last_.time_ns) {
    if (!has_last_) calm_since_ns_ = sample.time_ns;
    last_ = sample;
    has_last_ = true;
    return stats_.slot_count;
  }
  const double seconds = 1e-9 * static_cast<double>(sample.time_ns - last_.time_ns);
  const bool is_settled = shrunk_ns_ == 0 || sample.time_ns - shrunk_ns_ >= kSettleNs;
  if (!IsCalm(sample, seconds)) calm_since_ns_ = sample.time_ns;
  if (is_settled && IsShort(sample, seconds)) {
    Shrink(sample);
  } else if (sample.time_ns - calm_since_ns_ >= calm_wanted_ns_ &&
             sample.time_ns - grown_ns_ >= kGrowNs) {
    Grow(sample);
  }
  last_ = sample;
  return stats_.slot_count;
}

bool MemoryGuard::IsShort(const PressureSample& sample, double seconds) {
  const double stall = 1e-6 * Rise(sample.stall_us, last_.stall_us) / seconds;
  const double faults = Rise(sample.major_fault_count, last_.major_fault_count) / seconds;
  std::string reason;
  if (sample.free_bytes < options_.floor_bytes) {
    reason = fmt::format("{} free", SizeText(sample.free_bytes));
  } else if (stall >= kShortStall) {
    reason = fmt::format("memory stalls {:.0f} % of the time", 100 * stall);
  } else if (faults >= kShortFaults) {
    reason = fmt::format("{:.0f} pages a second read back", faults);
  } else {
    return false;
  }
  reason_ = std::move(reason);
  return true;
}

bool MemoryGuard::IsCalm(const PressureSample& sample, double seconds) const {
  return 1e-6 * Rise(sample.stall_us, last_.stall_us) <= kCalmStall * seconds &&
         Rise(sample.major_fault_count, last_.major_fault_count) < kShortFaults / 10 * seconds &&
         sample.free_bytes >= options_.floor_bytes;
}

void MemoryGuard::Shrink(const PressureSample& sample) {
  if (grown_ns_ != 0 && sample.time_ns - grown_ns_ < kRelapseNs) {
    calm_wanted_ns_ = std::min(2 * calm_wanted_ns_, kCalmNsMax);
  }
  calm_since_ns_ = sample.time_ns;
  const uint64_t lacking =
      2 * options_.floor_bytes - std::min(2 * options_.floor_bytes, sample.free_bytes);
  const uint64_t fewer = std::max<uint64_t>(CeilDiv(stats_.slot_count, kShrinkDivisor),
                                            CeilDiv(lacking, options_.slot_bytes));
  const uint64_t least = std::min(options_.slot_count_min, stats_.slot_count);
  const uint64_t count =
      std::max<uint64_t>(least, stats_.slot_count - std::min<uint64_t>(fewer, stats_.slot_count));
  if (count == stats_.slot_count) return;
  stats_.slot_count = static_cast<uint32_t>(count);
  stats_.slot_count_min = std::min(stats_.slot_count_min, stats_.slot_count);
  ++stats_.shrink_count;
  shrunk_ns_ = sample.time_ns;
}

void MemoryGuard::Grow(const PressureSample& sample) {
  const uint32_t more = std::min(options_.slot_count - stats_.slot_count,
                                 static_cast<uint32_t>(CeilDiv(options_.slot_count, kGrowDivisor)));
  if (more == 0) return;
  if (sample.free_bytes < more * options_.slot_bytes + 2 * options_.floor_bytes) return;
  stats_.slot_count += more;
  ++stats_.grow_count;
  grown_ns_ = sample.time_ns;
  reason_ = fmt::format("{} free, no pressure", SizeText(sample.free_bytes));
}

Status CacheKeeper::Look() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return LookAt(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
}

Status CacheKeeper::LookAt(uint64_t time_ns) {
  if (looked_ns_ != 0 && time_ns - looked_ns_ < kLookNs) return Ok();
  looked_ns_ = time_ns;
  SMOE_TRY_ASSIGN(const PressureSample sample, ReadPressure(time_ns, root_));
  const uint32_t before = guard_.stats().slot_count;
  const uint32_t count = guard_.Decide(sample);
  if (count == before) return Ok();
  SMOE_TRY(cache_.SetSlotLimit(count));
  const std::string text =
      fmt::format("expert cache: {} slots instead of {}: {}", count, before, guard_.reason());
  if (count < before) {
    LogWarning("{}", text);
  } else {
    LogInfo("{}", text);
  }
  return Ok();
}

}  // namespace smoe::engine
