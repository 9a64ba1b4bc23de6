// DeepSeek-MoE, version 1: dense first layers, n shared experts stored as one wide network.
// Source: arXiv:2401.06066; modeling_deepseek.py as published with
// deepseek-ai/deepseek-moe-16b-base.
#include "model/arch/arch_traits.h"

namespace smoe::model {

const ArchTraits kDeepseekTraits = {
    .family = checkpoint::Family::kDeepseek,
    .shared_expert = "mlp.shared_experts",
};

}  // namespace smoe::model
