#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "base/printable.h"

namespace smoe {

namespace {

// Synchronous and to stderr: few lines are logged, and none may be lost when the process dies.
spdlog::logger& Logger() {
  static spdlog::logger logger = [] {
    spdlog::logger made("smoe", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("smoe: %l: %v");
    return made;
  }();
  return logger;
}

}  // namespace

void LogLine(LogLevel level, std::string_view message) {
  const std::string line = Printable(message);  // names of files are in it
  switch (level) {
    case LogLevel::kInfo:
      return Logger().info("{}", line);
    case LogLevel::kWarning:
      return Logger().warn("{}", line);
  }
}

}  // namespace smoe
