#include "experts/expert_cache.h"

#include <algorithm>
#include <utility>

#include "base/memory_limits.h"
#include "experts/slab_cache.h"

namespace smoe::experts {

Result<std::unique_ptr<ExpertCache>> ExpertCache::Create(store::ExpertStore& store,
                                                         io::ReadQueue& queue,
                                                         const Options& options) {
  if (options.slot_count == 0) return Invalid("expert cache: 0 slots asked, expected at least 1");
  const uint64_t slot_bytes = store.slot_bytes();
  SMOE_CHECK(slot_bytes > 0 && slot_bytes % kPageBytes == 0);
  const uint32_t slot_count = std::min(options.slot_count, std::max(1U, store.expert_count()));
  const uint32_t slot_capacity =
      std::clamp(options.slot_capacity, slot_count, std::max(1U, store.expert_count()));
  Result<AlignedBuffer> slab =
      AlignedBuffer::CreateTable(slot_capacity, slot_bytes, 1, "expert cache");
  if (!slab) {
    const Result<FreeMemory> available = ReadFreeMemory();
    const uint64_t fitting = available ? available->bytes / slot_bytes : 0;
    return Exhausted("{}; {} slots of {} asked, {} would fit: lower the cache size",
                     slab.error().message(), slot_capacity, SizeText(slot_bytes), fitting);
  }
  Options cut = options;
  cut.slot_count = slot_count;
  cut.slot_capacity = slot_capacity;
  return std::make_unique<SlabCache>(store, queue, std::move(*slab), cut);
}

}  // namespace smoe::experts
