#include "store/read_expert.h"

#include "base/check.h"
#include "io/file.h"

namespace smoe::store {

Status ReadExpert(const ExpertStore& store, ExpertId id, MutableBytes slot) {
  SMOE_CHECK(slot.size() >= store.slot_bytes());
  const ExpertLocation location = store.Locate(id);
  for (uint32_t i = 0; i < location.extent_count; ++i) {
    const ExpertExtent& extent = location.extents[i];
    SMOE_TRY(io::ReadFd(extent.fd, store.path(), extent.offset,
                        slot.subspan(extent.slot_offset, extent.size)));
  }
  return store.Admit(id, slot);
}

}  // namespace smoe::store
