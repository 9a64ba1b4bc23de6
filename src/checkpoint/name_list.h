// checkpoint/name_list.h: names in a message, not too many of them.
#pragma once

#include <string>
#include <vector>

namespace smoe::checkpoint {

inline constexpr size_t kNamesListedMax = 8;

// "a, b, c", or "a, b, ... and 12 more".
std::string ListNames(const std::vector<std::string>& names);

}  // namespace smoe::checkpoint
