#include "io/direct_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/memory.h"

namespace smoe::io {

namespace {

// Pages of the range that are in the page cache, or nothing if that cannot be seen.
struct CachedPages {
  bool is_known = false;
  size_t cached_count = 0;
  size_t page_count = 0;
};

CachedPages CountCachedPages(int fd, uint64_t offset, uint64_t size) {
  CachedPages pages;
  // Mapped and never touched: no page is read by this.
  void* const start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (start == MAP_FAILED) return pages;
  std::vector<unsigned char> present(CeilDiv(size, kPageBytes));
  if (::mincore(start, size, present.data()) == 0) {
    pages.is_known = true;
    pages.page_count = present.size();
    pages.cached_count = static_cast<size_t>(
        std::count_if(present.begin(), present.end(), [](unsigned char page) { return page & 1; }));
  }
  ::munmap(start, size);
  return pages;
}

}  // namespace

DirectAlignment AskDirectAlignment(int fd) {
  DirectAlignment alignment;
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    alignment.is_reported = true;
    alignment.is_supported = info.stx_dio_offset_align != 0;
    if (alignment.is_supported) {
      alignment.memory_bytes = info.stx_dio_mem_align;
      alignment.offset_bytes = info.stx_dio_offset_align;
    }
  }
#else
  static_cast<void>(fd);
#endif
  return alignment;
}

const char* DirectEvidenceText(DirectEvidence evidence) {
  switch (evidence) {
    case DirectEvidence::kBuffered:
      return "buffered";
    case DirectEvidence::kIgnored:
      return "O_DIRECT set but ignored by the file system";
    case DirectEvidence::kFlagOnly:
      return "direct (not verifiable here)";
    case DirectEvidence::kProven:
      return "direct, verified";
  }
  return "unknown";
}

Result<DirectEvidence> ProveDirectRead(int fd, uint64_t offset, MutableBytes into) {
  const std::string name = fmt::format("/proc/self/fd/{}", fd);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return Io("{}: {}", name, std::strerror(errno));
  if ((flags & O_DIRECT) == 0) return DirectEvidence::kBuffered;
  const CachedPages before = CountCachedPages(fd, offset, into.size());
  SMOE_TRY(ReadFd(fd, name, offset, into));
  const CachedPages after = CountCachedPages(fd, offset, into.size());
  // Linux shows the pages of others' files as all there: that, and a range that was read before,
  // says nothing.
  if (!before.is_known || !after.is_known || before.cached_count == before.page_count) {
    return DirectEvidence::kFlagOnly;
  }
  return after.cached_count <= before.cached_count ? DirectEvidence::kProven
                                                   : DirectEvidence::kIgnored;
}

bool IsOutOfPageCache(int fd, uint64_t offset, uint64_t size) {
  // A mapping begins with a page.
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  const CachedPages pages = CountCachedPages(fd, begin, offset - begin + size);
  return pages.is_known && pages.cached_count == 0;
}

Result<File> ReopenForRead(int fd, bool direct) {
  const std::string name = fmt::format("/proc/self/fd/{}", fd);
  return direct ? File::OpenDirect(name) : File::OpenRead(name);
}

}  // namespace smoe::io
