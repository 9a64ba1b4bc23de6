// experts/expert_cache.h: the experts in use stay in memory, the others come when asked for.
//
// All memory is one slab, cut into equal slots in Create(). An expert is always in one state:
//
//   absent --pass starts its read--> loading --admitted--> resident <--Release-- pinned
//     ^                                |                      |  \--Next, TryNext---^
//     \----------read failed----------/-------evicted--------/
//
// Only resident slots are evicted, those of least worth first (experts/eviction.h), and never one
// that the pass still wants. The cache works in passes: Begin names the distinct experts that are
// wanted, Next and TryNext hand them out (those in memory first, then in order of arrival) while
// the reads of the others are in flight, as many as there are slots. So a pass may want more
// experts than there are slots.
//
// Threads: one owner. Cost: no allocation after Create, but for the messages of failures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "experts/eviction.h"
#include "io/read_queue.h"
#include "store/expert_store.h"

namespace smoe::experts {

struct CacheStats {           // counted since Create()
  uint64_t hit_count = 0;     // in memory when the pass began, and not through Prefetch
  uint64_t miss_count = 0;    // had to be read, or was being read because of Prefetch
  uint64_t failed_count = 0;  // read or admission failed
  // Not admitted at first (wrong checksum), read once more, and right then: a fault of memory or
  // drive, logged as a warning each time. The file is damaged where the second read fails too.
  uint64_t reread_count = 0;
  uint64_t read_bytes = 0;
  uint64_t wait_ns = 0;  // Next() blocked on the drive
  // Reads that Prefetch caused; each ends as one of the two below, but for those under way.
  uint64_t prefetch_count = 0;
  uint64_t prefetch_hit_count = 0;   // in memory when the pass began, through Prefetch
  uint64_t prefetch_used_count = 0;  // the next pass wanted it: no hit, and no miss if it was there
  uint64_t prefetch_wasted_count = 0;  // it did not
  // Reads of ReadWhenIdle; each ends as one of the two below, but for those that nobody has wanted
  // or evicted so far. Once it is there such an expert counts as a hit like any other.
  uint64_t idle_count = 0;
  uint64_t idle_used_count = 0;
  uint64_t idle_wasted_count = 0;  // evicted, or failed, before a pass wanted it
  // The gauge of one more GiB: misses that would be left with gauge_slot_count() slots, and the
  // bytes that these would not have read. engine/memory_gauge.h makes a sentence of it.
  uint64_t gauge_miss_count = 0;
  uint64_t gauge_saved_bytes = 0;

  // By all passes, whether they were there or not.
  uint64_t wanted_count() const { return hit_count + prefetch_hit_count + miss_count; }
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

// How the rows of a pass are spread over its experts, for the eviction policy.
struct PassRows {
  uint32_t row_count = 1;
  std::span<const uint32_t> by_wanted;  // rows of each wanted expert; empty: one each
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
    // SetSlotLimit may go up to so many; what lies behind slot_count takes addresses and no memory
    // until then. Fewer than slot_count: slot_count.
    uint32_t slot_capacity = 0;
    // Guesses are read so many at once, however many more reads the queue has room for: one that
    // is wrong stands before reads on demand. 0: as many as there is room for.
    uint32_t guess_depth = 0;
    // Looks at the bytes of reads that end together side by side, and takes the pages that
    // TakePagesAhead has not taken in time; null: the calling thread does. Borrowed; used in calls
    // of the cache only, the destructor among them.
    ThreadPool* pool = nullptr;
    Eviction eviction = Eviction::kFrequency;
  };
  // Beside the cache a shadow of it is kept that has this much more memory.
  static constexpr uint64_t kGaugeBytes = uint64_t{1} << 30;

  // Borrows store and queue, which must outlive the cache; the queue is used by no one else.
  // Errors: kExhausted if the slab cannot be had, with bytes and what would fit;
  //         kInvalid if slot_count is 0.
  static Result<std::unique_ptr<ExpertCache>> Create(store::ExpertStore& store,
                                                     io::ReadQueue& queue, const Options& options);
  virtual ~ExpertCache() = default;

  // Starts a pass over distinct experts that the store has. Copies `wanted`. Requires the last pass
  // to be finished (Next returned nullopt, or Abandon) and all of its experts to be released.
  virtual void Begin(std::span<const store::ExpertId> wanted, const PassRows& rows = {}) = 0;

  // Experts that the next pass may want, likeliest first, known or not known here. Said in a pass
  // or between two. Their reads start when the pass has none left to start, into slots that it can
  // spare; what has not started when the next pass begins is forgotten. An expert that came this
  // way stays at least until then. A failed read is no error: it is tried again on demand. yields:
  // only while no read of the pass is under way, for guesses that may be wrong.
  virtual void Prefetch(std::span<const store::ExpertId> likely, bool yields) = 0;

  // Experts to be read while the drive has nothing else to do, likeliest first; known here or not.
  // One read at a time, begun when none is in flight and neither the pass nor Prefetch has one to
  // begin, and only into slots that hold nothing: so nothing goes for it, and a read on demand
  // waits for one other at most. It goes on over the passes that follow, as they call in here. Such
  // an expert may be evicted like any other. A failed read is no error, and not tried again.
  virtual void ReadWhenIdle(std::span<const store::ExpertId> likely) = 0;

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

  // Sees which reads have ended and starts what may be read now, for callers that compute between
  // two calls: else the drive has nothing to do from its last read on. Never waits.
  // Cost: nothing while no read is under way; else one look at the queue.
  virtual void Poll() = 0;

  // Gives the slot of a ReadyExpert back, and starts the next read in it if the pass wants more.
  virtual void Release(const ReadyExpert& expert) = 0;

  // Ends a pass early: waits for reads in flight, keeps what arrived.
  virtual Status Abandon() = 0;

  // Uses so many slots from now on, at least 1 and at most slot_capacity(). With fewer than before
  // the experts of least worth go, those that stay move to the front of the slab, and the memory
  // behind them goes back to the system; with more it comes back when experts are read into it. The
  // gauge goes on with what Create gave it. Requires that no pass is under way; waits for reads
  // that Prefetch caused. Errors: only if the queue itself is broken.
  // Cost: evicting looks at every slot for each expert that goes; moving copies it.
  virtual Status SetSlotLimit(uint32_t slot_count) = 0;

  // From now on the slots' pages are taken before reads want them, on a thread of the cache's own:
  // `bytes` ahead of the last slot that was ever used. Not in slots that come back after there were
  // fewer, or that come beyond the first limit. At most once, and after whoever decides where the
  // pages come from.
  virtual void TakePagesAhead(uint64_t bytes) = 0;

  virtual uint32_t slot_count() const = 0;        // that are used
  virtual uint32_t empty_slot_count() const = 0;  // of these, that hold nothing yet
  virtual uint32_t slot_capacity() const = 0;     // that may be used
  // What the gauge counts for; never more than the store has experts.
  virtual uint32_t gauge_slot_count() const = 0;
  // How much the policy thinks of an expert, 0 for one that never was wanted.
  virtual double Worth(store::ExpertId id) const = 0;
  // The policy's lasting worths, by ordinal: see EvictionPolicy. Recall before the first pass, with
  // one for each expert of the store.
  virtual std::vector<double> LastingWorths() const = 0;
  virtual void Recall(std::span<const double> lasting_worths) = 0;
  // All slots, to see or choose which pages they get. Their bytes are the cache's own.
  virtual MutableBytes slab() = 0;
  virtual CacheStats stats() const = 0;

  // Counts the slots, and aborts if one is in two states at once or the table disagrees. For tests
  // and gauges. Cost: O(slots + experts).
  virtual SlotCounts Audit() const = 0;

 protected:
  ExpertCache() = default;
};

}  // namespace smoe::experts
