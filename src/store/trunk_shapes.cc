#include "store/trunk_shapes.h"

#include <fmt/format.h>

#include "checkpoint/linear_weight.h"

namespace smoe::store {

namespace {

using checkpoint::Family;
using checkpoint::ModelConfig;
using checkpoint::TensorFiles;
using checkpoint::TensorInfo;
using tensor::Shape;

bool HasPlainAttention(Family family) {
  switch (family) {
    case Family::kQwen2Moe:
    case Family::kQwen3Moe:
    case Family::kOlmoe:
    case Family::kMixtral:
    case Family::kDeepseek:
      return true;
    default:
      return false;
  }
}

// A matrix that may be quantised; `stem` is its name without ".weight".
Status CheckMatrix(const TensorFiles& trunk, const std::string& stem, const ModelConfig& config,
                   const Shape& wanted, const std::string& why) {
  SMOE_TRY_ASSIGN(const checkpoint::LinearWeight found,
                  checkpoint::FindLinear(trunk, stem, config));
  if (found.shape == wanted) return Ok();
  return Corrupt("tensor {}: shape is {}, expected {} by {}", *found.codes.name,
                 tensor::ShapeText(found.shape), tensor::ShapeText(wanted), why);
}

// `why` says where the wanted shape comes from.
Status CheckShape(const TensorFiles& trunk, const std::string& name, const Shape& wanted,
                  const std::string& why) {
  const TensorInfo* info = trunk.Find(name);
  if (info == nullptr) return Corrupt("tensor {}: missing", name);
  if (info->shape == wanted) return Ok();
  return Corrupt("tensor {}: shape is {}, expected {} by {}", name, tensor::ShapeText(info->shape),
                 tensor::ShapeText(wanted), why);
}

Status CheckLayer(const TensorFiles& trunk, const std::string& layer, const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t q_rows = uint64_t{config.num_attention_heads} * config.head_dim;
  const uint64_t kv_rows = uint64_t{config.num_key_value_heads} * config.head_dim;
  const std::string by_hidden = fmt::format("hidden_size {}", hidden);
  const std::string by_heads = fmt::format("num_heads {}, head_dim {}, hidden_size {}",
                                           config.num_attention_heads, config.head_dim, hidden);
  const std::string by_kv_heads = fmt::format("num_kv_heads {}, head_dim {}, hidden_size {}",
                                              config.num_key_value_heads, config.head_dim, hidden);
  const std::string attention = layer + "self_attn.";
  SMOE_TRY(CheckShape(trunk, layer + "input_layernorm.weight", {hidden}, by_hidden));
  SMOE_TRY(CheckShape(trunk, layer + "post_attention_layernorm.weight", {hidden}, by_hidden));
  SMOE_TRY(CheckMatrix(trunk, attention + "q_proj", config, {q_rows, hidden}, by_heads));
  SMOE_TRY(CheckMatrix(trunk, attention + "k_proj", config, {kv_rows, hidden}, by_kv_heads));
  SMOE_TRY(CheckMatrix(trunk, attention + "v_proj", config, {kv_rows, hidden}, by_kv_heads));
  SMOE_TRY(CheckMatrix(trunk, attention + "o_proj", config, {hidden, q_rows}, by_heads));
  const std::string router =
      layer +
      (config.family == Family::kMixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight");
  if (trunk.Find(router) == nullptr) return Ok();  // a dense layer
  return CheckShape(
      trunk, router, {config.num_experts, hidden},
      fmt::format("number of experts {}, hidden_size {}", config.num_experts, hidden));
}

}  // namespace

Status CheckTrunkShapes(const TensorFiles& trunk, const std::string& prefix,
                        const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t vocab = config.vocab_size;
  const std::string by_vocab = fmt::format("vocab_size {}, hidden_size {}", vocab, hidden);
  SMOE_TRY(CheckMatrix(trunk, prefix + "embed_tokens", config, {vocab, hidden}, by_vocab));
  SMOE_TRY(
      CheckShape(trunk, prefix + "norm.weight", {hidden}, fmt::format("hidden_size {}", hidden)));
  if (trunk.Find("lm_head.weight") != nullptr || trunk.Find("lm_head.weight_packed") != nullptr) {
    SMOE_TRY(CheckMatrix(trunk, "lm_head", config, {vocab, hidden}, by_vocab));
  }
  if (!HasPlainAttention(config.family)) return Ok();
  for (uint32_t i = 0; i < config.num_hidden_layers; ++i) {
    SMOE_TRY(CheckLayer(trunk, fmt::format("{}layers.{}.", prefix, i), config));
  }
  return Ok();
}

}  // namespace smoe::store
