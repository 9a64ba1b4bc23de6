// io/split_read_queue.h: a read queue that cuts each read into pieces, read side by side.
//
// A drive may give one large read less than it gives several small ones at once. The pieces go
// through a queue of any kind; the caller sees whole reads and nothing else.
#pragma once

#include <cstdint>
#include <memory>

#include "io/read_queue.h"

namespace smoe::io {

// `inner` takes the pieces, each of `piece_bytes` but the last of a read; `depth` reads fit. Pieces
// that find no room in `inner` follow at the next Submit or Reap, in the order of the reads. A read
// of which a piece failed has the error of the first piece in the file that did.
// Requires what CheckReadOptions checks of depth and piece_bytes, and piece_bytes > 0.
std::unique_ptr<ReadQueue> MakeSplitReadQueue(std::unique_ptr<ReadQueue> inner, uint32_t depth,
                                              uint64_t piece_bytes);

// How many pieces a queue should have room for. At least depth, at most kReadDepthMax.
uint32_t PieceDepth(uint32_t depth);

}  // namespace smoe::io
