// store/model_size.h: what a model costs, in bytes: on the drive, in experts, for each token.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "store/model_files.h"

namespace smoe::store {

struct ModelSize {
  uint64_t drive_bytes = 0;   // all files that hold experts or trunk, whole
  uint64_t expert_bytes = 0;  // of all routed experts, as they are read
  uint64_t expert_count = 0;
  // T of the design: bytes of routed experts that one token reads when none is cached, top_k of
  // each layer.
  uint64_t token_bytes = 0;
};

// Errors: kIo. Cost: O(experts), no data is read.
Result<ModelSize> MeasureSize(const ModelFiles& files);

}  // namespace smoe::store
