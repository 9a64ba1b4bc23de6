// cli/count_list.h: an option that takes one number or several, as --threads 1,2,4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace smoe::cli {

struct CountList {
  const char* option;   // as in "--threads"
  const char* one;      // what one of them is, as in "a number such as 2"
  const char* several;  // as in "1,2,4"
  size_t count_max;
};

// Numbers above 0 with a comma between them.
// Errors: kInvalid naming the option, what it takes, and the text.
Result<std::vector<uint32_t>> ParseCounts(const CountList& list, const std::string& text);

}  // namespace smoe::cli
