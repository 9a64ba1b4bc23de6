#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/memory.h"
#include "base/system_file.h"
#include "io/direct_io.h"

namespace smoe::io {

namespace {

constexpr mode_t kNewFileMode = 0644;

std::string ErrorText(int error) { return std::strerror(error); }

// What stands in the way of reading `info` as a file, or nullptr. A device has no size, and
// reading one may never end.
const char* NoFileKind(const struct stat& info, int flags) {
  if (S_ISDIR(info.st_mode)) return "is a folder";
  if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode)) return "is a pipe or socket";
  const bool reads_only = (flags & O_ACCMODE) == O_RDONLY;
  if (reads_only && !S_ISREG(info.st_mode)) return "is a device";
  return nullptr;
}

// A drive that is full, a quota or a file-size limit that is reached: something the user can mend.
ErrorCode WriteErrorCode(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? ErrorCode::kExhausted
                                                              : ErrorCode::kIo;
}

// The descriptor, or an error as in file.h. O_NONBLOCK: opening a pipe must not wait.
Result<int> OpenDescriptor(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kNewFileMode);
  if (fd < 0) {
    return Unexpected(
        Error(OpenErrorCode(errno), fmt::format("{}: {}", path, OpenErrorText(errno))));
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return Io("{}: {}", path, ErrorText(error));
  }
  if (const char* kind = NoFileKind(info, flags)) {
    ::close(fd);
    return Invalid("{}: {}, expected a file", path, kind);
  }
  return fd;
}

// A descriptor with O_DIRECT, as in file.h.
Result<int> OpenDirectDescriptor(const std::string& path, int access) {
  auto fd = OpenDescriptor(path, access | O_DIRECT);
  if (fd) return fd;
  // The same open without the flag tells a missing file from a file system without O_DIRECT.
  SMOE_TRY_ASSIGN(const int plain, OpenDescriptor(path, access));
  ::close(plain);
  return Unsupported("{}: this file system does not open files with O_DIRECT", path);
}

// One real read: some file systems take the flag and then refuse every transfer.
Status ProveDirect(int fd, const std::string& path) {
  const DirectAlignment alignment = AskDirectAlignment(fd);
  if (!alignment.is_supported) {
    return Unsupported("{}: this file system has no direct reads for this file", path);
  }
  if (std::max(alignment.offset_bytes, alignment.memory_bytes) > kDirectAlignment) {
    return Unsupported("{}: direct reads here are in blocks of {} bytes, {} are expected at most",
                       path, std::max(alignment.offset_bytes, alignment.memory_bytes),
                       kDirectAlignment);
  }
  SMOE_TRY_ASSIGN(auto probe, AlignedBuffer::Create(kDirectAlignment, "probe of direct reads"));
  ssize_t moved = 0;
  do {
    moved = ::pread(fd, probe.data(), kDirectAlignment, 0);
  } while (moved < 0 && errno == EINTR);
  if (moved < 0 && errno == EINVAL) {
    return Unsupported("{}: this file system takes O_DIRECT and then refuses {}-byte reads", path,
                       kDirectAlignment);
  }
  if (moved < 0) return Io("{}: offset 0: {}", path, ErrorText(errno));
  return Ok();
}

}  // namespace

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<File> File::OpenRead(const std::string& path) {
  SMOE_TRY_ASSIGN(const int fd, OpenDescriptor(path, O_RDONLY));
  return File(fd, path);
}

Result<File> File::OpenDirect(const std::string& path) {
  SMOE_TRY_ASSIGN(const int fd, OpenDirectDescriptor(path, O_RDONLY));
  File file(fd, path);
  SMOE_TRY(ProveDirect(fd, path));
  return file;
}

Result<File> File::OpenDirectWrite(const std::string& path) {
  SMOE_TRY_ASSIGN(const int fd, OpenDirectDescriptor(path, O_RDWR));
  File file(fd, path);
  SMOE_TRY(ProveDirect(fd, path));
  return file;
}

Result<File> File::OpenReadWrite(const std::string& path) {
  SMOE_TRY_ASSIGN(const int fd, OpenDescriptor(path, O_RDWR));
  return File(fd, path);
}

Result<File> File::Create(const std::string& path) {
  SMOE_TRY_ASSIGN(const int fd, OpenDescriptor(path, O_RDWR | O_CREAT | O_TRUNC));
  return File(fd, path);
}

Result<File> File::CreateUnnamed(const std::string& folder) {
  std::string path = (std::filesystem::path(folder) / "smoe_XXXXXX").string();
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return Io("{}: a temporary file: {}", folder, ErrorText(errno));
  ::unlink(path.c_str());
  return File(fd, path);
}

Result<File> File::OpenOrCreate(const std::string& path) {
  SMOE_TRY_ASSIGN(const int fd, OpenDescriptor(path, O_RDWR | O_CREAT));
  return File(fd, path);
}

Result<uint64_t> File::Size() const {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) return Io("{}: {}", path_, ErrorText(errno));
  return static_cast<uint64_t>(info.st_size);
}

Status File::ReadAt(uint64_t offset, MutableBytes into) const {
  return ReadFd(fd_, path_, offset, into);
}

Status ReadFd(int fd, const std::string& path, uint64_t offset, MutableBytes into) {
  uint64_t done = 0;
  while (done < into.size()) {
    const uint64_t wanted = std::min<uint64_t>(into.size() - done, kCallBytesMax);
    const ssize_t moved =
        ::pread(fd, into.data() + done, wanted, static_cast<off_t>(offset + done));
    if (moved > 0) {
      done += static_cast<uint64_t>(moved);
      continue;
    }
    if (moved < 0 && errno == EINTR) continue;
    const int error = moved < 0 ? errno : 0;
    // A direct read that goes on at an unaligned end of file is refused instead of giving 0.
    struct stat info = {};
    const bool past_end = error == EINVAL && done > 0 && ::fstat(fd, &info) == 0 &&
                          static_cast<uint64_t>(info.st_size) <= offset + done;
    if (error == 0 || past_end) {
      return Corrupt("{}: offset {}: {} bytes wanted, the file ends after {}: truncated?", path,
                     offset, into.size(), done);
    }
    return Io("{}: offset {}: {} bytes wanted, {} read: {}", path, offset, into.size(), done,
              ErrorText(error));
  }
  return Ok();
}

Status File::WriteAt(uint64_t offset, Bytes from) const {
  uint64_t done = 0;
  while (done < from.size()) {
    const uint64_t wanted = std::min<uint64_t>(from.size() - done, kCallBytesMax);
    const ssize_t moved =
        ::pwrite(fd_, from.data() + done, wanted, static_cast<off_t>(offset + done));
    if (moved > 0) {
      done += static_cast<uint64_t>(moved);
      continue;
    }
    if (moved < 0 && errno == EINTR) continue;
    const int error = moved < 0 ? errno : ENOSPC;
    return Unexpected(Error(WriteErrorCode(error),
                            fmt::format("{}: offset {}: {} bytes to write, {} written: {}", path_,
                                        offset, from.size(), done, ErrorText(error))));
  }
  return Ok();
}

Status File::Truncate(uint64_t size) const {
  if (::ftruncate(fd_, static_cast<off_t>(size)) == 0) return Ok();
  const int error = errno;
  return Unexpected(Error(WriteErrorCode(error), fmt::format("{}: setting the size to {}: {}",
                                                             path_, size, ErrorText(error))));
}

Status File::Reserve(uint64_t size) const {
  if (size == 0) return Ok();
  int refused = 0;
  do {
    refused = ::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (refused == EINTR);
  if (refused == 0 || refused == EOPNOTSUPP || refused == ENOSYS) return Ok();
  return Unexpected(Error(WriteErrorCode(refused), fmt::format("{}: room for {} bytes: {}", path_,
                                                               size, ErrorText(refused))));
}

Status File::Sync() const {
  if (::fsync(fd_) == 0) return Ok();
  const int error = errno;
  return Unexpected(Error(WriteErrorCode(error), fmt::format("{}: writing through to the drive: {}",
                                                             path_, ErrorText(error))));
}

// These are hints: a refusal costs speed and nothing else.
void File::StartWriteback(uint64_t offset, uint64_t size) const {
  (void)::sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(size),
                          SYNC_FILE_RANGE_WRITE);
}

void File::DropFromPageCache(uint64_t offset, uint64_t size) const {
  (void)::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(size),
                        POSIX_FADV_DONTNEED);
}

void File::ReadAhead(uint64_t offset, uint64_t size) const {
  (void)::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(size),
                        POSIX_FADV_WILLNEED);
}

bool IsDirectAligned(Bytes bytes, uint64_t offset) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  return (address | bytes.size() | offset) % kDirectAlignment == 0;
}

Result<std::string> ReadWholeFile(const std::string& path, uint64_t size_max) {
  SMOE_TRY_ASSIGN(const File file, File::OpenRead(path));
  SMOE_TRY_ASSIGN(const uint64_t size, file.Size());
  if (size > size_max) return Invalid("{}: {} bytes, at most {} are read", path, size, size_max);
  std::string content(size, '\0');
  SMOE_TRY(file.ReadAt(0, std::as_writable_bytes(std::span(content))));
  return content;
}

Result<uint64_t> FreeSpace(const std::string& path) {
  std::filesystem::path place = std::filesystem::path(path).lexically_normal();
  std::error_code ignored;
  while (!place.empty() && !std::filesystem::exists(place, ignored) && place != place.root_path()) {
    place = place.parent_path();
  }
  if (place.empty()) place = ".";
  struct statvfs info = {};
  if (::statvfs(place.c_str(), &info) != 0) {
    return Io("{}: free space: {}", place.string(), ErrorText(errno));
  }
  // Those that keep no count (ramfs, some in user space) say that they have no blocks at all.
  if (info.f_blocks == 0) return kFreeSpaceUnknown;
  return uint64_t{info.f_bavail} * uint64_t{info.f_frsize};
}

Status SyncDirectoryOf(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Io("{}: {}", folder.string(), ErrorText(errno));
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot sync a folder and say so; the rename is as safe there as it can be.
  if (error == 0 || error == EINVAL || error == ENOTSUP) return Ok();
  return Io("{}: writing the folder through to the drive: {}", folder.string(), ErrorText(error));
}

}  // namespace smoe::io
