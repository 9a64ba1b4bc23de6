#include "checkpoint/name_list.h"

#include <fmt/core.h>

namespace smoe::checkpoint {

std::string ListNames(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesListedMax; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesListedMax) {
    text += fmt::format(" and {} more", names.size() - kNamesListedMax);
  }
  return text;
}

}  // namespace smoe::checkpoint
