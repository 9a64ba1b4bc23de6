#include "engine/machine_rates.h"

#include <fcntl.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/core_count.h"
#include "base/memory_limits.h"
#include "base/memory_rate.h"
#include "base/spread.h"
#include "io/drive_meter.h"

namespace smoe::engine {

namespace {

constexpr uint32_t kReadsAtOnce = 8;
constexpr size_t kExpertsMax = 2048;  // more than a fast drive reads in the time
constexpr int kDramReadings = 5;

std::vector<io::ReadRange> DrawExperts(const store::ExpertStore& store) {
  std::vector<io::ReadRange> ranges;
  std::mt19937_64 random(std::random_device{}());
  const std::vector<store::ExpertId> ids = store::AllExperts(store);
  for (size_t i = 0; i < kExpertsMax; ++i) {
    const store::ExpertLocation location = store.Locate(ids[random() % ids.size()]);
    for (uint32_t e = 0; e < location.extent_count; ++e) {
      const store::ExpertExtent& extent = location.extents[e];
      ranges.push_back({.fd = extent.fd, .offset = extent.offset, .size = extent.size});
    }
  }
  return ranges;
}

}  // namespace

Result<double> MeasureStoreReads(const store::ExpertStore& store, io::ReadBackend backend,
                                 double seconds) {
  if (store.expert_count() == 0) return Invalid("{}: no layer with experts", store.path());
  if (!store.direct_io()) DropStoreFromPageCache(store);
  const std::vector<io::ReadRange> ranges = DrawExperts(store);
  SMOE_TRY_ASSIGN(auto queue, io::ReadQueue::Open(backend, {}));
  const uint32_t depth = std::min(kReadsAtOnce, queue->free_count());
  SMOE_TRY_ASSIGN(AlignedBuffer memory,
                  AlignedBuffer::CreateTable(depth, store.slot_bytes(), 1, "measuring the drive"));
  SMOE_TRY_ASSIGN(const io::ReadRate rate,
                  io::MeasureReads(*queue, ranges, memory.bytes(), depth, seconds));
  return rate.bytes_per_second();
}

Result<double> MeasureDram(size_t thread_count, uint64_t bytes) {
  SMOE_TRY_ASSIGN(const auto pool,
                  ThreadPool::Create(thread_count == 0 ? UsableCoreCount() : thread_count));
  if (bytes == 0) {
    SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
    bytes = RateBytes(LargestCacheBytes(), free.bytes);
  }
  SMOE_TRY_ASSIGN(const auto meter, MemoryRateMeter::Create({.bytes = bytes}, *pool));
  std::vector<double> rates(kDramReadings);
  for (double& rate : rates) rate = meter.Read(*pool).bytes_per_second;
  return SpreadOf(std::move(rates)).median;
}

void DropStoreFromPageCache(const store::ExpertStore& store) {
  std::set<int> fds;
  for (const store::ExpertId id : store::AllExperts(store)) {
    const store::ExpertLocation location = store.Locate(id);
    for (uint32_t e = 0; e < location.extent_count; ++e) fds.insert(location.extents[e].fd);
  }
  for (const int fd : fds) (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace smoe::engine
