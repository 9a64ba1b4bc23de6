// experts/slab_cache.h: the ExpertCache that Create makes. Inside of experts/expert_cache only.
//
// One class in four files, by what a function is about: slab_cache.cc has the pass (what is wanted,
// handed out, given back), slab_cache_reads.cc the reads, slab_cache_prefetch.cc what is read
// before anybody asks, slab_cache_slots.cc which expert sits where and who goes.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/page_filler.h"
#include "base/result.h"
#include "experts/eviction.h"
#include "experts/expert_cache.h"
#include "experts/shadow_cache.h"
#include "experts/slot_list.h"
#include "io/read_queue.h"
#include "store/expert_store.h"

namespace smoe::experts {

// The wanted_index of an expert that no pass has asked for.
inline constexpr uint32_t kNotWanted = UINT32_MAX;

enum class SlotState : uint8_t { kFree, kLoading, kReady, kPinned, kResident };

// A read that landed and was not admitted, while the expert is read once more.
struct ReadDamage {
  std::string message;  // why not
  std::vector<std::byte> bytes;
};

struct Slot {
  SlotState state = SlotState::kFree;
  SlotLinks links;
  const void* list = nullptr;
  store::ExpertId id;
  uint32_t ordinal = 0;
  uint32_t wanted_index = kNotWanted;
  // Loading or resident, no pass has wanted it yet, and who had it read: Prefetch, ReadWhenIdle.
  bool is_prefetched = false;
  bool is_idle_read = false;

  // While loading.
  store::ExpertLocation location;
  uint32_t pushed_count = 0;  // extents given to the queue
  uint32_t landed_count = 0;  // of those, finished
  bool is_direct = false;     // location is for direct reads
  bool is_retried = false;
  int read_error = 0;  // of the first extent that failed
  uint32_t failed_extent = 0;
  std::unique_ptr<ReadDamage> first_damage;  // the read under way is the second
  // Why the expert could not be had; set only in a ready slot.
  std::optional<Error> error;

  bool is_complete() const {
    return landed_count == pushed_count &&
           (pushed_count == location.extent_count || read_error != 0);
  }
};

using Slots = std::vector<Slot>;

class SlabCache final : public ExpertCache {
 public:
  SlabCache(store::ExpertStore& store, io::ReadQueue& queue, AlignedBuffer slab,
            const Options& options);
  ~SlabCache() override;

  void Begin(std::span<const store::ExpertId> wanted, const PassRows& rows) override;
  void Prefetch(std::span<const store::ExpertId> likely, bool yields) override;
  void ReadWhenIdle(std::span<const store::ExpertId> likely) override;
  Result<std::optional<ReadyExpert>> Next() override;
  Result<std::optional<ReadyExpert>> TryNext() override;
  void Poll() override;
  void Release(const ReadyExpert& expert) override;
  Status Abandon() override;
  Status SetSlotLimit(uint32_t slot_count) override;
  void TakePagesAhead(uint64_t bytes) override {
    ahead_bytes_ = bytes;
    filler_ = PageFiller::Start(slab_.bytes().first(limit_ * slot_bytes_), bytes);
  }
  uint32_t slot_count() const override { return limit_; }
  uint32_t empty_slot_count() const override { return free_.size(); }
  uint32_t slot_capacity() const override { return static_cast<uint32_t>(slots_.size()); }
  uint32_t gauge_slot_count() const override { return gauge_.slot_count(); }
  double Worth(store::ExpertId id) const override {
    const std::optional<uint32_t> ordinal = FindOrdinal(store_, id);
    return ordinal ? policy_->Worth(*ordinal) : 0.0;
  }
  std::vector<double> LastingWorths() const override;
  void Recall(std::span<const double> lasting_worths) override;
  CacheStats stats() const override;
  MutableBytes slab() override { return slab_.bytes(); }
  SlotCounts Audit() const override;

 private:
  MutableBytes SlotBytes(uint32_t slot) {
    return slab_.bytes().subspan(slot * slot_bytes_, slot_bytes_);
  }
  void Want(uint32_t wanted_index);
  void ForgetPrefetched();
  uint32_t LeastWorth(bool spares_prefetched) const;
  uint32_t TakeSlot(bool spares_prefetched);
  uint32_t EvictLeast(bool spares_prefetched);
  void MoveExpert(uint32_t from, uint32_t to);
  void StartLoading(uint32_t slot, store::ExpertId id, uint32_t wanted_index);
  bool StartNextPrefetch();
  bool StartNextIdleRead();
  void PlaceReads(uint32_t slot);
  Status StartReads();
  Status PushExtents();
  Status ReapReads(size_t done_min);
  void Land(const io::ReadDone& done);
  void AdmitArrived();
  void Finish(uint32_t slot, Status admitted);
  bool RetryBuffered(uint32_t slot);
  bool ReadOnceMore(uint32_t slot, const Error& error);
  void SayDamage(uint32_t slot, bool is_right_now);
  void SetReady(uint32_t slot);
  ReadyExpert HandOut();

  store::ExpertStore& store_;
  io::ReadQueue& queue_;
  const uint64_t slot_bytes_;
  AlignedBuffer slab_;
  std::unique_ptr<PageFiller> filler_;  // of slab_; null: none
  uint64_t ahead_bytes_ = 0;
  ThreadPool* const pool_;
  const uint32_t guess_depth_;
  uint64_t used_bytes_ = 0;  // up to the last slot that ever was read into
  Slots slots_;
  uint32_t limit_;                 // slots from here on are free, in no list, and have no memory
  std::vector<uint32_t> slot_of_;  // by ordinal; kNoSlot: absent
  SlotList<Slots> free_;
  SlotList<Slots> starting_;  // loading, with extents that the queue had no room for yet
  SlotList<Slots> ready_;     // in the order in which they will be handed out
  SlotList<Slots> resident_;

  const std::unique_ptr<EvictionPolicy> policy_;
  ShadowCache gauge_;

  // The pass. Both lists have room for every expert from the start.
  std::vector<store::ExpertId> wanted_;
  std::vector<uint32_t> ordinals_;  // of wanted_
  std::vector<uint32_t> missing_;   // indices into wanted_, in their order
  size_t missing_begin_ = 0;        // those before it are loading or done
  size_t left_count_ = 0;           // not handed out yet
  bool is_in_pass_ = false;
  bool is_abandoning_ = false;

  std::vector<store::ExpertId> likely_;
  bool likely_yields_ = false;
  size_t likely_begin_ = 0;           // those before it are loading, there, or passed over
  std::vector<uint32_t> prefetched_;  // slots with is_prefetched

  std::vector<store::ExpertId> idle_;
  size_t idle_begin_ = 0;  // those before it are loading, there, or passed over

  uint32_t pinned_count_ = 0;
  uint32_t in_flight_count_ = 0;
  std::vector<io::ReadDone> done_;
  std::vector<uint32_t> arrived_;  // slots whose reads have all ended, while ReapReads runs
  std::vector<Status> admitted_;   // beside arrived_
  std::optional<Error> queue_error_;
  CacheStats stats_;
};

}  // namespace smoe::experts
