#include "io/read_queue.h"

#include <algorithm>

#include "base/log.h"
#include "io/file.h"

namespace smoe::io {

Status CheckReadOptions(const ReadQueue::Options& options) {
  if (options.depth < 1 || options.depth > kReadDepthMax) {
    return Invalid("read queue: depth {}, expected 1 to {}", options.depth, kReadDepthMax);
  }
  if (options.thread_count < 1 || options.thread_count > kReadThreadsMax) {
    return Invalid("read queue: {} threads, expected 1 to {}", options.thread_count,
                   kReadThreadsMax);
  }
  if (options.piece_bytes % kDirectAlignment != 0) {
    return Invalid("read queue: pieces of {} bytes, expected a multiple of {}", options.piece_bytes,
                   kDirectAlignment);
  }
  return Ok();
}

Status ReadQueue::RegisterFiles(std::span<const int> fds) {
  static_cast<void>(fds);
  return Unsupported("{}: files are not registered with this queue", name());
}

Status ReadQueue::RegisterMemory(MutableBytes memory) {
  static_cast<void>(memory);
  return Unsupported("{}: memory is not registered with this queue", name());
}

Status ReadQueue::ForgetMemory() { return Ok(); }

const char* ReadBackendName(ReadBackend backend) {
  switch (backend) {
    case ReadBackend::kAuto:
      return "auto";
    case ReadBackend::kUring:
      return "uring";
    case ReadBackend::kThreads:
      return "threads";
  }
  return "";
}

Result<std::unique_ptr<ReadQueue>> ReadQueue::Open(ReadBackend backend, const Options& options) {
  if (backend == ReadBackend::kThreads) return OpenThreaded(options);
  Result<std::unique_ptr<ReadQueue>> ring = OpenUring(options);
  if (ring || backend == ReadBackend::kUring) return ring;
  if (ring.error().code() != ErrorCode::kUnsupported) return ring;
  LogInfo("reads: {}; using {} pread threads", ring.error().message(),
          std::min(options.thread_count, options.depth));
  return OpenThreaded(options);
}

}  // namespace smoe::io
