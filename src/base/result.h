// base/result.h: what a function returns that can fail because of the world.
//
// Three kinds of failure, three tools. World (file, request, peer, limit): Result. Our own bug:
// SMOE_CHECK, which stays in release builds and aborts. Hot-loop bug: SMOE_DCHECK, debug only.
// Nothing that arrives from outside may ever reach a check.
//
// A message is subject, expected, actual, what to do; in numbers; without "error" or "failed".
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace smoe {

// What the caller can do about it. The program's exit codes follow them (cli/exit_code.h).
enum class ErrorCode {
  kInvalid,      // the request or the arguments are wrong: change them
  kCorrupt,      // the file is damaged or contradicts itself: get it again
  kUnsupported,  // valid, but not something this build does
  kIo,           // the drive or the system refused: the message has the errno text
  kExhausted,    // memory, disk space or slots ran out: ask for less
};

class [[nodiscard("an error that is dropped is a silent fallback")]] Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Prepends what this level knows, once: "checking qwen.smoe: " + message.
  Error While(std::string_view context)&& {
    message_.insert(0, fmt::format("{}: ", context));
    return std::move(*this);
  }

 private:
  ErrorCode code_;
  std::string message_;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;
using Unexpected = tl::unexpected<Error>;

inline Status Ok() { return {}; }

template <class... Args>
Unexpected MakeUnexpected(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Unexpected{Error(code, fmt::format(format, std::forward<Args>(args)...))};
}

// Makers: return Corrupt("{}: version {}, readers accept 1 and 2", path, version);
template <class... Args>
Unexpected Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return MakeUnexpected(ErrorCode::kInvalid, format, std::forward<Args>(args)...);
}
template <class... Args>
Unexpected Corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return MakeUnexpected(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
}
template <class... Args>
Unexpected Unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return MakeUnexpected(ErrorCode::kUnsupported, format, std::forward<Args>(args)...);
}
template <class... Args>
Unexpected Io(fmt::format_string<Args...> format, Args&&... args) {
  return MakeUnexpected(ErrorCode::kIo, format, std::forward<Args>(args)...);
}
template <class... Args>
Unexpected Exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return MakeUnexpected(ErrorCode::kExhausted, format, std::forward<Args>(args)...);
}

// Passes an error of `result` up, with context in front.
template <class T>
Unexpected While(std::string_view context, Result<T>&& result) {
  return Unexpected(std::move(result.error()).While(context));
}

}  // namespace smoe

// A declaration cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)

// SMOE_TRY(status): returns the error, if there is one.
#define SMOE_TRY(expression)                                                  \
  do {                                                                        \
    if (auto smoe_status = (expression); !smoe_status) {                      \
      return ::tl::unexpected<::smoe::Error>(std::move(smoe_status.error())); \
    }                                                                         \
  } while (false)

// SMOE_TRY_ASSIGN(auto value, Function()): returns the error, or assigns the value.
#define SMOE_TRY_ASSIGN(declaration, expression) \
  SMOE_TRY_ASSIGN_IMPL(SMOE_CONCAT(smoe_result_, __LINE__), declaration, expression)
#define SMOE_TRY_ASSIGN_IMPL(result, declaration, expression)                     \
  auto result = (expression);                                                     \
  if (!result) return ::tl::unexpected<::smoe::Error>(std::move(result.error())); \
  declaration = std::move(*result)
#define SMOE_CONCAT(a, b) SMOE_CONCAT_IMPL(a, b)
#define SMOE_CONCAT_IMPL(a, b) a##b
// NOLINTEND(bugprone-macro-parentheses)
