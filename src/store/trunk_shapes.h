// store/trunk_shapes.h: do the trunk's tensors have the shapes that the config demands?
//
// Shapes do not lie: a config or an arch block that contradicts them is of another model.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace smoe::store {

// Embedding, final norm and head for every family; attention, norms and router of every layer for
// the families with plain attention (qwen2_moe, qwen3_moe, olmoe, mixtral, deepseek).
// `prefix`: what stands before "embed_tokens.weight", as "model.".
// Errors: kCorrupt naming tensor, expected shape with the keys it comes from, and found shape.
Status CheckTrunkShapes(const checkpoint::TensorFiles& trunk, const std::string& prefix,
                        const checkpoint::ModelConfig& config);

}  // namespace smoe::store
