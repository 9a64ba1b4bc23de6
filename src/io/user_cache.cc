#include "io/user_cache.h"

#include <cstdlib>
#include <filesystem>

#include "base/bytes.h"
#include "io/atomic_file.h"

namespace smoe::io {

std::string UserCachePath(std::string_view name) {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return fmt::format("{}/smoe/{}", cache, name);
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? fmt::format("{}/.cache/smoe/{}", home, name) : "";
}

Status WriteUserCacheFile(const std::string& path, std::string_view text) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, error);
  if (error) return Io("{}: {}", folder.string(), error.message());
  return WriteFileAtomically(path, AsBytes(text), true);
}

}  // namespace smoe::io
