#include "cli/console.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace smoe::cli {

Status Console::Flush() const {
  errno = 0;
  if (std::fflush(out) == 0 && std::ferror(out) == 0) return Ok();
  return Io("standard output: cannot be written{}{}", errno == 0 ? "" : ": ",
            errno == 0 ? "" : std::strerror(errno));
}

Result<std::string> ReadAll(std::FILE* stream, uint64_t size_max) {
  std::string text;
  char buffer[8192];
  errno = 0;
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), stream)) > 0;) {
    text.append(buffer, got);
    if (text.size() > size_max) {
      return Invalid("standard input: more than {} bytes, the most that are read", size_max);
    }
  }
  if (std::ferror(stream) != 0) {
    return Io("standard input: cannot be read: {}", std::strerror(errno));
  }
  return text;
}

void HoldStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free descriptor is `fd`. Opened the wrong way round, so that each use is an error.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

bool Console::ReaderIsGone() const {
  if (std::ferror(out) == 0) return false;
  pollfd pipe = {fileno(out), POLLOUT, 0};
  return poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0;
}

bool IsTerminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

}  // namespace smoe::cli
