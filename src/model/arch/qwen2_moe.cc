// Qwen2-MoE: biases on q, k and v, a shared expert behind a sigmoid gate.
// Source: transformers 5.24, models/qwen2_moe/modeling_qwen2_moe.py.
#include "model/arch/arch_traits.h"

namespace smoe::model {

const ArchTraits kQwen2MoeTraits = {
    .family = checkpoint::Family::kQwen2Moe,
    .shared_expert = "mlp.shared_expert",
    .shared_expert_gate = "mlp.shared_expert_gate",
};

}  // namespace smoe::model
