// experts/expert_cache.h: the experts in use stay in memory, the others come when asked for.
//
// All memory is one slab, cut into equal slots in Create(). An expert is always in one state:
//
//   absent --pass starts its read--> loading --admitted--> resident <--Release-- pinned
//     ^                                |                      |  \--Next, TryNext---^
//     \----------read failed----------/-------evicted--------/
//
// Only resident slots are evicted, least recently used first, and never one that the pass still
// wants. The cache works in passes: Begin names the distinct experts that are wanted, Next and
// TryNext hand them out (those in memory first, then in order of arrival) while the reads of the
// others are in flight, as many as there are slots. So a pass may want more experts than there are
// slots.
//
// Threads: one owner. Cost: no allocation after Create, but for the messages of failures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/memory.h"
#include "base/result.h"
#include "io/read_queue.h"
#include "store/expert_store.h"

namespace smoe::experts {

struct CacheStats {           // counted since Create()
  uint64_t hit_count = 0;     // in memory when the pass began
  uint64_t miss_count = 0;    // had to be read
  uint64_t failed_count = 0;  // read or admission failed
  uint64_t read_bytes = 0;
  uint64_t wait_ns = 0;  // Next() blocked on the drive
};

// An expert handed out by Next: pinned until Release.
struct ReadyExpert {
  store::ExpertId id;
  uint32_t wanted_index = 0;  // into the span that Begin got
  uint32_t slot = 0;
  tensor::ExpertWeights weights;
  // Set instead of weights when the expert could not be had: the requests that need it fail with
  // this reason, the pass goes on. Nothing to release then.
  std::optional<Error> error;
};

// How many slots are in which state.
struct SlotCounts {
  uint32_t free = 0;
  uint32_t loading = 0;
  uint32_t ready = 0;     // wanted by the pass, not handed out yet (a failure waits here too)
  uint32_t pinned = 0;    // handed out
  uint32_t resident = 0;  // may be evicted
};

class ExpertCache {
 public:
  struct Options {
    uint32_t slot_count = 0;  // at least 1; more than the store has experts is cut to that
  };

  // Borrows store and queue, which must outlive the cache; the queue is used by no one else.
  // Errors: kExhausted if the slab cannot be had, with bytes and what would fit;
  //         kInvalid if slot_count is 0.
  static Result<std::unique_ptr<ExpertCache>> Create(store::ExpertStore& store,
                                                     io::ReadQueue& queue, const Options& options);
  virtual ~ExpertCache() = default;

  // Starts a pass over distinct experts that the store has. Copies `wanted`. Requires the last pass
  // to be finished (Next returned nullopt, or Abandon) and all of its experts to be released.
  virtual void Begin(std::span<const store::ExpertId> wanted) = 0;

  // The next expert of the pass, or nullopt after the last. Blocks only if nothing is ready.
  // A failed read is retried once with buffered reads if the drive refused direct ones.
  // Requires fewer than slot_count experts to be out while the pass wants more.
  // Errors: only if the queue itself is broken.
  virtual Result<std::optional<ReadyExpert>> Next() = 0;

  // The same without waiting: nullopt if nothing is ready now, be it that reads are in flight, that
  // the caller holds every slot or that the pass is over (Next tells, and ends the pass).
  // Errors: only if the queue itself is broken.
  // Cost:   no system call while an expert is ready; else one look at the queue.
  virtual Result<std::optional<ReadyExpert>> TryNext() = 0;

  // Gives the slot of a ReadyExpert back, and starts the next read in it if the pass wants more.
  virtual void Release(const ReadyExpert& expert) = 0;

  // Ends a pass early: waits for reads in flight, keeps what arrived.
  virtual Status Abandon() = 0;

  virtual uint32_t slot_count() const = 0;
  virtual CacheStats stats() const = 0;

  // Counts the slots, and aborts if one is in two states at once or the table disagrees. For tests
  // and gauges. Cost: O(slots + experts).
  virtual SlotCounts Audit() const = 0;

 protected:
  ExpertCache() = default;
};

}  // namespace smoe::experts
