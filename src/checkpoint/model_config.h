// checkpoint/model_config.h: what config.json says, in one vocabulary for all families.
//
// Keys are looked up inside text_config first where there is one; null counts as absent. What the
// config does not say gets the family's default as the reference library has it, except the sizes
// of the model, which must be there. Facts that the tensors can tell (which layers are sparse, q/k
// norms, biases, a tied head) are decided from the tensors in checkpoint/checkpoint.h; this struct
// holds the config's claim.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace smoe::checkpoint {

// Limits of what a config may say. Their products fit 64 bits, and head_count x head_dim 32.
inline constexpr uint32_t kVocabSizeMax = 1U << 24;
inline constexpr uint32_t kHiddenSizeMax = 1U << 17;
inline constexpr uint32_t kIntermediateSizeMax = 1U << 20;
inline constexpr uint32_t kLayerCountMax = 1U << 10;
inline constexpr uint32_t kHeadCountMax = 1U << 10;
inline constexpr uint32_t kHeadDimMax = 1U << 13;
inline constexpr uint32_t kExpertCountMax = 1U << 13;
inline constexpr uint64_t kPositionCountMax = uint64_t{1} << 32;
inline constexpr uint32_t kEosCountMax = 256;

// Families by model_type of config.json. kUnknown still converts, if its experts are recognised.
enum class Family : uint8_t {
  kUnknown,
  kQwen2Moe,
  kQwen3Moe,
  kOlmoe,
  kMixtral,
  kDeepseek,  // version 1: plain attention, softmax routing, dense first layers, shared experts
  kDeepseekV2,
  kDeepseekV3,
  kGlm4Moe,
  kGptOss,
  kQwen3Next,
  kQwen35Moe,
  kMinimaxM2,
  kErnie45Moe,
  kGraniteMoe,
  kDots1,
  kHunyuanV1Moe,
};
const char* FamilyName(Family family);  // its model_type, as "qwen3_moe"

// The engine computes kDefault and kYarn and must refuse the others by name; models with them still
// convert. A type that the reference library does not know is refused by ParseModelConfig.
enum class RopeType : uint8_t { kDefault, kYarn, kLinear, kDynamic, kLlama3, kLongRope };
const char* RopeTypeName(RopeType type);  // "yarn"

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  // YaRN only. Source: transformers modeling_rope_utils.py, _compute_yarn_parameters.
  double factor = 1.0;
  uint64_t original_positions = 0;  // original_max_position_embeddings
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor;  // absent: 0.1 ln(factor) + 1, or by mscale
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
  double partial_rotary_factor = 1.0;  // the share of head_dim that is rotated
};

enum class ScoringFunction : uint8_t { kSoftmax, kSigmoid };

struct ModelConfig {
  std::string model_type;
  std::string architecture;  // first of `architectures`, may be empty
  Family family = Family::kUnknown;

  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;  // d_model
  uint32_t num_hidden_layers = 0;
  uint32_t num_attention_heads = 0;
  uint32_t num_key_value_heads = 0;
  uint32_t head_dim = 0;  // of q and k; with latent attention qk_nope_head_dim + qk_rope_head_dim
  uint64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  double clip_qkv = 0;     // olmoe: clamps q, k, v to [-clip, clip]; 0: off
  std::string hidden_act;  // "silu" everywhere we compute

  uint32_t num_experts = 0;          // routed, per layer
  uint32_t num_experts_per_tok = 0;  // top_k
  uint32_t moe_intermediate_size = 0;
  uint32_t intermediate_size = 0;                // of dense layers
  uint32_t shared_expert_intermediate_size = 0;  // total width of the shared experts; 0: none
  bool norm_topk_prob = false;
  ScoringFunction scoring = ScoringFunction::kSoftmax;
  double routed_scaling_factor = 1.0;
  uint32_t n_group = 1;
  uint32_t topk_group = 1;

  bool tie_word_embeddings = false;
  uint64_t sliding_window = 0;         // 0: full attention
  std::vector<bool> layer_is_sliding;  // one per layer, empty when sliding_window is 0
  // The config's claim, one per layer; empty: the config makes none (kUnknown only).
  std::vector<bool> layer_is_sparse;
  uint32_t num_nextn_predict_layers = 0;  // multi-token prediction, never run

  std::vector<uint32_t> eos_token_ids;  // number or list in config.json
  std::optional<uint32_t> bos_token_id;

  // quantization_config: its quant_method (empty: none), and the blocks of FP8 weights.
  std::string quant_method;
  uint32_t fp8_block_rows = 128;
  uint32_t fp8_block_cols = 128;

  // How many leading dimensions of a head rope rotates: head_dim x partial_rotary_factor, cut.
  uint32_t rotary_dim() const;
};

// Errors: kInvalid naming the key, what was expected and what was found: a missing size, a size of
//         0 or above its limit, a rope type or scoring function that nobody knows.
//         Sizes are bounded so that no product of two of them overflows.
// Source: the configuration_*.py and modeling_rope_utils.py of transformers 5.24 for keys and
//         defaults; configuration_deepseek.py of deepseek-ai/deepseek-moe-16b-base for kDeepseek.
Result<ModelConfig> ParseModelConfig(const Json& config, const std::string& path);

}  // namespace smoe::checkpoint
