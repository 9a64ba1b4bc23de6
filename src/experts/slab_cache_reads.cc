#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/stopwatch.h"
#include "experts/read_damage.h"
#include "experts/slab_cache.h"

namespace smoe::experts {

namespace {

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

}  // namespace

void SlabCache::StartLoading(uint32_t slot, store::ExpertId id, uint32_t wanted_index) {
  const uint32_t ordinal = *FindOrdinal(store_, id);
  SMOE_CHECK(slot_of_[ordinal] == kNoSlot);
  used_bytes_ = std::max(used_bytes_, (uint64_t{slot} + 1) * slot_bytes_);
  if (filler_) filler_->Use(used_bytes_);
  slot_of_[ordinal] = slot;
  Slot& loading = slots_[slot];
  loading.state = SlotState::kLoading;
  loading.id = id;
  loading.ordinal = ordinal;
  loading.wanted_index = wanted_index;
  loading.is_prefetched = wanted_index == kNotWanted;
  loading.is_idle_read = false;
  loading.is_retried = false;
  loading.first_damage.reset();
  PlaceReads(slot);
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
      if (!StartNextPrefetch() && !StartNextIdleRead()) return Ok();
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
  if (pushed == 0) return Ok();
  // Fresh pages: else the system takes them in Submit, one after the other on this thread.
  if (filler_ && pool_ != nullptr) filler_->TakeNow(used_bytes_, *pool_);
  return queue_.Submit();
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
  AdmitArrived();
  return Ok();
}

// The look at the bytes is a pass over all of them, which the drive may outrun.
void SlabCache::AdmitArrived() {
  const auto admit = [this](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Slot& slot = slots_[arrived_[i]];
      admitted_[i] = slot.read_error == 0 ? store_.Admit(slot.id, SlotBytes(arrived_[i])) : Ok();
    }
  };
  if (pool_ != nullptr) {
    pool_->ParallelFor(arrived_.size(), 1, std::ref(admit));
  } else {
    admit(0, arrived_.size());
  }
  for (size_t i = 0; i < arrived_.size(); ++i) Finish(arrived_[i], std::move(admitted_[i]));
  arrived_.clear();
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
  if (loading.is_complete()) arrived_.push_back(slot);
}

// No read into the slot is in flight any more. `admitted` is of what was read, if it was.
void SlabCache::Finish(uint32_t slot, Status admitted) {
  Slot& loaded = slots_[slot];
  if (loaded.read_error == 0) {
    stats_.read_bytes += loaded.location.read_bytes();
    if (!admitted && ReadOnceMore(slot, admitted.error())) return;
    if (loaded.first_damage) SayDamage(slot, admitted.has_value());
    if (!admitted) loaded.error = std::move(admitted.error());
  } else if (RetryBuffered(slot)) {
    return;
  } else {
    loaded.error = ReadError(loaded, store_.path());
  }
  if (loaded.error) {
    slot_of_[loaded.ordinal] = kNoSlot;
    loaded.first_damage.reset();
  }
  if (loaded.wanted_index != kNotWanted) {
    if (loaded.error) ++stats_.failed_count;
    return SetReady(slot);
  }
  const bool failed = std::exchange(loaded.error, std::nullopt).has_value();
  if (failed && std::exchange(loaded.is_prefetched, false)) ++stats_.prefetch_wasted_count;
  if (failed && std::exchange(loaded.is_idle_read, false)) ++stats_.idle_wasted_count;
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

// A file that is damaged is so at the second read as well; memory or a drive that erred once is
// not.
bool SlabCache::ReadOnceMore(uint32_t slot, const Error& error) {
  Slot& loading = slots_[slot];
  if (error.code() != ErrorCode::kCorrupt || loading.first_damage || is_abandoning_) return false;
  const MutableBytes bytes = SlotBytes(slot);
  loading.first_damage = std::make_unique<ReadDamage>(
      ReadDamage{error.message(), std::vector<std::byte>(bytes.begin(), bytes.end())});
  PlaceReads(slot);
  return true;
}

// Aloud, whoever had the expert read: what is read rightly at the second time is a fault of the
// machine, and later reads of an expert are not compared with its checksum.
void SlabCache::SayDamage(uint32_t slot, bool is_right_now) {
  const std::unique_ptr<ReadDamage> damage = std::move(slots_[slot].first_damage);
  if (!is_right_now) return;
  ++stats_.reread_count;
  LogWarning(
      "{}; read again it is right, and the run goes on ({} so far): {}, slot {}; memory or drive "
      "at fault? test both",
      damage->message, stats_.reread_count, ReadDamageText(damage->bytes, SlotBytes(slot)), slot);
}

}  // namespace smoe::experts
