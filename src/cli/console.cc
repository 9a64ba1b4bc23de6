#include "cli/console.h"

#include <unistd.h>

namespace smoe::cli {

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
