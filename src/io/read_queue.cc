#include "io/read_queue.h"

#include <algorithm>

#include "base/log.h"

namespace smoe::io {

Status CheckReadOptions(const ReadQueue::Options& options) {
  if (options.depth < 1 || options.depth > kReadDepthMax) {
    return Invalid("read queue: depth {}, expected 1 to {}", options.depth, kReadDepthMax);
  }
  if (options.thread_count < 1 || options.thread_count > kReadThreadsMax) {
    return Invalid("read queue: {} threads, expected 1 to {}", options.thread_count,
                   kReadThreadsMax);
  }
  return Ok();
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
