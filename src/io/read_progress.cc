#include "io/read_progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace smoe::io {

uint32_t ReadProgress::length() const {
  return static_cast<uint32_t>(std::min(kCallBytesMax, request_.into.size() - position_));
}

bool ReadProgress::Advance(int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) return Finish(static_cast<int>(-result));
  const uint64_t end = position_ + static_cast<uint64_t>(result);
  if (end >= request_.into.size()) return Finish(0);
  if (end <= filled_bytes_) return Finish(ENODATA);
  filled_bytes_ = end;
  position_ = end;
  // A direct read that ends off the alignment has met the end of the file, most likely. Going on
  // from there would give EINVAL, which hides that, so the last page is asked for again.
  if (end % kDirectAlignment != 0) {
    const int flags = fcntl(request_.fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT) != 0)
      position_ = end / kDirectAlignment * kDirectAlignment;
  }
  return false;
}

int ReadNow(const ReadRequest& request, uint32_t call_bytes_max) {
  ReadProgress progress(request);
  for (;;) {
    const uint32_t length = std::min(progress.length(), call_bytes_max);
    const ssize_t got =
        pread(progress.fd(), progress.data(), length, static_cast<off_t>(progress.offset()));
    if (progress.Advance(got < 0 ? -errno : got)) return progress.error();
  }
}

}  // namespace smoe::io
