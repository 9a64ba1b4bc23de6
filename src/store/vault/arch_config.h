// store/vault/arch_config.h: a config.json for vaults that come without one.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

// From the arch block (version 2), or from the fallback of version 1: rope_theta 1e6, norm_topk on,
// top_k 8, head_dim 128, heads by the rows of q_proj and k_proj. What the block does not say comes
// from the trunk's tensors, or is assumed; one sentence for each goes to `decisions`.
// Errors: kInvalid where the assumed values cannot be right, with what to do about it (--config, or
//         smoe upgrade); or for a model_type that the block cannot describe.
Result<Json> MakeConfig(const Vault& vault, const checkpoint::TensorFiles& trunk,
                        std::vector<std::string>* decisions);

// One sentence for each value of the arch block that the config contradicts; the config wins.
// Requires vault.arch.
std::vector<std::string> Contradictions(const Vault& vault, const checkpoint::ModelConfig& config,
                                        bool has_qk_norm);

}  // namespace smoe::store::vault
