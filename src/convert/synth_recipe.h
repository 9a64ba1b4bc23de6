// convert/synth_recipe.h: how large random weights must be for a model that behaves.
//
// The residual stream of a synthetic model has four parts, each of known power:
//
//   own       the token's embedding: variance 1
//   constant  1 in the first kConstantChannels channels of every embedding. Router columns there
//             are a bias per expert: normal quantiles times `spread`, in an order of each layer's
//             own, beside token-dependent logits of variance 1. That is the skew. Columns of q and
//             k there make attention look back a few tokens only (below); v does not see them.
//   context   what layer 0's attention writes: variance 1. Attention scores are highest for the
//             last tokens and fall off with distance, because the constant channels put equal
//             values into the rotary pairs of wavelengths 2 pi x 4 to 256 tokens. So neighbouring
//             tokens have nearly the same context, and choose more experts in common than chance.
//   updates   all later attention and all experts: variance 1/2 each over the whole depth, so that
//             nothing vanishes or explodes however many layers there are.
//
// Before each norm the power is therefore known, and router biases are the same in every layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"

namespace smoe::convert {

// Which share of experts is looked at, and what they take of the selections by default.
// About what trained models with 64 to 128 experts a layer do.
inline constexpr double kBusyExperts = 0.08;
inline constexpr double kBusySelections = 0.5;

struct RoutingSkew {
  double spread = 0;      // deviation of the experts' biases, in deviations of a token's logit
  double gini = 0;        // of the experts' expected selections, 0: all alike
  double busy_share = 0;  // of the selections, taken by the most used kBusyExperts of the experts
  double weight_squares = 0;  // expected sum of the squares of a token's top-k weights
};

// What a spread leads to, for experts that are chosen where bias + normal noise is among the
// largest top_k. Exact but for the threshold, which is taken to be the same for all tokens: within
// 0.01 of simulated Gini for 8 to 128 experts.
RoutingSkew SkewOf(double spread, uint32_t expert_count, uint32_t top_k, bool renormalise);

// Without `gini`: the spread at which the busy experts take kBusySelections. Where they cannot (few
// experts, many of them chosen), the spread that does so for 8 of 128.
// Errors: kInvalid for a gini that no spread reaches, naming the largest one.
Result<RoutingSkew> FindSkew(std::optional<double> gini, uint32_t expert_count, uint32_t top_k,
                             bool renormalise);

struct LayerRecipe {
  double attention_rms = 0;     // of the residual before attention
  double router_rms = 0;        // and before the experts
  double output_deviation = 0;  // of o_proj
  double down_deviation = 0;    // of the experts' down
};

struct SynthRecipe {
  RoutingSkew skew;
  std::vector<double> biases;  // of experts, ascending, in logits
  double in_deviation = 0;     // of q, k, v, gate, up: outputs of variance 1
  double head_deviation = 0;   // logits of variance 4
  double head_norm = 0;        // weight of q and k norms
  double recent_value = 0;     // what q and k get in the rows below, beside their random part
  std::vector<uint32_t> recent_rows;  // of one head
  std::vector<LayerRecipe> layers;
};

// Errors: as FindSkew.
Result<SynthRecipe> MakeSynthRecipe(const checkpoint::ModelConfig& config,
                                    std::optional<double> gini);

}  // namespace smoe::convert
