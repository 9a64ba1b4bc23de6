// engine/sampler.h: from logits to one token.
//
// Order as in the reference library: repetition penalty, temperature, top-k, top-p, min-p, draw.
// Source: transformers 5.24, generation/logits_process.py. Everything is off by its neutral value.
// The same seed, logits and history give the same token on every machine: probabilities come from
// the kernels' own softmax, and the random numbers from SplitMix64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"

namespace smoe::engine {

// Below the smallest temperature a logit times 1 / temperature might leave f32, and the likeliest
// token has all the weight anyway.
inline constexpr double kTemperatureMin = 1e-6;
inline constexpr double kTemperatureMax = 100;
inline constexpr double kRepetitionPenaltyMin = 0.01;
inline constexpr double kRepetitionPenaltyMax = 100;

struct SamplerOptions {
  double temperature = 0;         // 0: greedy, the lowest id wins a tie
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
  // Requires options that CheckSamplerOptions accepts. Borrows the kernels.
  Sampler(const SamplerOptions& options, size_t vocab_size, const kernels::KernelTable& kernels);

  // `history`: prompt and generated ids, for the repetition penalty.
  // Errors: kCorrupt if a logit is NaN, or none is finite.
  // Cost: no allocation.
  Result<uint32_t> Sample(std::span<const float> logits, std::span<const uint32_t> history);

 private:
  void Penalise(std::span<const uint32_t> history);
  uint32_t Draw();
  size_t KeepTopK(size_t count);
  size_t KeepTopP(size_t count);
  double NextUniform();

  SamplerOptions options_;
  const kernels::KernelTable& kernels_;
  uint64_t random_state_;
  std::vector<float> logits_;    // after penalty and temperature, by id
  std::vector<uint32_t> order_;  // ids of the candidates
  std::vector<float> weights_;   // probabilities, by id; 0 for what is no candidate
  std::vector<bool> seen_;
};

}  // namespace smoe::engine
