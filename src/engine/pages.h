// engine/pages.h: says whether the kernel gave the huge pages that were asked for.
#pragma once

#include <string>

#include "base/bytes.h"

namespace smoe::engine {

// "huge pages: 98 % of the trunk, and the cache", or what was refused and how to get it.
// The cache is untouched at the start, so its first page is touched here to see: a byte of it is
// written. Memory of less than two huge pages is too small to count.
// `root` is where /proc and /sys are looked up: "" on a real system, a folder in tests.
// Cost: one walk of the process's page tables, milliseconds for a large trunk in small pages.
std::string PagesSentence(Bytes trunk, MutableBytes cache, const std::string& root = "");

}  // namespace smoe::engine
