// engine/sampler.h: from logits to one token.
//
// Order as in the reference library: repetition penalty, temperature, top-k, top-p, min-p, draw.
// Source: transformers 5.24, generation/logits_process.py. Everything is off by its neutral value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace smoe::engine {

struct SamplerOptions {
  double temperature = 0;         // 0: greedy, lowest id wins a tie
  uint32_t top_k = 0;             // 0: off
  double top_p = 1.0;             // 1: off
  double min_p = 0;               // 0: off
  double repetition_penalty = 1;  // 1: off
  uint64_t seed = 0;              // each request has its own stream
};

// Errors: kInvalid naming the option, its range and what was given.
Status CheckSamplerOptions(const SamplerOptions& options);

class Sampler {
 public:
  // Requires options that CheckSamplerOptions accepts.
  Sampler(const SamplerOptions& options, size_t vocab_size);

  // `history`: prompt and generated ids, for the repetition penalty. The same seed, logits and
  // history give the same token on every machine.
  // Errors: kCorrupt if no logit is finite or one is NaN.
  Result<uint32_t> Sample(std::span<const float> logits, std::span<const uint32_t> history);

 private:
  SamplerOptions options_;
  uint64_t random_state_;
  std::vector<float> scratch_;
  std::vector<uint32_t> order_;
};

}  // namespace smoe::engine
