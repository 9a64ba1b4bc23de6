// store/vault/arch.h: the arch block "SARC" and a model's config, in both directions.
//
// The block holds what a Qwen3-like engine needs and no more; what it cannot say (sigmoid routing,
// latent attention, partial rotary, ...) is in the annex's own config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "store/vault/format.h"

namespace smoe::store::vault {

// What the tensors say and the block records.
struct ArchFacts {
  bool has_qk_norm = false;
  bool has_dense_layer_0 = false;
  uint32_t moe_ffn_dim = 0;  // rows of the experts' gate; 0: take the config's
};

// Errors: kUnsupported for what the block cannot hold (top_k above kArchTopKMax, head_dim above
//         kArchHeadDimMax, an activation that is not SiLU), naming key, limit and value.
// Source: docs/formats/vault.md, "Arch block".
Result<SmoeArchBlock> BuildArchBlock(const checkpoint::ModelConfig& config, const ArchFacts& facts);

// header.ffn_dim: width of the dense layers if there are any, else of the shared experts, else of
// one expert.
uint32_t HeaderFfnDim(const checkpoint::ModelConfig& config, bool has_dense_layers,
                      uint32_t expert_width);

// Checks every field of a block.
// `max_experts_per_layer`: moe_top_k may not exceed it.
// Errors: kCorrupt naming "arch.FIELD", expected and found.
Status CheckArchBlock(const SmoeArchBlock& arch, uint32_t max_experts_per_layer);

// model_type up to its first NUL, at most 24 bytes. Only checked blocks are safe to print.
std::string ArchModelType(const SmoeArchBlock& arch);

// A block of all zeros but magic, version and size: for tests and for the vault's builders.
SmoeArchBlock EmptyArchBlock();

}  // namespace smoe::store::vault
