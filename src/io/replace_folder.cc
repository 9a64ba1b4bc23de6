#include "io/replace_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/log.h"
#include "io/file.h"

namespace smoe::io {

namespace {

namespace fs = std::filesystem;

Unexpected CannotMove(const std::string& source, const std::string& target, int error) {
  return Unsupported("{}: is complete, but cannot take the place of {}: {}; rename both", source,
                     target, std::strerror(error));
}

// The exchange itself. Returns where the older folder is then.
Result<std::string> Exchange(const std::string& source, const std::string& target) {
  if (::renameat2(AT_FDCWD, source.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    return source;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    return CannotMove(source, target, errno);
  }
  const std::string aside = target + ".replaced";
  if (::renameat2(AT_FDCWD, target.c_str(), AT_FDCWD, aside.c_str(), RENAME_NOREPLACE) != 0 &&
      (errno != EINVAL || ::rename(target.c_str(), aside.c_str()) != 0)) {
    return CannotMove(source, target, errno);
  }
  if (::rename(source.c_str(), target.c_str()) == 0) return aside;
  const int error = errno;
  (void)::rename(aside.c_str(), target.c_str());
  return CannotMove(source, target, error);
}

}  // namespace

Status CheckReplaceableFolder(const std::string& folder) {
  std::error_code ignored;
  if (fs::equivalent(folder, ".", ignored)) {
    return Invalid("{}: is the folder that this program was started in; start it in another one",
                   folder);
  }
  struct stat own = {};
  struct stat above = {};
  if (::stat(folder.c_str(), &own) != 0 || ::stat((folder + "/..").c_str(), &above) != 0) {
    return Io("{}: {}", folder, std::strerror(errno));
  }
  if (own.st_dev == above.st_dev && own.st_ino != above.st_ino) return Ok();
  return Invalid(
      "{}: is a mount point, expected a folder whose place another can take; remove what is in it, "
      "or name a folder below it",
      folder);
}

Status ReplaceFolder(const std::string& source, const std::string& target,
                     const std::function<bool(const std::string& name)>& is_replaced) {
  std::error_code failed;
  fs::permissions(source, fs::status(target, failed).permissions(), failed);  // as it was
  SMOE_TRY_ASSIGN(const std::string old, Exchange(source, target));
  SMOE_TRY(SyncDirectoryOf(target));
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(old, failed), end; !failed && at != end; at.increment(failed)) {
    entries.push_back(at->path());
  }
  std::vector<fs::path> replaced;
  for (const fs::path& entry : entries) {
    const fs::path place = fs::path(target) / entry.filename();
    const bool is_there = fs::symlink_status(place, failed).type() != fs::file_type::not_found;
    if (is_there || is_replaced(entry.filename().string())) {
      replaced.push_back(entry);
    } else {
      fs::rename(entry, place, failed);
    }
  }
  for (const fs::path& entry : replaced) fs::remove(entry, failed);
  fs::remove(old, failed);
  if (failed) {
    LogWarning("{}: of what was in {} before, some is there still: {}; remove it", old, target,
               failed.message());
  }
  return Ok();
}

}  // namespace smoe::io
