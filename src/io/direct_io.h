// io/direct_io.h: what a file system says about direct reads, and what it really does.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/file.h"

namespace smoe::io {

struct DirectAlignment {
  uint32_t memory_bytes = kDirectAlignment;  // of the address
  uint32_t offset_bytes = kDirectAlignment;  // of the place in the file and the length
  bool is_supported = true;                  // false: the kernel says that there is no direct I/O
  bool is_reported = false;                  // by the kernel; else the usual 4096 is assumed
};

// Asks the kernel for the file behind `fd` (statx, STATX_DIOALIGN: Linux 6.1 and some file
// systems); where it does not know, 4096, which all block devices of today accept. Never fails.
DirectAlignment AskDirectAlignment(int fd);

enum class DirectEvidence : uint8_t {
  kBuffered,  // the descriptor has no O_DIRECT
  kIgnored,   // it has, and yet a read left its bytes in the page cache
  kFlagOnly,  // it has, and nothing could be seen of the page cache
  kProven,    // a read of pages that were not in the page cache left them out of it
};

// "buffered", "O_DIRECT set but ignored by the file system", "direct (not verifiable here)",
// "direct, verified"
const char* DirectEvidenceText(DirectEvidence evidence);

// Reads `size` bytes at `offset` through `fd` and looks at the page cache before and after
// (mincore). The range must lie in the file, and be aligned. Costs one read.
// Errors: kIo if the read fails.
Result<DirectEvidence> ProveDirectRead(int fd, uint64_t offset, MutableBytes into);

// True if no page of the range is in the page cache; false also where that cannot be seen.
bool IsOutOfPageCache(int fd, uint64_t offset, uint64_t size);

// A second descriptor on the file behind `fd`, with O_DIRECT or without it, whoever owns the first.
// Errors: kUnsupported where /proc is not there or the file system refuses; kIo.
Result<File> ReopenForRead(int fd, bool direct);

}  // namespace smoe::io
