// store/checkpoint_store.h: the experts of a Hugging Face folder behind ExpertStore.
//
// Nothing is converted: gate, up and down are read as they lie in the safetensors files, three
// extents at most, into one slot. The reference that vaults are compared with in tests.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/expert_layout.h"
#include "checkpoint/safetensors.h"
#include "store/expert_store.h"

namespace smoe::store {

// `files` and `layout` are only read here; the store opens the files again for itself.
// Layers from `num_hidden_layers` on (multi-token prediction) are left out.
// Errors: kUnsupported, naming `smoe shatter`, if the experts are not plain bf16, f16 or f32, are
//         not contiguous in their tensors, or carry biases; kIo.
// Cost: O(experts). Reads are buffered: extents start where the checkpoint put them.
Result<std::unique_ptr<ExpertStore>> OpenCheckpointStore(const std::string& path,
                                                         const checkpoint::TensorFiles& files,
                                                         const checkpoint::ExpertLayout& layout,
                                                         uint32_t num_hidden_layers);

}  // namespace smoe::store
