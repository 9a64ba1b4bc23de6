#include "cli/memory_list.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/bytes.h"

namespace smoe::cli {

namespace {

constexpr size_t kQuotedMax = 60;

// Bits that a unit shifts by; nothing for one that is none.
std::optional<int> UnitShift(std::string unit) {
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (unit.empty() || unit == "b") return 0;
  constexpr std::string_view kUnits = "kmgt";
  const size_t at = kUnits.find(unit[0]);
  const std::string rest = unit.substr(1);
  if (at == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return {};
  return 10 * (static_cast<int>(at) + 1);
}

}  // namespace

std::optional<uint64_t> ParseSize(const std::string& text) {
  uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), last, value);
  const std::optional<int> shift = UnitShift(std::string(unit, last));
  if (error != std::errc() || !shift || value > (UINT64_MAX >> *shift)) return {};
  return value << *shift;
}

Result<std::vector<std::optional<uint64_t>>> ParseMemoryList(const std::string& text,
                                                             size_t count_max) {
  std::vector<std::optional<uint64_t>> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::optional<uint64_t> size = ParseSize(word);
    if ((!size && word != "all") || sizes.size() == count_max) {
      return Invalid("--memory: \"{}\", expected a size such as 4GiB, or up to {} as 1500M,2G,all",
                     text.substr(0, kQuotedMax), count_max);
    }
    sizes.push_back(size);
    begin = end + 1;
  }
  return sizes;
}

}  // namespace smoe::cli
