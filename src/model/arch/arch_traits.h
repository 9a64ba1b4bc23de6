// model/arch/arch_traits.h: what a family of models does differently, as facts in a table.
//
// The forward pass reads these facts and never asks which family it runs. A family is one file with
// one constant; a family that needs a new fact adds a member here, with a neutral value for the
// others. Sizes and switches that config.json gives are not here: see checkpoint::ModelConfig.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/model_config.h"

namespace smoe::model {

// The RMS norms on queries and keys, before the rotation.
enum class QkNorm : uint8_t {
  kNone,
  kPerHead,          // each head by itself, one weight of head_dim for all
  kWholeProjection,  // all heads together, before they are split
};

enum class Renormalise : uint8_t {
  kByConfig,  // the chosen weights are divided by their sum if norm_topk_prob says so
  kAlways,
};

struct ArchTraits {
  checkpoint::Family family = checkpoint::Family::kUnknown;
  QkNorm qk_norm = QkNorm::kNone;
  bool clips_qkv = false;  // clamps q, k and v to [-clip_qkv, clip_qkv], after the norms
  Renormalise renormalise = Renormalise::kByConfig;
  // Names below model.layers.N.
  const char* moe_block = "mlp";             // holds the router, gate.weight
  const char* shared_expert = nullptr;       // one feed-forward network that every row passes
  const char* shared_expert_gate = nullptr;  // its output is multiplied by sigmoid(gate . x)
};

extern const ArchTraits kQwen3MoeTraits;
extern const ArchTraits kQwen2MoeTraits;
extern const ArchTraits kOlmoeTraits;
extern const ArchTraits kMixtralTraits;
extern const ArchTraits kDeepseekTraits;

// All families that the engine runs.
std::span<const ArchTraits* const> AllArchs();

// nullptr: this build does not run the family (it may still convert it).
const ArchTraits* FindArch(checkpoint::Family family);

// "qwen3_moe, qwen2_moe, ...", for messages.
std::string ArchNames();

}  // namespace smoe::model
