#include "cli/count_list.h"

#include <algorithm>
#include <charconv>

namespace smoe::cli {

namespace {

constexpr size_t kQuotedMax = 40;

}  // namespace

Result<std::vector<uint32_t>> ParseCounts(const CountList& list, const std::string& text) {
  std::vector<uint32_t> counts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    uint32_t count = 0;
    const char* const last = text.data() + end;
    const auto [stopped_at, error] = std::from_chars(text.data() + begin, last, count);
    if (error != std::errc() || stopped_at != last || count == 0 ||
        counts.size() == list.count_max) {
      return Invalid("{}: \"{}\", expected {}, or up to {} as {}", list.option,
                     text.substr(0, kQuotedMax), list.one, list.count_max, list.several);
    }
    counts.push_back(count);
    begin = end + 1;
  }
  return counts;
}

}  // namespace smoe::cli
