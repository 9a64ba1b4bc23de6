#include "engine/memory_guard.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory_limits.h"

namespace smoe::engine {

namespace {

constexpr uint32_t kShrinkDivisor = 8;
constexpr uint32_t kGrowDivisor = 32;
constexpr double kRecentTokens = 8;
constexpr double kUsualTokens = 128;

// Counters of another group, after the process was moved, may be lower.
double Rise(uint64_t now, uint64_t before) {
  return static_cast<double>(now - std::min(now, before));
}

void Average(double tokens, double value, double* average) {
  *average += (value - *average) / tokens;
}

// Sizes of memory fit.
int64_t Signed(uint64_t bytes) { return static_cast<int64_t>(bytes); }

}  // namespace

MemoryGuard::MemoryGuard(const Options& options) : options_(options) {
  stats_.slot_count = stats_.slot_count_min = options.slot_count;
}

uint32_t MemoryGuard::Decide(const PressureSample& sample, uint64_t unfilled_bytes) {
  const bool is_first = !has_last_;
  if (!is_first && sample.time_ns <= last_.time_ns) return stats_.slot_count;
  room_ = Signed(sample.free_bytes) - Signed(unfilled_bytes);
  if (is_first) {
    calm_since_ns_ = sample.time_ns;
    room_before_ = room_;
  }
  const double seconds = 1e-9 * static_cast<double>(sample.time_ns - last_.time_ns);
  const Rates rates = is_first ? Rates() : RatesOf(sample, seconds);
  if (!IsCalm(rates)) calm_since_ns_ = sample.time_ns;
  const bool is_settled = shrunk_ns_ == 0 || sample.time_ns - shrunk_ns_ >= kSettleNs;
  std::string pressure = Pressure(rates, is_first ? 0 : sample.time_ns - last_.time_ns);
  bool has_changed = MakeRoom(sample, unfilled_bytes);
  if (!has_changed && is_settled && !pressure.empty() &&
      RemoveSlots(CeilDiv(stats_.slot_count, kShrinkDivisor), sample.time_ns)) {
    has_changed = true;
    reason_ = std::move(pressure);
  }
  if (!has_changed && sample.time_ns - calm_since_ns_ >= calm_wanted_ns_ &&
      sample.time_ns - grown_ns_ >= kGrowNs) {
    Grow(sample);
  }
  room_before_ = room_;
  last_ = sample;
  has_last_ = true;
  return stats_.slot_count;
}

void MemoryGuard::Allow(uint32_t slot_count) {
  const uint32_t before = stats_.slot_count;
  options_.slot_count = slot_count;
  stats_.slot_count = was_short_ ? std::min(stats_.slot_count, slot_count) : slot_count;
  // What the cache takes or gives is nobody else's doing.
  room_before_ +=
      Signed(before * options_.slot_bytes) - Signed(stats_.slot_count * options_.slot_bytes);
  stats_.slot_count_min = std::min(stats_.slot_count_min, stats_.slot_count);
}

void MemoryGuard::NoteToken(uint64_t ns) {
  const auto count = static_cast<double>(++token_count_);
  Average(std::min(count, kRecentTokens), static_cast<double>(ns), &recent_token_ns_);
  Average(std::min(count, kUsualTokens), static_cast<double>(ns), &usual_token_ns_);
}

bool MemoryGuard::TokensAreSlow() const {
  return static_cast<double>(token_count_) >= 2 * kRecentTokens &&
         recent_token_ns_ >= kSlowTokens * usual_token_ns_;
}

MemoryGuard::Rates MemoryGuard::RatesOf(const PressureSample& sample, double seconds) const {
  return {.stall = 1e-6 * Rise(sample.stall_us, last_.stall_us) / seconds,
          .faults = Rise(sample.major_fault_count, last_.major_fault_count) / seconds,
          .refaults = Rise(sample.refault_count, last_.refault_count) / seconds};
}

// Why the rates are those of short memory; empty if they are not.
std::string MemoryGuard::Pressure(const Rates& rates, uint64_t elapsed_ns) {
  const double share = TokensAreSlow() ? kSlowShare : 1;
  const bool stall_counts = last_.stall_is_own || IsNear();
  const bool refaults_count = !options_.reads_page_cache && IsNear();
  const double many = share * kShortFaults;
  const bool is_faulting = rates.faults >= many || (refaults_count && rates.refaults >= many);
  faulting_ns_ = is_faulting ? faulting_ns_ + elapsed_ns : 0;
  const bool faults_last = faulting_ns_ >= kShortFaultsNs;
  std::string text;
  if (stall_counts && rates.stall >= share * kShortStall) {
    text = fmt::format("memory stalls {:.0f} % of the time", 100 * rates.stall);
  } else if (faults_last && rates.faults >= many) {
    text = fmt::format("{:.0f} pages a second read back", rates.faults);
  } else if (faults_last) {
    text = fmt::format("{:.0f} pages a second lost and wanted again", rates.refaults);
  }
  if (!text.empty() && share < 1) {
    text += fmt::format(", tokens take {:.1f} times as long as usual",
                        recent_token_ns_ / usual_token_ns_);
  }
  return text;
}

bool MemoryGuard::IsCalm(const Rates& rates) const {
  return rates.stall <= kCalmStall && rates.faults < kShortFaults / 10 &&
         room_ >= Signed(options_.floor_bytes);
}

// The slots that bring `room` back to twice the floor.
uint64_t MemoryGuard::LackingSlots(int64_t room) const {
  const int64_t lacking = 2 * Signed(options_.floor_bytes) - room;
  return lacking <= 0 ? 0 : CeilDiv(static_cast<uint64_t>(lacking), options_.slot_bytes);
}

// False if there is enough. What is only foreseen to lack takes an eighth at most.
bool MemoryGuard::MakeRoom(const PressureSample& sample, uint64_t unfilled_bytes) {
  const int64_t fell = std::max<int64_t>(0, room_before_ - room_);
  const double looks = has_last_ ? static_cast<double>(sample.time_ns - last_.time_ns) /
                                       static_cast<double>(CacheKeeper::kLookNs)
                                 : 1;
  const int64_t ahead = room_ - static_cast<int64_t>(static_cast<double>(fell) / looks);
  if (ahead >= Signed(options_.floor_bytes)) return false;
  const uint64_t foreseen =
      std::min<uint64_t>(LackingSlots(ahead), CeilDiv(stats_.slot_count, kShrinkDivisor));
  const bool is_foreseen = room_ >= Signed(options_.floor_bytes);
  const uint64_t fall = is_foreseen ? static_cast<uint64_t>(room_before_ - room_) : 0;
  if (!RemoveSlots(std::max(foreseen, LackingSlots(room_)), sample.time_ns)) return false;
  reason_ = unfilled_bytes == 0
                ? fmt::format("{} free", SizeText(sample.free_bytes))
                : fmt::format("{} free, {} to be filled yet", SizeText(sample.free_bytes),
                              SizeText(unfilled_bytes));
  if (is_foreseen) reason_ += fmt::format(", {} less since the last look", SizeText(fall));
  return true;
}

// False if there is none to remove.
bool MemoryGuard::RemoveSlots(uint64_t fewer, uint64_t time_ns) {
  if (grown_ns_ != 0 && time_ns - grown_ns_ < kRelapseNs) {
    calm_wanted_ns_ = std::min(2 * calm_wanted_ns_, kCalmNsMax);
    grown_ns_ = 0;
  }
  calm_since_ns_ = time_ns;
  const uint64_t least = std::min(options_.slot_count_min, stats_.slot_count);
  const uint64_t count =
      std::max<uint64_t>(least, stats_.slot_count - std::min<uint64_t>(fewer, stats_.slot_count));
  if (count == stats_.slot_count) return false;
  room_ += Signed((stats_.slot_count - count) * options_.slot_bytes);
  stats_.slot_count = static_cast<uint32_t>(count);
  stats_.slot_count_min = std::min(stats_.slot_count_min, stats_.slot_count);
  ++stats_.shrink_count;
  was_short_ = true;
  shrunk_ns_ = time_ns;
  return true;
}

void MemoryGuard::Grow(const PressureSample& sample) {
  const uint32_t more = std::min(options_.slot_count - stats_.slot_count,
                                 static_cast<uint32_t>(CeilDiv(options_.slot_count, kGrowDivisor)));
  if (more == 0) {
    was_short_ = false;
    return;
  }
  const int64_t taken = Signed(more * options_.slot_bytes);
  if (room_ < taken + 2 * Signed(options_.floor_bytes)) return;
  room_ -= taken;
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

uint64_t CacheKeeper::UnfilledBytes() const {
  if (cache_.empty_slot_count() == 0) return 0;
  const uint64_t slot_bytes = cache_.slab().size() / cache_.slot_capacity();
  const Bytes used = Bytes(cache_.slab()).first(cache_.slot_count() * slot_bytes);
  return used.size() - ResidentBytesOf(used);
}

Status CacheKeeper::Allow(uint32_t slot_count) {
  const uint32_t before = guard_.stats().slot_count;
  guard_.Allow(slot_count);
  const uint32_t count = guard_.stats().slot_count;
  if (count == before) return Ok();
  said_count_ = count;
  return cache_.SetSlotLimit(count);
}

Status CacheKeeper::LookAt(uint64_t time_ns) {
  if (looked_ns_ != 0 && time_ns - looked_ns_ < kLookNs) return Ok();
  looked_ns_ = time_ns;
  SMOE_TRY_ASSIGN(const PressureSample sample, ReadPressure(time_ns, root_));
  const uint32_t before = guard_.stats().slot_count;
  const uint32_t count = guard_.Decide(sample, UnfilledBytes());
  if (count != before) SMOE_TRY(cache_.SetSlotLimit(count));
  Say(count, time_ns);
  return Ok();
}

// While memory goes, a little is given at every look: one line a second tells enough.
void CacheKeeper::Say(uint32_t count, uint64_t time_ns) {
  if (count == said_count_ || (said_ns_ != 0 && time_ns - said_ns_ < kSayNs)) return;
  const std::string text =
      fmt::format("expert cache: {} slots instead of {}: {}", count, said_count_, guard_.reason());
  if (count < said_count_) {
    LogWarning("{}", text);
  } else {
    LogInfo("{}", text);
  }
  said_count_ = count;
  said_ns_ = time_ns;
}

}  // namespace smoe::engine
