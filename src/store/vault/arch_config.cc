#include "store/vault/arch_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "store/vault/arch.h"

namespace smoe::store::vault {

namespace {

using checkpoint::Family;
using checkpoint::ModelConfig;
using checkpoint::TensorFiles;
using checkpoint::TensorInfo;

// What a version 1 file does not say. Source: docs/formats/vault.md, "Version 1".
constexpr double kV1RopeTheta = 1e6;
constexpr uint32_t kV1TopK = 8;
constexpr uint32_t kV1HeadDim = 128;
constexpr const char* kV1ModelType = "qwen3_moe";

// No position limit is stored; long enough for what these models were published with.
constexpr int kAssumedPositions = 32768;

// Quantised matrices of one kind have a longer name. Rows are rows in all of them.
bool EndsWith(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPacked = "_packed";
  if (name.ends_with(kPacked)) name.remove_suffix(kPacked.size());
  return name.ends_with(suffix);
}

// Rows of the first tensor whose name ends so; 0 if there is none.
uint32_t RowsOf(const TensorFiles& trunk, std::string_view suffix) {
  for (const auto& [name, info] : trunk.tensors()) {
    if (EndsWith(name, suffix) && info.shape.size() == 2 && info.shape[0] <= UINT32_MAX) {
      return static_cast<uint32_t>(info.shape[0]);
    }
  }
  return 0;
}

bool HasTensor(const TensorFiles& trunk, std::string_view suffix) {
  for (const auto& item : trunk.tensors()) {
    if (EndsWith(item.first, suffix)) return true;
  }
  return false;
}

// One more than the largest N of "...layers.N.input_layernorm.weight".
uint32_t CountLayers(const TensorFiles& trunk) {
  constexpr std::string_view kMarker = "layers.";
  uint32_t count = 0;
  for (const auto& item : trunk.tensors()) {
    const std::string& name = item.first;
    const size_t at = name.find(kMarker);
    if (at == std::string::npos || !name.ends_with(".input_layernorm.weight")) continue;
    uint32_t layer = 0;
    const char* start = name.data() + at + kMarker.size();
    const auto [end, code] = std::from_chars(start, name.data() + name.size(), layer);
    if (code == std::errc() && *end == '.' && layer <= kLayerIdMax) {
      count = std::max(count, layer + 1);
    }
  }
  return count;
}

// Layers below `layer_count` without experts in the table.
Json DenseLayers(const Vault& vault, uint32_t layer_count) {
  Json dense{Json::Array()};
  size_t at = 0;
  for (uint32_t i = 0; i < layer_count; ++i) {
    while (at < vault.layers.size() && vault.layers[at].layer_index < i) ++at;
    const bool is_sparse = at < vault.layers.size() && vault.layers[at].layer_index == i;
    if (!is_sparse) dense.Append(i);
  }
  return dense;
}

// The names that families have for one number; a parser takes its own and ignores the others.
void SetAll(Json* json, std::initializer_list<const char*> keys, uint32_t value) {
  for (const char* key : keys) json->Set(key, value);
}

void SetCommon(const Vault& vault, const TensorFiles& trunk, uint32_t layer_count, Json* json,
               std::vector<std::string>* decisions) {
  uint32_t vocab_size = vault.header.vocab_size;
  if (vocab_size == 0) {
    vocab_size = RowsOf(trunk, "embed_tokens.weight");
    decisions->push_back(
        fmt::format("vocab_size: {} from the embedding, the header has 0", vocab_size));
  }
  json->Set("vocab_size", vocab_size);
  json->Set("hidden_size", vault.hidden_size);
  json->Set("num_hidden_layers", layer_count);
  json->Set("hidden_act", "silu");
  SetAll(json, {"num_experts", "num_local_experts", "n_routed_experts"},
         vault.header.max_experts_per_layer);
  json->Set("moe_intermediate_size", vault.intermediate_size);
  json->Set("max_position_embeddings", kAssumedPositions);
  decisions->push_back(fmt::format(
      "max_position_embeddings: {} assumed, rope scaling: none assumed", kAssumedPositions));
  json->Set("tie_word_embeddings", !HasTensor(trunk, "lm_head.weight"));
  json->Set("mlp_only_layers", DenseLayers(vault, layer_count));
  json->Set("first_k_dense_replace", std::min(vault.layers.front().layer_index, layer_count));
}

uint32_t SharedWidth(const Vault& vault, const TensorFiles& trunk,
                     std::vector<std::string>* decisions) {
  const uint32_t stored = vault.arch ? vault.arch->shared_expert_ffn_dim : 0;
  uint32_t seen = RowsOf(trunk, "mlp.shared_expert.gate_proj.weight");
  if (seen == 0) seen = RowsOf(trunk, "mlp.shared_experts.gate_proj.weight");
  if (seen != stored) {
    decisions->push_back(fmt::format(
        "shared expert: {} wide by the trunk's tensors, the arch block says {}", seen, stored));
  }
  return seen;
}

// Families whose every number the block and the tensors hold; others need their config.json.
Status CheckDescribable(const Vault& vault, const std::string& model_type) {
  constexpr const char* kPlain[] = {"qwen2_moe", "qwen3_moe", "olmoe", "mixtral", "deepseek"};
  constexpr const char* kOthers[] = {"deepseek_v2", "deepseek_v3", "glm4_moe",      "gpt_oss",
                                     "qwen3_next",  "qwen3_5_moe", "minimax_m2",    "ernie4_5_moe",
                                     "granitemoe",  "dots1",       "hunyuan_v1_moe"};
  const bool is_other =
      std::find(std::begin(kOthers), std::end(kOthers), model_type) != std::end(kOthers);
  if (!is_other) return Ok();
  return Invalid(
      "{}: a {} model needs its config.json, the vault's arch block describes only {}: name it "
      "with --config",
      vault.path, model_type, fmt::join(kPlain, ", "));
}

Result<Json> ConfigFromArch(const Vault& vault, const TensorFiles& trunk,
                            std::vector<std::string>* decisions) {
  const SmoeArchBlock& arch = *vault.arch;
  const std::string model_type = ArchModelType(arch);
  SMOE_TRY(CheckDescribable(vault, model_type));
  decisions->push_back("config: from the vault's arch block");
  Json json;
  json.Set("model_type", model_type);
  SetCommon(vault, trunk, arch.num_hidden_layers, &json, decisions);
  json.Set("num_attention_heads", uint32_t{arch.num_heads});
  json.Set("num_key_value_heads", uint32_t{arch.num_kv_heads});
  json.Set("head_dim", uint32_t{arch.head_dim});
  json.Set("rope_theta", double{arch.rope_theta});
  json.Set("rms_norm_eps", double{arch.rms_norm_eps});
  json.Set("num_experts_per_tok", uint32_t{arch.moe_top_k});
  json.Set("norm_topk_prob", (arch.flags & kArchNormTopkProb) != 0);
  json.Set("intermediate_size",
           arch.dense_ffn_dim != 0 ? uint32_t{arch.dense_ffn_dim} : vault.intermediate_size);
  const uint32_t shared = SharedWidth(vault, trunk, decisions);
  json.Set("shared_expert_intermediate_size", shared);
  json.Set("n_shared_experts", shared / vault.intermediate_size);
  return json;
}

Result<Json> ConfigFromVersion1(const Vault& vault, const TensorFiles& trunk,
                                std::vector<std::string>* decisions) {
  const uint32_t q_rows = RowsOf(trunk, "layers.0.self_attn.q_proj.weight");
  const uint32_t k_rows = RowsOf(trunk, "layers.0.self_attn.k_proj.weight");
  const uint32_t experts = vault.header.max_experts_per_layer;
  if (q_rows == 0 || k_rows == 0 || q_rows % kV1HeadDim != 0 || k_rows % kV1HeadDim != 0 ||
      experts < kV1TopK) {
    return Invalid(
        "{}: version 1 has no arch block, and the assumed values do not fit this model: head_dim "
        "{} (q_proj has {} rows, k_proj {}), top_k {} (a layer has {} experts); name its "
        "config.json with --config, or add the block with smoe upgrade",
        vault.path, kV1HeadDim, q_rows, k_rows, kV1TopK, experts);
  }
  decisions->push_back(
      fmt::format("config: version 1 has no arch block; assumed: model_type {}, rope_theta {}, "
                  "norm_topk_prob true, top_k {}, head_dim {}",
                  kV1ModelType, kV1RopeTheta, kV1TopK, kV1HeadDim));
  const uint32_t heads = q_rows / kV1HeadDim;
  const uint32_t kv_heads = k_rows / kV1HeadDim;
  decisions->push_back(
      fmt::format("num_attention_heads {}, num_key_value_heads {}: by the rows of "
                  "q_proj {} and k_proj {}",
                  heads, kv_heads, q_rows, k_rows));
  Json json;
  json.Set("model_type", kV1ModelType);
  SetCommon(vault, trunk, CountLayers(trunk), &json, decisions);
  json.Set("num_attention_heads", heads);
  json.Set("num_key_value_heads", kv_heads);
  json.Set("head_dim", kV1HeadDim);
  json.Set("rope_theta", kV1RopeTheta);
  json.Set("num_experts_per_tok", kV1TopK);
  json.Set("norm_topk_prob", true);
  const uint32_t dense = RowsOf(trunk, "mlp.gate_proj.weight");
  json.Set("intermediate_size", dense != 0 ? dense : vault.intermediate_size);
  return json;
}

}  // namespace

Result<Json> MakeConfig(const Vault& vault, const TensorFiles& trunk,
                        std::vector<std::string>* decisions) {
  return vault.arch ? ConfigFromArch(vault, trunk, decisions)
                    : ConfigFromVersion1(vault, trunk, decisions);
}

std::vector<std::string> Contradictions(const Vault& vault, const ModelConfig& config,
                                        bool has_qk_norm) {
  const SmoeArchBlock& arch = *vault.arch;
  struct Row {
    const char* field;
    double block;
    double wanted;
  };
  const uint32_t flags = arch.flags;
  const bool has_dense_layer_0 = vault.layers.front().layer_index != 0;
  std::vector<std::string> sentences;
  for (const Row& row :
       {Row{"rope_theta", arch.rope_theta, static_cast<float>(config.rope.theta)},
        Row{"num_heads", double{1} * arch.num_heads, double{1} * config.num_attention_heads},
        Row{"num_kv_heads", double{1} * arch.num_kv_heads, double{1} * config.num_key_value_heads},
        Row{"head_dim", double{1} * arch.head_dim, double{1} * config.head_dim},
        Row{"moe_top_k", double{1} * arch.moe_top_k, double{1} * config.num_experts_per_tok},
        Row{"shared_expert_ffn_dim", double{1} * arch.shared_expert_ffn_dim,
            double{1} * config.shared_expert_intermediate_size},
        Row{"num_hidden_layers", double{1} * arch.num_hidden_layers,
            double{1} * config.num_hidden_layers},
        Row{"rms_norm_eps", arch.rms_norm_eps, static_cast<float>(config.rms_norm_eps)},
        Row{"norm_topk_prob", (flags & kArchNormTopkProb) != 0 ? 1.0 : 0.0,
            config.norm_topk_prob ? 1.0 : 0.0},
        Row{"has_qk_norm", (flags & kArchHasQkNorm) != 0 ? 1.0 : 0.0, has_qk_norm ? 1.0 : 0.0},
        Row{"has_dense_layer_0", (flags & kArchHasDenseLayer0) != 0 ? 1.0 : 0.0,
            has_dense_layer_0 ? 1.0 : 0.0}}) {
    if (row.block == row.wanted) continue;
    sentences.push_back(
        fmt::format("arch.{} is {}, config and tensors say {}: config and tensors win", row.field,
                    row.block, row.wanted));
  }
  if (ArchModelType(arch) != config.model_type.substr(0, sizeof(arch.model_type))) {
    sentences.push_back(fmt::format("arch.model_type is {}, the config says {}: the config wins",
                                    ArchModelType(arch), config.model_type));
  }
  return sentences;
}

}  // namespace smoe::store::vault
