#include "cli/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/memory_limits.h"

namespace smoe::cli {

namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr std::chrono::seconds kLineInterval{5};
constexpr size_t kBarWidth = 24;

std::string Bar(double share) {
  const auto filled = static_cast<size_t>(share * static_cast<double>(kBarWidth));
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

double Share(uint64_t done, uint64_t total) {
  return total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
}

double SecondsLeft(uint64_t done, uint64_t total, double rate) {
  return rate > 0 ? static_cast<double>(total - std::min(total, done)) / rate : HUGE_VAL;
}

}  // namespace

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e7) return "?";
  const auto total = static_cast<uint64_t>(std::max(0.0, std::round(seconds)));
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

ProgressBar::ProgressBar(Console& console, std::string title)
    : console_(console),
      is_terminal_(IsTerminal(console.err)),
      title_(std::move(title)),
      started_(Clock::now()),
      drawn_(started_) {}

ProgressBar::~ProgressBar() {
  if (is_terminal_ && has_drawn_) console_.Note("\n");
}

bool ProgressBar::IsDue(bool is_done) {
  const auto now = Clock::now();
  const auto interval = is_terminal_ ? Clock::duration(kRedrawInterval) : kLineInterval;
  if (now - drawn_ < interval && !(is_done && is_terminal_)) return false;
  drawn_ = now;
  return true;
}

double ProgressBar::Rate(uint64_t done) const {
  const double seconds = std::chrono::duration<double>(drawn_ - started_).count();
  return seconds > 0 ? static_cast<double>(done) / seconds : 0;
}

void ProgressBar::Update(uint64_t done_bytes, uint64_t total_bytes) {
  if (!IsDue(done_bytes >= total_bytes)) return;
  const double rate = Rate(done_bytes);
  Draw(Share(done_bytes, total_bytes),
       fmt::format("{} of {}  {}/s  {} left", SizeText(done_bytes), SizeText(total_bytes),
                   SizeText(static_cast<uint64_t>(rate)),
                   DurationText(SecondsLeft(done_bytes, total_bytes, rate))));
}

void ProgressBar::UpdateCount(uint64_t done_count, uint64_t total_count, const char* unit,
                              const std::string& note) {
  if (!IsDue(done_count >= total_count)) return;
  const double rate = Rate(done_count);
  Draw(Share(done_count, total_count),
       fmt::format("{} of {} {}  {:.0f}/s  {} left{}{}", done_count, total_count, unit, rate,
                   DurationText(SecondsLeft(done_count, total_count, rate)),
                   note.empty() ? "" : "  ", note));
}

void ProgressBar::Draw(double share, const std::string& figures) {
  if (is_terminal_) {
    console_.Note("\r{} [{}] {:5.1f} %  {}\x1b[K", title_, Bar(share), 100 * share, figures);
  } else {
    console_.Note("{}: {:.1f} %  {}\n", title_, 100 * share, figures);
  }
  std::fflush(console_.err);
  has_drawn_ = true;
}

}  // namespace smoe::cli
