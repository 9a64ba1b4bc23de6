// cli/size.h: amounts of bytes, as options take them.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace smoe::cli {

// Digits behind the point at most, zeros at the end not counted.
inline constexpr size_t kSizeFractionDigitsMax = 18;

// A number of bytes, or one with a unit behind it, in any case: K, M, G, T or P, with iB or alone,
// are powers of 1024; KB, MB, GB, TB and PB powers of 1000. A fraction is taken where it is a whole
// number of bytes: 1.5GB and 0.5KiB are, 0.5 and 1.3GiB are not.
// Errors: kInvalid with the text and what is expected, for whoever names the option.
Result<uint64_t> ParseSize(const std::string& text);

}  // namespace smoe::cli
