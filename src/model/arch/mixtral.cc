// Mixtral: weights always divided by their sum, sliding window where the config sets one.
// Source: arXiv:2401.04088 section 2.1; transformers 5.24, models/mixtral/modeling_mixtral.py.
#include "model/arch/arch_traits.h"

namespace smoe::model {

const ArchTraits kMixtralTraits = {
    .family = checkpoint::Family::kMixtral,
    .renormalise = Renormalise::kAlways,
    .moe_block = "block_sparse_moe",
};

}  // namespace smoe::model
