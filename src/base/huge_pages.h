// base/huge_pages.h: whether memory lies in huge pages.
//
// AlignedBuffer asks for them; only the kernel knows whether it gave any. They spare a walk through
// the page tables for each 4 KiB, which a plain read of memory feels.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe {

struct PageUse {
  uint64_t resident_bytes = 0;  // in memory now
  uint64_t huge_bytes = 0;      // of these, in huge pages
  double HugeShare() const {
    return resident_bytes == 0
               ? 0
               : static_cast<double>(huge_bytes) / static_cast<double>(resident_bytes);
  }
};

// Pages of the mappings that `memory` lies in: the kernel may have joined its mapping with that of
// a neighbour. Pages that nobody has touched do not count.
// Cost: the kernel walks the page tables of the whole process; milliseconds for a large one.
// Errors: kIo if /proc/self/smaps cannot be read or has no such mapping.
// Source: Documentation/filesystems/proc.rst, "smaps".
Result<PageUse> ReadPageUse(Bytes memory, const std::string& root = "");

// "always", "madvise", "never", as the kernel is set for anonymous memory; "" if it has none.
// Source: Documentation/admin-guide/mm/transhuge.rst, "sysfs".
std::string HugePageMode(const std::string& root = "");

}  // namespace smoe
