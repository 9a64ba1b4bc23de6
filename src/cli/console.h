// cli/console.h: the streams of a command. Results go to out, everything else to err.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace smoe::cli {

// Neither Print nor Note fails or throws. What Print could not write shows in Flush, which every
// command ends with; what Note could not write is lost, since there is nobody left to tell.
struct Console {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;

  template <class... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) const {
    Write(out, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) const {
    Write(err, fmt::format(format, std::forward<Args>(args)...));
  }

  // Errors: kIo if something that was printed since the start did not reach its end of `out`.
  Status Flush() const;

 private:
  static void Write(std::FILE* stream, std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stream);
  }
};

bool IsTerminal(std::FILE* stream);

// Text from a file or a model, made safe for a terminal: control characters but newline and tab
// become \xNN.
std::string Printable(std::string_view text);

}  // namespace smoe::cli
