// cli/console.h: the two streams of a command. Results go to out, everything else to err.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace smoe::cli {

struct Console {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;

  template <class... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) const {
    fmt::print(out, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) const {
    fmt::print(err, format, std::forward<Args>(args)...);
  }
};

bool IsTerminal(std::FILE* stream);

// Text from a file or a model, made safe for a terminal: control characters but newline and tab
// become \xNN.
std::string Printable(std::string_view text);

}  // namespace smoe::cli
