// cli/memory_list.h: amounts of memory, as --memory 1500M,2G,all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace smoe::cli {

// Sizes (cli/size.h) with a comma between them; "all" is none: as much as all experts need.
// Errors: kInvalid naming --memory, what it takes, and the text.
Result<std::vector<std::optional<uint64_t>>> ParseMemoryList(const std::string& text,
                                                             size_t count_max);

}  // namespace smoe::cli
