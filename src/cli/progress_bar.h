// cli/progress_bar.h: how far long work is, with rate and time left.
//
// On a terminal one line that is redrawn; elsewhere a plain line every few seconds, so that logs
// stay readable. Everything goes to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/console.h"

namespace smoe::cli {

class ProgressBar {
 public:
  ProgressBar(Console& console, std::string title);
  ~ProgressBar();  // ends the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // In bytes. Cheap: draws at most ten times a second.
  void Update(uint64_t done_bytes, uint64_t total_bytes);
  // The same, in things counted one by one. `note`: stands behind the figures.
  void UpdateCount(uint64_t done_count, uint64_t total_count, const char* unit,
                   const std::string& note = "");

 private:
  bool IsDue(bool is_done);
  void Draw(double share, const std::string& figures);
  double Rate(uint64_t done) const;

  using Clock = std::chrono::steady_clock;
  Console& console_;
  const bool is_terminal_;
  const std::string title_;
  const Clock::time_point started_;
  Clock::time_point drawn_;
  bool has_drawn_ = false;
};

// "1:23:45", "2:07".
std::string DurationText(double seconds);

}  // namespace smoe::cli
