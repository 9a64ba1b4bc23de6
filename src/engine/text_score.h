// engine/text_score.h: how well logits predict a text, and how far two rows of logits are apart.
//
// A text is cut into windows; each is read from its own start, and every token but the window's
// first is predicted. All sums are in double.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "engine/engine.h"

namespace smoe::engine {

// -ln softmax(logits)[token], in nats. Requires token < logits.size().
double Surprise(std::span<const float> logits, uint32_t token);

// KL(a || b) = sum over tokens of p_a (ln p_a - ln p_b), p the softmax of the logits, in nats.
// Requires rows of one size.
double KlDivergence(std::span<const float> a, std::span<const float> b);

// The index of the largest logit; the first of equals.
uint32_t TopToken(std::span<const float> logits);

struct TextScore {
  double nats = 0;  // sum of -ln p
  uint64_t token_count = 0;
  double nats_per_token() const;
  double perplexity() const;  // exp of it
  // Adds the surprise of `next` under `logits`.
  void Add(std::span<const float> logits, uint32_t next);
};

// Called for each position of a text in order: its logits, and the token that comes next in the
// window, nullptr at the window's end.
using PositionSink =
    std::function<Status(size_t position, std::span<const float> logits, const uint32_t* next)>;

// Requires engine.idle(), window_tokens >= 1, and an engine opened with `evaluate`.
// Errors: as Engine::Evaluate; those of the sink.
Status EvaluateWindows(Engine& engine, std::span<const uint32_t> tokens, size_t window_tokens,
                       const PositionSink& sink);

}  // namespace smoe::engine
