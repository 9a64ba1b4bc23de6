// base/log.h: what the program notices while it works, as one line: an event and key=value pairs.
//
// The library never prints; it logs. The program decides where it goes (stderr; nothing on stdout).
// Nothing per token above debug level. Never log prompts or outputs.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace smoe {

enum class LogLevel { kDebug, kInfo, kWarning };

// Below this level nothing is written. Default: kInfo. Call before threads start.
void SetLogLevel(LogLevel level);

// One line to the sink. Thread-safe.
void LogLine(LogLevel level, std::string_view message);

// LogInfo("reads: io_uring refused ({}), using {} pread threads", reason, count);
template <class... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace smoe
