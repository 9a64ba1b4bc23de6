#include "model/router.h"

#include <cmath>

#include "base/check.h"

namespace smoe::model {

namespace {

// The chosen so far stay sorted: a new score moves up past strictly smaller ones only, so that of
// equal scores the one with the lower index, which came first, keeps the better rank.
void ChooseTopK(const float* scores, uint32_t expert_count, uint32_t top_k, uint32_t* ids,
                float* weights) {
  uint32_t chosen_count = 0;
  for (uint32_t expert = 0; expert < expert_count; ++expert) {
    const float score = scores[expert];
    if (chosen_count == top_k && !(score > weights[top_k - 1])) continue;
    uint32_t rank = chosen_count < top_k ? chosen_count++ : top_k - 1;
    for (; rank > 0 && score > weights[rank - 1]; --rank) {
      ids[rank] = ids[rank - 1];
      weights[rank] = weights[rank - 1];
    }
    ids[rank] = expert;
    weights[rank] = score;
  }
}

}  // namespace

bool RouteRow(const RouterRule& rule, const kernels::KernelTable& kernels, float* logits,
              uint32_t* ids, float* weights) {
  SMOE_DCHECK(rule.top_k >= 1 && rule.top_k <= rule.expert_count);
  for (uint32_t expert = 0; expert < rule.expert_count; ++expert) {
    if (!std::isfinite(logits[expert])) return false;
  }
  kernels.softmax(logits, rule.expert_count);
  ChooseTopK(logits, rule.expert_count, rule.top_k, ids, weights);
  float divisor = 1.0f;
  if (rule.renormalise) {
    divisor = 0.0f;
    for (uint32_t rank = 0; rank < rule.top_k; ++rank) divisor += weights[rank];
  }
  for (uint32_t rank = 0; rank < rule.top_k; ++rank) {
    weights[rank] = weights[rank] / divisor * rule.scale;
  }
  return true;
}

}  // namespace smoe::model
