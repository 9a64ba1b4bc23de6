// cli/token_ids.h: token ids as people type and read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace smoe::cli {

// "1,2,3", "1 2 3" or "[1, 2, 3]" to ids. Errors: kInvalid naming the piece that is no id, or that
// there is none.
Result<std::vector<uint32_t>> ParseTokenIds(const std::string& text);

// "1,2,3": what ParseTokenIds reads.
std::string TokenIdsText(std::span<const uint32_t> tokens);

}  // namespace smoe::cli
