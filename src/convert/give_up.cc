#include "convert/give_up.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

namespace smoe::convert {

Unexpected GiveUp(const std::string& out_path, const std::string& journal_path, bool is_resume,
                  const std::function<void()>& keep_partial, Status&& status) {
  const ErrorCode code = status.error().code();
  const bool is_passing = code == ErrorCode::kIo || code == ErrorCode::kExhausted;
  if (is_resume || is_passing) keep_partial();
  if (is_passing) {
    return Unexpected(Error(code, fmt::format("writing {}: {}; --resume goes on from here",
                                              out_path, status.error().message())));
  }
  if (is_resume) return While(fmt::format("writing {}", out_path), std::move(status));
  std::error_code ignored;
  std::filesystem::remove(journal_path, ignored);
  return While(fmt::format("writing {}", out_path), std::move(status));
}

}  // namespace smoe::convert
