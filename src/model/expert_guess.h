// model/expert_guess.h: which experts the next layer will probably want, before its router speaks.
//
// Its router is asked early, on what is known of the residual stream by then. What its attention
// will add is not known, but much of that is what it added for the token before, since neighbouring
// tokens look at the same text: kCarriedAttention of it stands in. Of the experts that were chosen
// in the end, so many were named (2000 random tokens of a synthetic model of the shape of
// Qwen3-30B-A3B, 12 layers; 3400 tokens of text through tiny-moe, layers 1, 2, 3):
//
//   before this layer's experts, nothing carried    90 %   42, 69, 67 %
//   the same, with what attention added before      92 %   38, 82, 79 %
//   behind this layer's experts, nothing carried    93 %   92, 66, 66 %
//   the same, with what attention added before      97 %   95, 83, 84 %
//
// Guesses of what to read: no result depends on them. Threads: the owner of the step.
// Cost: one router and top-k for each row that is asked; no allocation.
#pragma once

#include <cstdint>

#include "model/forward.h"

namespace smoe::model {

// Keeps what attention, which has just run, adds for the last row of each sequence that has not
// failed: their mean.
void KeepAttention(const Forward& forward, uint32_t layer_index);

// Which of the experts that a router names are worth a read.
enum class GuessKind : uint8_t {
  kAll,   // all top_k of them
  kSure,  // but those that are named by a hair: another guess will follow
};

// Asks the router of `layer`, the next one with experts, about the residual stream as it is.
// The answer is scratch.likely_ids: likeliest first, an expert once for each row that names it. Of
// many rows some are asked.
void GuessExperts(const Forward& forward, const LayerWeights& layer, uint32_t layer_index,
                  GuessKind kind);

}  // namespace smoe::model
