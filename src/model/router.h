// model/router.h: which experts a token goes to, and with what weights.
//
// Always f32, whatever the arithmetic of the experts. Softmax over ALL experts, then the k largest
// scores in falling order (rank 0 first); equal scores go to the lowest expert index. Scores are
// compared as they are, so a set of very small ones is still ordered.
//
// Source: transformers 5.24, Qwen3MoeTopKRouter and its kin in qwen2_moe, olmoe, mixtral; for
// version 1 of deepseek, MoEGate in the published modeling_deepseek.py.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace smoe::model {

struct RouterRule {
  uint32_t expert_count = 0;
  uint32_t top_k = 0;        // 1 to expert_count
  bool renormalise = false;  // divide the chosen weights by their sum
  float scale = 1.0f;        // multiplies the weights last (routed_scaling_factor)
};

// Routes one row. `logits` [expert_count] is overwritten by the scores; ids and weights are
// [top_k], in rank order.
// Returns false, with ids and weights unspecified, if a logit is NaN or infinite.
// Threads: any. Cost: expert_count * top_k comparisons; no allocation.
bool RouteRow(const RouterRule& rule, const kernels::KernelTable& kernels, float* logits,
              uint32_t* ids, float* weights);

}  // namespace smoe::model
