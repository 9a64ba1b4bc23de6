#include "experts/slab_cache.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace smoe::experts {

namespace {

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

}  // namespace

SlabCache::SlabCache(store::ExpertStore& store, io::ReadQueue& queue, AlignedBuffer slab,
                     const Options& options)
    : store_(store),
      queue_(queue),
      slot_bytes_(store.slot_bytes()),
      slab_(std::move(slab)),
      pool_(options.pool),
      guess_depth_(options.guess_depth == 0 ? queue.free_count() : options.guess_depth),
      slots_(options.slot_capacity),
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
  idle_.reserve(store.expert_count());
  prefetched_.reserve(slots_.size());
  arrived_.reserve(slots_.size());
  admitted_.resize(done_.size());
  for (uint32_t slot = 0; slot < limit_; ++slot) free_.PushBack(slot);
}

SlabCache::~SlabCache() {
  const Status status = Abandon();
  // With a broken queue nobody knows whether the kernel still writes into the slab: it must stay.
  filler_.reset();
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
  if (std::exchange(slot.is_prefetched, false)) ++stats_.prefetch_used_count;
  if (std::exchange(slot.is_idle_read, false)) ++stats_.idle_used_count;
  slot.wanted_index = wanted_index;
  if (!is_loading) SetReady(index);
}

std::vector<double> SlabCache::LastingWorths() const {
  std::vector<double> worths(slot_of_.size());
  for (uint32_t i = 0; i < worths.size(); ++i) worths[i] = policy_->LastingWorth(i);
  return worths;
}

void SlabCache::Recall(std::span<const double> lasting_worths) {
  SMOE_CHECK(lasting_worths.size() == slot_of_.size());
  for (uint32_t i = 0; i < lasting_worths.size(); ++i) policy_->Recall(i, lasting_worths[i]);
}

CacheStats SlabCache::stats() const {
  CacheStats stats = stats_;
  stats.gauge_miss_count = gauge_.miss_count();
  // The shadow reads nothing ahead: what came that way is a read that had to be.
  const uint64_t needed_count = stats.miss_count + stats.prefetch_hit_count;
  stats.gauge_saved_bytes =
      slot_bytes_ * (needed_count - std::min(needed_count, stats.gauge_miss_count));
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

void SlabCache::Poll() {
  if (queue_error_ || in_flight_count_ == 0) return;
  Status polled = ReapReads(0);
  if (polled) polled = StartReads();
  if (!polled) queue_error_ = std::move(polled.error());
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
    if (slots_[slot].is_complete()) Finish(slot, Ok());
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

}  // namespace smoe::experts
