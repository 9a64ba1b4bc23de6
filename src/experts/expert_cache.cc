#include "experts/expert_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_limits.h"
#include "base/stopwatch.h"
#include "experts/shadow_cache.h"
#include "experts/slot_list.h"

namespace smoe::experts {

namespace {

// The wanted_index of an expert that no pass has asked for.
constexpr uint32_t kNotWanted = UINT32_MAX;

enum class SlotState : uint8_t { kFree, kLoading, kReady, kPinned, kResident };

struct Slot {
  SlotState state = SlotState::kFree;
  SlotLinks links;
  const void* list = nullptr;
  store::ExpertId id;
  uint32_t ordinal = 0;
  uint32_t wanted_index = kNotWanted;
  bool is_prefetched = false;  // loading or resident, and no pass has wanted it yet

  // While loading.
  store::ExpertLocation location;
  uint32_t pushed_count = 0;  // extents given to the queue
  uint32_t landed_count = 0;  // of those, finished
  bool is_direct = false;     // location is for direct reads
  bool is_retried = false;
  int read_error = 0;  // of the first extent that failed
  uint32_t failed_extent = 0;
  // Why the expert could not be had; set only in a ready slot.
  std::optional<Error> error;

  bool is_complete() const {
    return landed_count == pushed_count &&
           (pushed_count == location.extent_count || read_error != 0);
  }
};

using Slots = std::vector<Slot>;

// A read's tag is its slot and its extent.
constexpr uint64_t kTagExtents = 4;
static_assert(store::kExtentsMax <= kTagExtents);

// The file behind a descriptor, for messages: a model may lie in many shards.
std::string PathOf(int fd, const std::string& otherwise) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : otherwise;
}

Error ReadError(const Slot& slot, const std::string& store_path) {
  const store::ExpertExtent& extent = slot.location.extents[slot.failed_extent];
  const std::string subject = fmt::format("{}: layer {}, expert {}", PathOf(extent.fd, store_path),
                                          slot.id.layer_index, slot.id.expert_index);
  if (slot.read_error != ENODATA) {
    return {ErrorCode::kIo,
            fmt::format("{}: reading {} bytes at offset {}: {}", subject, extent.size,
                        extent.offset, std::strerror(slot.read_error))};
  }
  struct stat status {};
  const uint64_t size = fstat(extent.fd, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
  const uint64_t got = size > extent.offset ? std::min(size - extent.offset, extent.size) : 0;
  return {ErrorCode::kCorrupt,
          fmt::format("{}: wanted {} bytes at offset {}, got {}: the file ends at {} (truncated?)",
                      subject, extent.size, extent.offset, got, size)};
}

class SlabCache final : public ExpertCache {
 public:
  SlabCache(store::ExpertStore& store, io::ReadQueue& queue, AlignedBuffer slab,
            const Options& options);
  ~SlabCache() override;

  void Begin(std::span<const store::ExpertId> wanted, const PassRows& rows) override;
  void Prefetch(std::span<const store::ExpertId> likely, bool yields) override;
  Result<std::optional<ReadyExpert>> Next() override;
  Result<std::optional<ReadyExpert>> TryNext() override;
  void Release(const ReadyExpert& expert) override;
  Status Abandon() override;
  Status SetSlotLimit(uint32_t slot_count) override;
  uint32_t slot_count() const override { return limit_; }
  uint32_t slot_capacity() const override { return static_cast<uint32_t>(slots_.size()); }
  uint32_t gauge_slot_count() const override { return gauge_.slot_count(); }
  double Worth(store::ExpertId id) const override {
    const std::optional<uint32_t> ordinal = FindOrdinal(store_, id);
    return ordinal ? policy_->Worth(*ordinal) : 0.0;
  }
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
  void PlaceReads(uint32_t slot);
  Status StartReads();
  Status PushExtents();
  Status ReapReads(size_t done_min);
  void Land(const io::ReadDone& done);
  void Finish(uint32_t slot);
  bool RetryBuffered(uint32_t slot);
  void SetReady(uint32_t slot);
  ReadyExpert HandOut();

  store::ExpertStore& store_;
  io::ReadQueue& queue_;
  const uint64_t slot_bytes_;
  AlignedBuffer slab_;
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

  uint32_t pinned_count_ = 0;
  uint32_t in_flight_count_ = 0;
  std::vector<io::ReadDone> done_;
  std::optional<Error> queue_error_;
  CacheStats stats_;
};

std::vector<uint32_t> LayerBegins(const store::ExpertStore& store) {
  std::vector<uint32_t> begins;
  for (const store::StoreLayer& layer : store.layers()) begins.push_back(layer.first_ordinal);
  if (begins.empty()) begins.push_back(0);
  begins.push_back(store.expert_count());
  return begins;
}

uint32_t GaugeSlotCount(const store::ExpertStore& store, uint32_t slot_count) {
  const uint64_t more = ExpertCache::kGaugeBytes / store.slot_bytes();
  return static_cast<uint32_t>(
      std::min<uint64_t>(slot_count + more, std::max(1U, store.expert_count())));
}

SlabCache::SlabCache(store::ExpertStore& store, io::ReadQueue& queue, AlignedBuffer slab,
                     const Options& options)
    : store_(store),
      queue_(queue),
      slot_bytes_(store.slot_bytes()),
      slab_(std::move(slab)),
      slots_(options.slot_count),
      limit_(options.slot_count),
      slot_of_(store.expert_count(), kNoSlot),
      free_(slots_),
      starting_(slots_),
      ready_(slots_),
      resident_(slots_),
      policy_(MakeEvictionPolicy(options.eviction, LayerBegins(store))),
      gauge_(store.expert_count(), GaugeSlotCount(store, options.slot_count), *policy_),
      done_(std::max<uint32_t>(1, queue.free_count())) {
  wanted_.reserve(store.expert_count());
  ordinals_.reserve(store.expert_count());
  missing_.reserve(store.expert_count());
  likely_.reserve(store.expert_count());
  prefetched_.reserve(slots_.size());
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) free_.PushBack(slot);
}

SlabCache::~SlabCache() {
  const Status status = Abandon();
  // With a broken queue nobody knows whether the kernel still writes into the slab: it must stay.
  if (!status) slab_.Leak();
}

void SlabCache::Begin(std::span<const store::ExpertId> wanted, const PassRows& rows) {
  if (queue_error_) return;  // Next says it
  SMOE_CHECK(!is_in_pass_ && pinned_count_ == 0);
  SMOE_CHECK(wanted.size() <= wanted_.capacity());
  is_in_pass_ = true;
  left_count_ = wanted.size();
  wanted_.assign(wanted.begin(), wanted.end());
  ordinals_.clear();
  missing_.clear();
  missing_begin_ = 0;
  likely_.clear();
  likely_begin_ = 0;
  for (uint32_t index = 0; index < wanted.size(); ++index) Want(index);
  ForgetPrefetched();
  policy_->Note({.row_count = rows.row_count, .ordinals = ordinals_, .row_counts = rows.by_wanted});
  gauge_.Pass(ordinals_);
  if (Status started = StartReads(); !started) queue_error_ = std::move(started.error());
}

// Out of the list of those that may be evicted, before the first eviction of the pass. An expert
// that is wanted twice fails here, or in StartLoading.
void SlabCache::Want(uint32_t wanted_index) {
  const std::optional<uint32_t> ordinal = FindOrdinal(store_, wanted_[wanted_index]);
  SMOE_CHECK(ordinal.has_value());
  ordinals_.push_back(*ordinal);
  const uint32_t index = slot_of_[*ordinal];
  if (index == kNoSlot) {
    ++stats_.miss_count;
    missing_.push_back(wanted_index);
    return;
  }
  Slot& slot = slots_[index];
  const bool is_loading = slot.state == SlotState::kLoading && slot.wanted_index == kNotWanted;
  SMOE_CHECK(is_loading || slot.state == SlotState::kResident);
  if (is_loading) {
    ++stats_.miss_count;
  } else {
    resident_.Remove(index);
    ++(slot.is_prefetched ? stats_.prefetch_hit_count : stats_.hit_count);
  }
  if (slot.is_prefetched) ++stats_.prefetch_used_count;
  slot.is_prefetched = false;
  slot.wanted_index = wanted_index;
  if (!is_loading) SetReady(index);
}

// Those that this pass did not want may be evicted like any other.
void SlabCache::ForgetPrefetched() {
  for (const uint32_t slot : prefetched_) {
    if (std::exchange(slots_[slot].is_prefetched, false)) ++stats_.prefetch_wasted_count;
  }
  prefetched_.clear();
}

void SlabCache::Prefetch(std::span<const store::ExpertId> likely, bool yields) {
  if (!is_in_pass_ || queue_error_) return;
  likely_yields_ = yields;
  SMOE_CHECK(likely.size() <= likely_.capacity());
  likely_.assign(likely.begin(), likely.end());
  likely_begin_ = 0;
  if (Status started = StartReads(); !started) queue_error_ = std::move(started.error());
}

CacheStats SlabCache::stats() const {
  CacheStats stats = stats_;
  stats.gauge_miss_count = gauge_.miss_count();
  return stats;
}

Result<std::optional<ReadyExpert>> SlabCache::Next() {
  for (;;) {
    if (queue_error_) return Unexpected(*queue_error_);
    if (!is_in_pass_) return std::optional<ReadyExpert>();
    SMOE_TRY(StartReads());
    if (in_flight_count_ > 0) {
      SMOE_TRY(ReapReads(ready_.empty() && left_count_ > 0 ? 1 : 0));
      SMOE_TRY(StartReads());
    }
    if (!ready_.empty()) return HandOut();
    if (left_count_ == 0) {
      is_in_pass_ = false;
      continue;
    }
    // No read in flight, none could be started: the caller holds every slot.
    SMOE_CHECK(in_flight_count_ > 0);
  }
}

Result<std::optional<ReadyExpert>> SlabCache::TryNext() {
  if (queue_error_) return Unexpected(*queue_error_);
  if (ready_.empty() && in_flight_count_ > 0) {
    SMOE_TRY(ReapReads(0));
    SMOE_TRY(StartReads());
  }
  if (ready_.empty()) return std::optional<ReadyExpert>();
  return HandOut();
}

void SlabCache::Release(const ReadyExpert& expert) {
  SMOE_CHECK(!expert.error && expert.slot < slots_.size());
  Slot& slot = slots_[expert.slot];
  SMOE_CHECK(slot.state == SlotState::kPinned && slot.id == expert.id);
  slot.state = SlotState::kResident;
  slot.wanted_index = kNotWanted;
  resident_.PushBack(expert.slot);
  --pinned_count_;
  if (Status started = StartReads(); !started) queue_error_ = std::move(started.error());
}

Status SlabCache::Abandon() {
  if (!is_in_pass_ && in_flight_count_ == 0 && starting_.empty()) return Ok();
  if (queue_error_) return Unexpected(*queue_error_);
  is_abandoning_ = true;
  missing_begin_ = missing_.size();
  likely_begin_ = likely_.size();
  while (!starting_.empty()) {
    const uint32_t slot = starting_.PopFront();
    slots_[slot].read_error = ECANCELED;
    if (slots_[slot].is_complete()) Finish(slot);
  }
  while (in_flight_count_ > 0) SMOE_TRY(ReapReads(1));
  while (!ready_.empty()) {
    const uint32_t slot = ready_.PopFront();
    const bool failed = std::exchange(slots_[slot].error, std::nullopt).has_value();
    slots_[slot].state = failed ? SlotState::kFree : SlotState::kResident;
    slots_[slot].wanted_index = kNotWanted;
    (failed ? free_ : resident_).PushBack(slot);
  }
  is_abandoning_ = false;
  is_in_pass_ = false;
  return Ok();
}

Status SlabCache::SetSlotLimit(uint32_t slot_count) {
  if (queue_error_) return Unexpected(*queue_error_);
  SMOE_CHECK(!is_in_pass_ && pinned_count_ == 0);
  SMOE_TRY(Abandon());
  const uint32_t limit = std::clamp(slot_count, 1U, slot_capacity());
  for (; limit_ < limit; ++limit_) free_.PushBack(limit_);
  if (limit == limit_) return Ok();
  while (resident_.size() > limit) {
    const uint32_t slot = EvictLeast(false);
    slots_[slot].state = SlotState::kFree;
    free_.PushBack(slot);
  }
  for (uint32_t slot = limit; slot < limit_; ++slot) {
    if (free_.Holds(slot)) free_.Remove(slot);
  }
  for (uint32_t slot = limit; slot < limit_; ++slot) {
    if (slots_[slot].state == SlotState::kResident) MoveExpert(slot, free_.PopFront());
  }
  SMOE_TRY(queue_.ForgetMemory());
  slab_.Discard(limit * slot_bytes_, (limit_ - limit) * slot_bytes_);
  limit_ = limit;
  return Ok();
}

// A resident expert into a slot that is in no list.
void SlabCache::MoveExpert(uint32_t from, uint32_t to) {
  std::memcpy(SlotBytes(to).data(), SlotBytes(from).data(), slot_bytes_);
  resident_.Replace(from, to);
  Slot& source = slots_[from];
  Slot& target = slots_[to];
  target.state = std::exchange(source.state, SlotState::kFree);
  target.id = source.id;
  target.ordinal = source.ordinal;
  target.wanted_index = kNotWanted;
  target.is_prefetched = std::exchange(source.is_prefetched, false);
  slot_of_[target.ordinal] = to;
  std::replace(prefetched_.begin(), prefetched_.end(), from, to);
}

// The resident slot that goes first. Of equals, the one that was there longest.
uint32_t SlabCache::LeastWorth(bool spares_prefetched) const {
  uint32_t least = kNoSlot;
  double least_worth = 0;
  for (uint32_t slot = resident_.front(); slot != kNoSlot; slot = slots_[slot].links.next) {
    if (spares_prefetched && slots_[slot].is_prefetched) continue;
    const double worth = policy_->Worth(slots_[slot].ordinal);
    if (least != kNoSlot && worth >= least_worth) continue;
    least = slot;
    least_worth = worth;
  }
  return least;
}

// A slot for a new expert, in no list; kNoSlot if every one is in use.
uint32_t SlabCache::TakeSlot(bool spares_prefetched) {
  return free_.empty() ? EvictLeast(spares_prefetched) : free_.PopFront();
}

uint32_t SlabCache::EvictLeast(bool spares_prefetched) {
  const uint32_t slot = LeastWorth(spares_prefetched);
  if (slot == kNoSlot) return kNoSlot;
  resident_.Remove(slot);
  slot_of_[slots_[slot].ordinal] = kNoSlot;
  if (std::exchange(slots_[slot].is_prefetched, false)) ++stats_.prefetch_wasted_count;
  return slot;
}

void SlabCache::StartLoading(uint32_t slot, store::ExpertId id, uint32_t wanted_index) {
  const uint32_t ordinal = *FindOrdinal(store_, id);
  SMOE_CHECK(slot_of_[ordinal] == kNoSlot);
  slot_of_[ordinal] = slot;
  Slot& loading = slots_[slot];
  loading.state = SlotState::kLoading;
  loading.id = id;
  loading.ordinal = ordinal;
  loading.wanted_index = wanted_index;
  loading.is_prefetched = wanted_index == kNotWanted;
  loading.is_retried = false;
  PlaceReads(slot);
}

// The next of likely_ that is not in memory. False if there is none, or no slot for it.
bool SlabCache::StartNextPrefetch() {
  if (likely_yields_ && left_count_ > ready_.size()) return false;
  // Half of the slots at most: the pass after the next one shall not find all of them new.
  if (prefetched_.size() >= limit_ / 2) return false;
  for (; likely_begin_ < likely_.size(); ++likely_begin_) {
    const std::optional<uint32_t> ordinal = FindOrdinal(store_, likely_[likely_begin_]);
    if (!ordinal || slot_of_[*ordinal] != kNoSlot) continue;
    const uint32_t slot = TakeSlot(true);
    if (slot == kNoSlot) return false;
    StartLoading(slot, likely_[likely_begin_++], kNotWanted);
    prefetched_.push_back(slot);
    ++stats_.prefetch_count;
    return true;
  }
  return false;
}

// From the beginning, where the store says the expert lies now.
void SlabCache::PlaceReads(uint32_t slot) {
  Slot& loading = slots_[slot];
  loading.location = store_.Locate(loading.id);
  loading.pushed_count = 0;
  loading.landed_count = 0;
  loading.is_direct = store_.direct_io();
  loading.read_error = 0;
  starting_.PushBack(slot);
}

// As many reads as there are slots and room in the queue. A slot is taken only when its read can
// be queued at once: evicted as late as possible.
Status SlabCache::StartReads() {
  for (;;) {
    SMOE_TRY(PushExtents());
    if (!starting_.empty() || queue_.free_count() == 0) return Ok();
    if (missing_begin_ == missing_.size()) {
      if (!StartNextPrefetch()) return Ok();
      continue;
    }
    const uint32_t slot = TakeSlot(false);
    if (slot == kNoSlot) return Ok();
    const uint32_t wanted_index = missing_[missing_begin_++];
    StartLoading(slot, wanted_[wanted_index], wanted_index);
  }
}

Status SlabCache::PushExtents() {
  const uint32_t room = queue_.free_count();
  uint32_t pushed = 0;
  for (; pushed < room && !starting_.empty(); ++pushed) {
    const uint32_t slot = starting_.front();
    Slot& loading = slots_[slot];
    const store::ExpertExtent& extent = loading.location.extents[loading.pushed_count];
    SMOE_CHECK(RangeFits(extent.slot_offset, extent.size, slot_bytes_));
    queue_.Push({.fd = extent.fd,
                 .offset = extent.offset,
                 .into = SlotBytes(slot).subspan(extent.slot_offset, extent.size),
                 .tag = slot * kTagExtents + loading.pushed_count});
    ++in_flight_count_;
    if (++loading.pushed_count == loading.location.extent_count) starting_.Remove(slot);
  }
  return pushed == 0 ? Ok() : queue_.Submit();
}

Status SlabCache::ReapReads(size_t done_min) {
  const Stopwatch stopwatch;
  Result<size_t> count = queue_.Reap(done_, done_min);
  if (done_min > 0) stats_.wait_ns += stopwatch.ns();
  if (!count) {
    queue_error_ = count.error();
    return Unexpected(std::move(count.error()));
  }
  for (size_t i = 0; i < *count; ++i) Land(done_[i]);
  return Ok();
}

void SlabCache::Land(const io::ReadDone& done) {
  const uint32_t slot = static_cast<uint32_t>(done.tag / kTagExtents);
  Slot& loading = slots_[slot];
  --in_flight_count_;
  ++loading.landed_count;
  if (done.error != 0 && loading.read_error == 0) {
    loading.read_error = done.error;
    loading.failed_extent = static_cast<uint32_t>(done.tag % kTagExtents);
    // The rest of a lost expert is not worth reading.
    if (starting_.Holds(slot)) starting_.Remove(slot);
  }
  if (loading.is_complete()) Finish(slot);
}

// No read into the slot is in flight any more.
void SlabCache::Finish(uint32_t slot) {
  Slot& loaded = slots_[slot];
  if (loaded.read_error == 0) {
    stats_.read_bytes += loaded.location.read_bytes();
    if (Status admitted = store_.Admit(loaded.id, SlotBytes(slot)); !admitted) {
      loaded.error = std::move(admitted.error());
    }
  } else if (RetryBuffered(slot)) {
    return;
  } else {
    loaded.error = ReadError(loaded, store_.path());
  }
  if (loaded.error) slot_of_[loaded.ordinal] = kNoSlot;
  if (loaded.wanted_index != kNotWanted) {
    if (loaded.error) ++stats_.failed_count;
    return SetReady(slot);
  }
  const bool failed = std::exchange(loaded.error, std::nullopt).has_value();
  if (failed && std::exchange(loaded.is_prefetched, false)) ++stats_.prefetch_wasted_count;
  loaded.state = failed ? SlotState::kFree : SlotState::kResident;
  (failed ? free_ : resident_).PushBack(slot);
}

// Some file systems take O_DIRECT and refuse the reads, even in the middle of a run.
bool SlabCache::RetryBuffered(uint32_t slot) {
  Slot& loading = slots_[slot];
  if (loading.read_error != EINVAL || !loading.is_direct || loading.is_retried) return false;
  if (is_abandoning_) return false;
  // Another slot's refusal may have changed the store already.
  if (store_.direct_io() && !store_.FallBackToBuffered()) return false;
  loading.is_retried = true;
  PlaceReads(slot);
  return true;
}

void SlabCache::SetReady(uint32_t slot) {
  slots_[slot].state = SlotState::kReady;
  ready_.PushBack(slot);
}

ReadyExpert SlabCache::HandOut() {
  const uint32_t index = ready_.PopFront();
  --left_count_;
  Slot& slot = slots_[index];
  ReadyExpert expert{.id = slot.id,
                     .wanted_index = slot.wanted_index,
                     .slot = index,
                     .weights = {},
                     .error = std::exchange(slot.error, std::nullopt)};
  if (expert.error) {
    slot.state = SlotState::kFree;
    free_.PushBack(index);
    return expert;
  }
  slot.state = SlotState::kPinned;
  ++pinned_count_;
  expert.weights = store_.View(slot.id, SlotBytes(index));
  return expert;
}

SlotCounts SlabCache::Audit() const {
  SlotCounts counts;
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    const bool has_expert = slot_of_[slot.ordinal] == index;
    switch (slot.state) {
      case SlotState::kFree:
        SMOE_CHECK(!has_expert);
        SMOE_CHECK(index < limit_ ? free_.Holds(index) : slot.list == nullptr);
        counts.free += index < limit_ ? 1 : 0;
        break;
      case SlotState::kLoading:
        SMOE_CHECK(has_expert && (slot.list == nullptr || starting_.Holds(index)));
        ++counts.loading;
        break;
      case SlotState::kReady:
        SMOE_CHECK(ready_.Holds(index) && has_expert == !slot.error.has_value());
        ++counts.ready;
        break;
      case SlotState::kPinned:
        SMOE_CHECK(slot.list == nullptr && has_expert);
        ++counts.pinned;
        break;
      case SlotState::kResident:
        SMOE_CHECK(resident_.Holds(index) && has_expert);
        ++counts.resident;
        break;
    }
  }
  SMOE_CHECK(counts.free == free_.size() && counts.ready == ready_.size());
  SMOE_CHECK(counts.resident == resident_.size() && counts.pinned == pinned_count_);
  for (uint32_t ordinal = 0; ordinal < slot_of_.size(); ++ordinal) {
    const uint32_t slot = slot_of_[ordinal];
    SMOE_CHECK(slot == kNoSlot || slot < limit_);
    SMOE_CHECK(slot == kNoSlot || slots_[slot].ordinal == ordinal);
  }
  return counts;
}

}  // namespace

Result<std::unique_ptr<ExpertCache>> ExpertCache::Create(store::ExpertStore& store,
                                                         io::ReadQueue& queue,
                                                         const Options& options) {
  if (options.slot_count == 0) return Invalid("expert cache: 0 slots asked, expected at least 1");
  const uint64_t slot_bytes = store.slot_bytes();
  SMOE_CHECK(slot_bytes > 0 && slot_bytes % kPageBytes == 0);
  const uint32_t slot_count = std::min(options.slot_count, std::max(1U, store.expert_count()));
  Result<AlignedBuffer> slab =
      AlignedBuffer::CreateTable(slot_count, slot_bytes, 1, "expert cache");
  if (!slab) {
    const Result<FreeMemory> available = ReadFreeMemory();
    const uint64_t fitting = available ? available->bytes / slot_bytes : 0;
    return Exhausted("{}; {} slots of {} asked, {} would fit: lower the cache size",
                     slab.error().message(), slot_count, SizeText(slot_bytes), fitting);
  }
  Options cut = options;
  cut.slot_count = slot_count;
  return std::make_unique<SlabCache>(store, queue, std::move(*slab), cut);
}

}  // namespace smoe::experts
