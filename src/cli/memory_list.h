// cli/memory_list.h: amounts of memory, as --memory 1500M,2G,all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace smoe::cli {

// A number of bytes, or one with K, M, G or T behind it, whatever follows that (GB and GiB alike):
// powers of 1024, as everywhere. Absent: no such thing.
std::optional<uint64_t> ParseSize(const std::string& text);

// Sizes with a comma between them; "all" is none: as much as all experts need.
// Errors: kInvalid naming --memory, what it takes, and the text.
Result<std::vector<std::optional<uint64_t>>> ParseMemoryList(const std::string& text,
                                                             size_t count_max);

}  // namespace smoe::cli
