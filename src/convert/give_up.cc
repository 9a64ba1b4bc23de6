#include "convert/give_up.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

namespace smoe::convert {

Unexpected GiveUp(const GivenUp& run, const std::function<void()>& keep_partial, Status&& status) {
  const ErrorCode code = status.error().code();
  const bool is_passing = code == ErrorCode::kIo || code == ErrorCode::kExhausted;
  if (run.is_resume || is_passing) keep_partial();
  if (is_passing) {
    return Unexpected(
        Error(code, fmt::format("writing {}: {}; {}--resume goes on from here", run.out_path,
                                status.error().message(), run.is_force ? "--force " : "")));
  }
  if (run.is_resume) return While(fmt::format("writing {}", run.out_path), std::move(status));
  std::error_code ignored;
  std::filesystem::remove(run.journal_path, ignored);
  return While(fmt::format("writing {}", run.out_path), std::move(status));
}

bool RemoveFinishedJournal(const std::string& final_path, const std::string& journal_path) {
  std::error_code ignored;
  if (!std::filesystem::exists(final_path, ignored) ||
      std::filesystem::exists(final_path + ".partial", ignored)) {
    return false;
  }
  return std::filesystem::remove(journal_path, ignored);
}

}  // namespace smoe::convert
