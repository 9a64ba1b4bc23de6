// OLMoE: q/k norm over the whole projection, then q, k and v are clamped.
// Source: transformers 5.24, models/olmoe/modeling_olmoe.py.
#include "model/arch/arch_traits.h"

namespace smoe::model {

const ArchTraits kOlmoeTraits = {
    .family = checkpoint::Family::kOlmoe,
    .qk_norm = QkNorm::kWholeProjection,
    .clips_qkv = true,
};

}  // namespace smoe::model
