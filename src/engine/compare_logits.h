// engine/compare_logits.h: what two models say to the same text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/text_score.h"

namespace smoe::engine {

// All of it over the positions of the text; KL in nats, A the original.
struct LogitComparison {
  uint64_t position_count = 0;
  double kl_sum = 0;
  double kl_max = 0;
  uint64_t kl_max_position = 0;        // in the text
  uint64_t top_token_equal_count = 0;  // positions where both have the same largest logit
  TextScore a;
  TextScore b;

  double kl_mean() const;
  double top_token_agreement() const;  // 0 to 1
  // One position: both rows, and the token that comes next (nullptr: none).
  void Add(uint64_t position, std::span<const float> logits_a, std::span<const float> logits_b,
           const uint32_t* next);
};

using OpenEngineFunction = std::function<Result<std::unique_ptr<Engine>>()>;
using TokenProgress = std::function<void(uint64_t done_count, uint64_t total_count)>;

// Opens A, keeps its logits in a LogitFile, closes it, opens B: never two engines at once.
// Requires:  engines opened with `evaluate`, of one vocab_size (checked); tokens not empty;
//            window_tokens >= 1 (engine/text_score.h)
// Errors:    of the openers, Engine::Evaluate and LogitFile; kInvalid if vocab_size differs
Result<LogitComparison> CompareLogits(const OpenEngineFunction& open_a,
                                      const OpenEngineFunction& open_b,
                                      std::span<const uint32_t> tokens, size_t window_tokens,
                                      const TokenProgress& progress);

}  // namespace smoe::engine
