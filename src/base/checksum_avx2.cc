#include "base/checksum_avx2.h"

// The library's own text, compiled here: how far it fetches ahead is fixed when it is compiled.
#if defined(__AVX2__)
#define XXH_INLINE_ALL
#define XXH_PREFETCH_DIST 4096
#include <xxhash.h>

namespace smoe {

uint64_t ChecksumAvx2(const void* data, size_t size) { return XXH3_64bits(data, size); }

}  // namespace smoe
#endif
