#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace smoe::io {

namespace {

// How often a partial file may be renamed away between our open and our lock.
constexpr int kLockAttemptsMax = 16;

constexpr char kPartialSuffix[] = ".partial";

bool Exists(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

// True if `path` still names the open file: its last owner may have committed it meanwhile.
bool IsStillNamed(const File& file, const std::string& path) {
  struct stat open_info = {};
  struct stat path_info = {};
  return ::fstat(file.fd(), &open_info) == 0 && ::stat(path.c_str(), &path_info) == 0 &&
         open_info.st_dev == path_info.st_dev && open_info.st_ino == path_info.st_ino;
}

Result<File> OpenLocked(const std::string& partial_path) {
  for (int attempt = 0; attempt < kLockAttemptsMax; ++attempt) {
    SMOE_TRY_ASSIGN(File file, File::OpenOrCreate(partial_path));
    if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Io("{}: lock: {}", partial_path, std::strerror(errno));
      return Invalid("{}: another process is writing it; wait for it or stop it", partial_path);
    }
    if (IsStillNamed(file, partial_path)) return file;
  }
  return Invalid("{}: other processes keep replacing it", partial_path);
}

Unexpected AlreadyThere(const std::string& path) {
  return Invalid("{}: exists; --force replaces it", path);
}

// A link in the place of the partial file would lead the writing to a file that nobody named.
Status CheckPartialPlace(const std::string& partial_path) {
  struct stat info = {};
  if (::lstat(partial_path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return Ok();
  return Invalid("{}: is no regular file, expected one to go on with, or nothing; remove it",
                 partial_path);
}

}  // namespace

Status CheckOutputPlace(const std::string& path, bool overwrite) {
  if (path.empty()) return Invalid("output: the name is empty, expected a file to write");
  struct stat info = {};
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty() && ::stat(folder.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return Invalid("{}: there is no folder {} to write it into; make it first", path, folder);
    }
  } else if (!folder.empty() && !S_ISDIR(info.st_mode)) {
    return Invalid("{}: {} is a file, expected a folder to write into", path, folder);
  }
  if (::lstat(path.c_str(), &info) != 0) return Ok();
  if (S_ISDIR(info.st_mode)) return Invalid("{}: is a folder, expected a file to write", path);
  if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode)) {
    return Invalid("{}: is a device, pipe or socket, expected a file to write", path);
  }
  if (!overwrite) return AlreadyThere(path);
  return Ok();
}

Status CheckNoInput(const std::string& path, std::span<const std::string> inputs) {
  for (const std::string& written : {path, path + kPartialSuffix}) {
    struct stat out = {};
    if (::stat(written.c_str(), &out) != 0) continue;
    for (const std::string& input : inputs) {
      struct stat in = {};
      if (::stat(input.c_str(), &in) != 0) continue;
      if (in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        return Invalid("{}: is {}, which is being read; name another file to write", written,
                       input);
      }
    }
  }
  return Ok();
}

Result<AtomicFile> AtomicFile::Open(const std::string& path, const Options& options) {
  SMOE_TRY(CheckOutputPlace(path, options.overwrite));
  SMOE_TRY(CheckPartialPlace(path + kPartialSuffix));
  AtomicFile out;
  SMOE_TRY_ASSIGN(File file, OpenLocked(path + kPartialSuffix));
  out.path_ = path;
  out.partial_path_ = path + kPartialSuffix;
  out.file_ = std::move(file);
  out.overwrite_ = options.overwrite;
  if (!options.resume) SMOE_TRY(out.file_.Truncate(0));
  return out;
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    Discard();
    path_ = std::move(other.path_);
    partial_path_ = std::move(other.partial_path_);
    file_ = std::move(other.file_);
    keep_partial_ = other.keep_partial_;
    overwrite_ = other.overwrite_;
  }
  return *this;
}

AtomicFile::~AtomicFile() { Discard(); }

void AtomicFile::Discard() {
  // Removed while the lock is still held: nobody else can own the name.
  if (file_.is_open() && !keep_partial_) ::unlink(partial_path_.c_str());
  file_ = File();
}

Status AtomicFile::Commit() {
  SMOE_TRY(file_.Sync());
  const unsigned int flags = overwrite_ ? 0 : RENAME_NOREPLACE;
  int error = 0;
  if (::renameat2(AT_FDCWD, partial_path_.c_str(), AT_FDCWD, path_.c_str(), flags) != 0) {
    error = errno;
  }
  if ((error == EINVAL || error == ENOSYS) && !overwrite_) {
    // This file system cannot refuse to replace: look first, which leaves a small window.
    if (Exists(path_)) return AlreadyThere(path_);
    error = ::rename(partial_path_.c_str(), path_.c_str()) == 0 ? 0 : errno;
  }
  if (error == EEXIST) return AlreadyThere(path_);
  if (error != 0) return Io("{}: renaming to {}: {}", partial_path_, path_, std::strerror(error));
  file_ = File();
  return SyncDirectoryOf(path_);
}

Status WriteFileAtomically(const std::string& path, Bytes content, bool overwrite) {
  SMOE_TRY_ASSIGN(AtomicFile file, AtomicFile::Open(path, {.overwrite = overwrite}));
  SMOE_TRY(file.file().WriteAt(0, content));
  return file.Commit();
}

}  // namespace smoe::io
