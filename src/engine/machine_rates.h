// engine/machine_rates.h: what bounds an engine on this machine: its drive and its memory.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "io/read_queue.h"
#include "store/expert_store.h"

namespace smoe::engine {

// Long enough for some hundred reads of a fast drive, short enough to stand beside each run.
inline constexpr double kDriveSampleSeconds = 0.3;

// Bytes per second of random reads of whole experts, several at once, through a queue of their own
// as the engine has one. Where the store reads through the page cache, what is read is dropped
// from it first.
// Errors: kInvalid for a store without experts; kIo if a read fails; kExhausted.
Result<double> MeasureStoreReads(const store::ExpertStore& store, io::ReadBackend backend,
                                 double seconds = kDriveSampleSeconds);

// Bytes per second of plain reads of memory on `thread_count` threads, the median of a few, as
// `smoe bench` without --memory has it. Takes `bytes` of memory meanwhile; 0: as RateBytes.
// thread_count 0: the cores we may use.
Result<double> MeasureDram(size_t thread_count, uint64_t bytes);

// Leaves nothing of the store's files in the page cache. A hint: what others use stays.
void DropStoreFromPageCache(const store::ExpertStore& store);

}  // namespace smoe::engine
