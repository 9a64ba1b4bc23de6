// Qwen3-MoE: grouped queries, q/k norm per head before rope, no shared expert.
// Source: transformers 5.24, models/qwen3_moe/modeling_qwen3_moe.py.
#include "model/arch/arch_traits.h"

namespace smoe::model {

const ArchTraits kQwen3MoeTraits = {
    .family = checkpoint::Family::kQwen3Moe,
    .qk_norm = QkNorm::kPerHead,
};

}  // namespace smoe::model
