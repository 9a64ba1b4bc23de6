// io/user_cache.h: small files that are kept between runs and only save time.
//
// They lie in $XDG_CACHE_HOME/smoe, or in $HOME/.cache/smoe. Whoever reads one takes it for
// damaged, foreign or absent at any time; whoever writes one replaces it whole, so that two
// processes at once leave one of their files, and never half of each.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace smoe::io {

// The path of the file `name` there; "" if neither variable is set to an absolute path.
std::string UserCachePath(std::string_view name);

// Makes the folder if it is not there.
// Errors: kIo; kInvalid (another process writes the file just now).
Status WriteUserCacheFile(const std::string& path, std::string_view text);

}  // namespace smoe::io
