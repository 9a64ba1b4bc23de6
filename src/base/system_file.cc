#include "base/system_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace smoe {

namespace {

bool IsFileLimit(int error) { return error == EMFILE || error == ENFILE; }

}  // namespace

std::string OpenErrorText(int error) {
  const char* const text = std::strerror(error);
  if (error == ENFILE) return fmt::format("{}: sysctl fs.file-max raises the limit", text);
  struct rlimit limit = {};
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return text;
  return fmt::format("{}: this process may have {}; raise that by ulimit -n", text, limit.rlim_cur);
}

ErrorCode OpenErrorCode(int error) {
  return IsFileLimit(error) ? ErrorCode::kExhausted : ErrorCode::kIo;
}

Result<std::optional<std::string>> ReadSystemFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (!IsFileLimit(errno)) return std::nullopt;
    return Unexpected(
        Error(OpenErrorCode(errno), fmt::format("{}: {}", path, OpenErrorText(errno))));
  }
  constexpr size_t kPieceBytes = 4096;  // these files have no size to ask for
  std::string text;
  ssize_t got = 1;
  int error = 0;
  while (got != 0 && text.size() < kSystemFileBytesMax) {
    const size_t end = text.size();
    text.resize(std::min(end + std::max(kPieceBytes, end), kSystemFileBytesMax));
    do {
      got = ::read(fd, text.data() + end, text.size() - end);
    } while (got < 0 && errno == EINTR);
    error = got < 0 ? errno : 0;
    text.resize(end + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) break;
  }
  ::close(fd);
  // Some limits are there and have no value: memory.max of a group that is going.
  if (error == ENODEV || error == EOPNOTSUPP || error == EINVAL || error == EACCES ||
      error == EPERM) {
    return std::nullopt;
  }
  if (error != 0) return Io("{}: {}", path, std::strerror(error));
  return text;
}

}  // namespace smoe
