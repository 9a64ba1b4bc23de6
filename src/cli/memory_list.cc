#include "cli/memory_list.h"

#include <algorithm>

#include "cli/size.h"

namespace smoe::cli {

namespace {

constexpr size_t kQuotedMax = 60;

}  // namespace

Result<std::vector<std::optional<uint64_t>>> ParseMemoryList(const std::string& text,
                                                             size_t count_max) {
  std::vector<std::optional<uint64_t>> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (sizes.size() == count_max) {
      return Invalid("--memory: \"{}\", expected at most {} sizes", text.substr(0, kQuotedMax),
                     count_max);
    }
    sizes.emplace_back();
    if (word != "all") {
      Result<uint64_t> size = ParseSize(word);
      if (!size) {
        return Invalid("--memory: {}; or several of them, as 1500M,2G,all", size.error().message());
      }
      sizes.back() = *size;
    }
    begin = end + 1;
  }
  return sizes;
}

}  // namespace smoe::cli
