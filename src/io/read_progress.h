// io/read_progress.h: how far one read has come, and what a result of the kernel makes of it.
//
// The one place that knows about short reads, interruptions, the end of a file and the most that
// Linux moves per call. Both real queues and the fake run their reads through it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/file.h"
#include "io/read_queue.h"

namespace smoe::io {

class ReadProgress {
 public:
  ReadProgress() = default;
  explicit ReadProgress(const ReadRequest& request) : request_(request) {}

  // The next call to make.
  int fd() const { return request_.fd; }
  uint64_t offset() const { return request_.offset + position_; }
  std::byte* data() const { return request_.into.data() + position_; }
  uint32_t length() const;

  // Takes what that call returned: bytes, or a negative errno. True if the read is finished;
  // error() then says how.
  bool Advance(int64_t result);

  const ReadRequest& request() const { return request_; }
  int error() const { return error_; }

 private:
  bool Finish(int error) {
    error_ = error;
    return true;
  }

  ReadRequest request_{};
  uint64_t filled_bytes_ = 0;  // of the request, from its start
  uint64_t position_ = 0;      // where the next call begins; below filled_bytes_ for direct reads
  int error_ = 0;
};

// Carries the request out on this thread; `call_bytes_max` cuts it into smaller calls (tests).
// Returns 0, ENODATA or an errno, as ReadDone.
int ReadNow(const ReadRequest& request, uint32_t call_bytes_max = kCallBytesMax);

}  // namespace smoe::io
