#include "cli/console.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace smoe::cli {

Status Console::Flush() const {
  errno = 0;
  if (std::fflush(out) == 0 && std::ferror(out) == 0) return Ok();
  return Io("standard output: cannot be written{}{}", errno == 0 ? "" : ": ",
            errno == 0 ? "" : std::strerror(errno));
}

bool IsTerminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

std::string Printable(std::string_view text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    if (is_control) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace smoe::cli
