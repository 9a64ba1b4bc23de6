// io/file_checksum.h: the checksum of a stretch of a file, piece by piece.
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/result.h"
#include "io/file.h"

namespace smoe::io {

// XXH3-64 of `size` bytes from `offset` on, read into `buffer` as often as it takes. `each` gets
// every piece in order, and where in the stretch it begins: to copy it, or to count it.
// Requires a buffer that is not empty, unless size is 0. Errors: kIo, kCorrupt as File::ReadAt; and
// those of `each`, which end it.
using PieceSink = std::function<Status(uint64_t at, Bytes piece)>;
Result<uint64_t> ChecksumOfStretch(const File& file, uint64_t offset, uint64_t size,
                                   MutableBytes buffer, const PieceSink& each = {});

}  // namespace smoe::io
