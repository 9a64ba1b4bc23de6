#include "store/expert_store.h"

#include <algorithm>

namespace smoe::store {

uint64_t ExpertLocation::read_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < extent_count; ++i) bytes += extents[i].size;
  return bytes;
}

std::optional<uint32_t> FindOrdinal(const ExpertStore& store, ExpertId id) {
  const std::span<const StoreLayer> layers = store.layers();
  const auto at = std::lower_bound(
      layers.begin(), layers.end(), id.layer_index,
      [](const StoreLayer& layer, uint32_t wanted) { return layer.layer_index < wanted; });
  if (at == layers.end() || at->layer_index != id.layer_index) return std::nullopt;
  if (id.expert_index >= at->expert_count) return std::nullopt;
  return at->first_ordinal + id.expert_index;
}

std::vector<ExpertId> AllExperts(const ExpertStore& store) {
  std::vector<ExpertId> ids;
  ids.reserve(store.expert_count());
  for (const StoreLayer& layer : store.layers()) {
    for (uint32_t expert = 0; expert < layer.expert_count; ++expert) {
      ids.push_back({layer.layer_index, expert});
    }
  }
  return ids;
}

}  // namespace smoe::store
