#include "io/replace_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
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

// Everything in `old` goes, or moves to `target` where it is not replaced, and then `old` itself.
// Moves come first, so that a sudden end keeps what is not ours to lose. Returns the first failure;
// the others follow from it, or not, and change nothing for the newer folder.
std::error_code ClearOld(const std::string& old, const fs::path& target,
                         const std::function<bool(const std::string& name)>& is_replaced) {
  std::error_code first;
  const auto note = [&](const std::error_code& failed) { first = first ? first : failed; };
  std::error_code failed;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(old, failed), end; !failed && at != end; at.increment(failed)) {
    entries.push_back(at->path());
  }
  note(failed);
  std::vector<fs::path> replaced;
  for (const fs::path& entry : entries) {
    const fs::path place = target / entry.filename();
    std::error_code ignored;
    const bool is_there = fs::symlink_status(place, ignored).type() != fs::file_type::not_found;
    if (is_there || is_replaced(entry.filename().string())) {
      replaced.push_back(entry);
      continue;
    }
    fs::rename(entry, place, failed);
    note(failed);
  }
  replaced.emplace_back(old);
  for (const fs::path& path : replaced) {
    fs::remove(path, failed);
    note(failed);
  }
  return first;
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
  std::error_code ignored;
  fs::permissions(source, fs::status(target, ignored).permissions(), ignored);  // as it was
  SMOE_TRY_ASSIGN(const std::string old, Exchange(source, target));
  SMOE_TRY(SyncDirectoryOf(target));
  if (const std::error_code failed = ClearOld(old, target, is_replaced)) {
    LogWarning("{}: of what was in {} before, some is there still: {}; remove it", old, target,
               failed.message());
  }
  return Ok();
}

}  // namespace smoe::io
