// store/read_expert.h: one expert by plain reads, for commands that pass over a whole store once.
// The engine reads through io/read_queue.h instead.
#pragma once

#include "base/bytes.h"
#include "base/result.h"
#include "store/expert_store.h"

namespace smoe::store {

// Fills `slot` with the expert and admits it: View may follow.
// Requires: an expert that the store has; slot of slot_bytes(), page-aligned if direct_io()
// Errors:   kCorrupt if the file ends first, and as Admit; kIo
// Threads:  any
Status ReadExpert(const ExpertStore& store, ExpertId id, MutableBytes slot);

}  // namespace smoe::store
