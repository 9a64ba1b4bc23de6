// model/rope.h: rotary position embedding: pairs of dimensions turned by an angle per position.
//
// Dimension i of the first half pairs with i + rotary_dim / 2 ("half-split", as in Llama and all
// families of this build). Dimensions from rotary_dim on pass through unchanged.
//
// Source: arXiv:2104.09864 section 3.4; frequencies as in transformers 5.24 modeling_rope_utils.py:
// they and the angles are f32, sine and cosine of the f32 angle are rounded to f32 once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"

namespace smoe::model {

class Rope {
 public:
  // Errors: kInvalid for a rotated share that is odd or empty, naming head_dim and the share.
  static Result<Rope> Create(const checkpoint::RopeConfig& config, uint32_t head_dim);

  uint32_t rotary_dim() const { return static_cast<uint32_t>(inv_freq_.size()) * 2; }
  std::span<const float> inv_freq() const { return inv_freq_; }  // [rotary_dim / 2]
  float attention_factor() const { return attention_factor_; }   // YaRN's; 1 otherwise

  // Cosines and sines of one position, times the attention factor: rotary_dim / 2 each.
  // Threads: any. Cost: two library calls per frequency; done once per row and step.
  void FillRow(size_t position, float* cosines, float* sines) const;

  // Turns one head in place, [head_dim].
  void Apply(const float* cosines, const float* sines, float* head) const;

 private:
  std::vector<float> inv_freq_;
  float attention_factor_ = 1.0f;
};

}  // namespace smoe::model
