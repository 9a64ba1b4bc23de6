// base/log.h: what the program notices while it works, one sentence a line.
//
// The library never prints; it logs. The program decides where it goes (stderr; nothing on stdout).
// Nothing per token: that is counters. Never log prompts or outputs.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace smoe {

enum class LogLevel { kInfo, kWarning };

// One line to the sink. Thread-safe.
void LogLine(LogLevel level, std::string_view message);

// LogInfo("reads: io_uring refused ({}), using {} pread threads", reason, count);
template <class... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace smoe
