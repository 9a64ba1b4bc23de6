// convert/synth_shape.h: the shapes of published models, for models of random weights.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/model_config.h"

namespace smoe::convert {

struct SynthPreset {
  const char* name;        // "qwen3-30b-a3b"
  const char* model_type;  // the family that the engine runs it as
  uint32_t hidden_size;
  uint32_t num_hidden_layers;
  uint32_t num_experts;
  uint32_t num_experts_per_tok;
  uint32_t moe_intermediate_size;
  uint32_t num_attention_heads;
  uint32_t num_key_value_heads;
  uint32_t head_dim;
  uint32_t vocab_size;
  uint32_t max_position_embeddings;
  double rope_theta;
  double rms_norm_eps;
  bool norm_topk_prob;
};

// Source: config.json of Qwen/Qwen3-30B-A3B, Qwen/Qwen3-235B-A22B, allenai/OLMoE-1B-7B-0924 and
// openai/gpt-oss-120b; of the last the sizes only, as a qwen3_moe.
std::span<const SynthPreset> SynthPresets();
// "qwen3-30b-a3b, qwen3-235b-a22b, ..."
std::string SynthPresetNames();

struct SynthShape {
  std::string name;         // as asked for
  std::string config_path;  // empty: a preset
  std::string config_text;  // the config.json of the new model
  checkpoint::ModelConfig config;
};

// `shape`: a preset's name, or the path of a config.json or of a folder with one. `layers` and
// `vocab` cut the model.
// Errors: kInvalid: no such shape (the message lists them), 0 or more layers or tokens than the
//         shape has, a config that no parser takes, fewer channels than kConstantChannels x 2.
//         kUnsupported: a family without q/k norms of a kind we make, dense layers, shared experts.
Result<SynthShape> FindSynthShape(const std::string& shape, std::optional<uint32_t> layers,
                                  std::optional<uint32_t> vocab);

// Channels of the residual stream that hold 1 for every token: see convert/synth_recipe.h.
inline constexpr uint32_t kConstantChannels = 32;

}  // namespace smoe::convert
