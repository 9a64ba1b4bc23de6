#include "cli/token_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace smoe::cli {

Result<std::vector<uint32_t>> ParseTokenIds(const std::string& text) {
  std::vector<uint32_t> tokens;
  size_t begin = 0;
  bool comma_is_due = false;  // a comma stands behind an id
  while (begin < text.size()) {
    const size_t end = std::min(text.find_first_of(", \n\t[]", begin), text.size());
    if (end > begin) {
      uint32_t id = 0;
      const char* first = text.data() + begin;
      const char* last = text.data() + end;
      const auto parsed = std::from_chars(first, last, id);
      if (parsed.ec != std::errc() || parsed.ptr != last) {
        return Invalid("tokens: \"{}\", expected ids such as 1,2,3",
                       text.substr(begin, std::min<size_t>(end - begin, 40)));
      }
      tokens.push_back(id);
      comma_is_due = true;
    }
    if (end < text.size() && text[end] == ',') {
      if (!comma_is_due) {
        return Invalid("tokens: no id before the comma at byte {}, expected ids such as 1,2,3",
                       end);
      }
      comma_is_due = false;
    }
    begin = end + 1;
  }
  if (tokens.empty()) return Invalid("tokens: none, expected ids such as 1,2,3");
  return tokens;
}

std::string TokenIdsText(std::span<const uint32_t> tokens) {
  return fmt::format("{}", fmt::join(tokens, ","));
}

}  // namespace smoe::cli
