// store/expert_store.h: where the experts of a model lie, whatever file format holds them.
//
// Three implementations: a `.smoe` vault, an NVFP4 record store, and a Hugging Face folder
// itself. The cache asks where an expert is and how long, reads those bytes into a slot, lets the
// store admit the slot (identity and checksum), and gets the three matrices as views into it.
//
// Threads: all const methods from any thread. Lifetime: outlives every cache and read on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "tensor/weights.h"

namespace smoe::store {

struct ExpertId {
  uint32_t layer_index = 0;   // absolute transformer layer
  uint32_t expert_index = 0;  // inside the layer
  friend bool operator==(const ExpertId&, const ExpertId&) = default;
};

// One contiguous read. An expert is at most kExtentsMax of them.
struct ExpertExtent {
  int fd = -1;               // borrowed from the store
  uint64_t offset = 0;       // in bytes from the start of the file
  uint64_t size = 0;         // in bytes
  uint64_t slot_offset = 0;  // where in the slot it goes
};
inline constexpr size_t kExtentsMax = 3;

struct ExpertLocation {
  uint32_t extent_count = 0;
  ExpertExtent extents[kExtentsMax];
  uint64_t read_bytes() const;  // sum of the sizes
};

// The routed experts of one model layer.
struct StoreLayer {
  uint32_t layer_index = 0;
  uint32_t expert_count = 0;
  uint32_t first_ordinal = 0;  // ordinal of its expert 0
};

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  virtual const std::string& path() const = 0;
  virtual const char* format_name() const = 0;  // "smoe-q4 group 64", "bf16", ...

  // Layers with routed experts that the model runs, ascending (multi-token prediction left out).
  virtual std::span<const StoreLayer> layers() const = 0;
  // Experts in all layers. Ordinals run from 0, layer by layer: the cache's table is an array.
  virtual uint32_t expert_count() const = 0;
  virtual uint32_t hidden_size() const = 0;
  virtual uint32_t intermediate_size() const = 0;

  // Bytes a slot must have, a multiple of kPageBytes: the largest expert of the store.
  virtual uint64_t slot_bytes() const = 0;
  // True if the fds are open for direct reads.
  virtual bool direct_io() const = 0;
  // The store goes on with buffered reads, after a direct read gave EINVAL. Returns true if that
  // changed anything: read again with a fresh Locate. Logs it once. Threads: the cache's owner.
  virtual bool FallBackToBuffered() = 0;

  // Requires an expert that layers() has.
  virtual ExpertLocation Locate(ExpertId id) const = 0;

  // Called once on a slot whose reads have finished, before anyone sees it: compares the identity
  // where the format has one, at an expert's first arrival also checksum and content, and may
  // rearrange the bytes. Threads: any, for slots of different experts.
  // Errors: kCorrupt naming file, expert, offset, expected, found.
  virtual Status Admit(ExpertId id, MutableBytes slot) const = 0;

  // The matrices inside an admitted slot. Cost: a few additions.
  virtual tensor::ExpertWeights View(ExpertId id, Bytes slot) const = 0;

 protected:
  ExpertStore() = default;
};

// Ordinal of an expert, or nullopt if the store has no such layer or expert. O(log layers).
std::optional<uint32_t> FindOrdinal(const ExpertStore& store, ExpertId id);

// Every expert, at its ordinal.
std::vector<ExpertId> AllExperts(const ExpertStore& store);

}  // namespace smoe::store
