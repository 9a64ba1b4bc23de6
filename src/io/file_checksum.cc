#include "io/file_checksum.h"

#include <algorithm>

#include "base/check.h"

namespace smoe::io {

Result<uint64_t> ChecksumOfStretch(const File& file, uint64_t offset, uint64_t size,
                                   MutableBytes buffer, const PieceSink& each) {
  SMOE_CHECK(size == 0 || !buffer.empty());
  ChecksumStream checksum;
  for (uint64_t at = 0; at < size;) {
    const MutableBytes piece = buffer.first(std::min<uint64_t>(buffer.size(), size - at));
    SMOE_TRY(file.ReadAt(offset + at, piece));
    checksum.Add(piece);
    if (each) SMOE_TRY(each(at, piece));
    at += piece.size();
  }
  return checksum.Digest();
}

}  // namespace smoe::io
