#include "checkpoint/model_families.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace smoe::checkpoint {

namespace {

// Parts that several families share -----------------------------------------------------------

void ReadExperts(ConfigReader& reader, ConfigReader::Keys count_keys, ConfigReader::Keys top_k_keys,
                 std::optional<uint32_t> top_k, ModelConfig* config) {
  // A list means one top-k per layer; we take it only if all are the same.
  for (const char* key : top_k_keys) {
    const Json* value = reader.Find(key);
    if (value != nullptr && value->is_array()) {
      reader.Refuse(
          Unsupported("{}: {}: one value per layer is not supported", reader.path(), key));
      return;
    }
  }
  // Absent is no 0: a config without the key is a config we misunderstand.
  bool is_there = false;
  for (const char* key : count_keys) is_there = is_there || reader.Find(key) != nullptr;
  if (!is_there) {
    reader.Refuse(Invalid("{}: {}: missing, expected 0 to {}", reader.path(), *count_keys.begin(),
                          kExpertCountMax));
  }
  config->num_experts = reader.Count(count_keys, kExpertCountMax, 0);
  if (config->num_experts == 0) return;
  config->num_experts_per_tok = reader.Size(top_k_keys, kExpertCountMax, top_k);
}

void ReadMoeWidth(ConfigReader& reader, ModelConfig* config) {
  config->moe_intermediate_size = reader.Size({"moe_intermediate_size"}, kIntermediateSizeMax);
  config->intermediate_size =
      reader.Size({"intermediate_size"}, kIntermediateSizeMax, config->moe_intermediate_size);
}

// Families whose experts have the width called intermediate_size.
void ReadSingleWidth(ConfigReader& reader, ModelConfig* config) {
  config->intermediate_size = reader.Size({"intermediate_size"}, kIntermediateSizeMax);
  config->moe_intermediate_size = config->intermediate_size;
}

void SetSharedWidth(ConfigReader& reader, uint64_t width, ModelConfig* config) {
  if (width > kIntermediateSizeMax) {
    reader.Refuse(Invalid("{}: shared experts: {} wide together, expected at most {}",
                          reader.path(), width, kIntermediateSizeMax));
    return;
  }
  config->shared_expert_intermediate_size = static_cast<uint32_t>(width);
}

void ReadSharedCount(ConfigReader& reader, const char* key, uint32_t fallback,
                     ModelConfig* config) {
  const uint64_t count = reader.Count({key}, kExpertCountMax, fallback);
  SetSharedWidth(reader, count * config->moe_intermediate_size, config);
}

// True at layer i if rule(i).
template <class Rule>
void SetSparse(ModelConfig* config, Rule rule) {
  config->layer_is_sparse.clear();
  for (uint32_t i = 0; i < config->num_hidden_layers; ++i) {
    config->layer_is_sparse.push_back(config->num_experts > 0 && rule(i));
  }
}

void SetAllSparse(ModelConfig* config) {
  SetSparse(config, [](uint32_t) { return true; });
}

// decoder_sparse_step and mlp_only_layers.
void ReadSparseStep(ConfigReader& reader, ModelConfig* config) {
  const uint32_t step = reader.Size({"decoder_sparse_step"}, kLayerCountMax, 1);
  std::vector<uint64_t> dense;
  if (const Json* list = reader.Find("mlp_only_layers")) {
    if (!list->is_array()) {
      reader.Refuse(Invalid("{}: mlp_only_layers: {}, expected a list of layers", reader.path(),
                            JsonText(*list)));
      return;
    }
    for (const Json& element : *list->AsArray()) {
      const auto layer = element.AsUint();
      if (!layer || *layer >= config->num_hidden_layers) {
        reader.Refuse(Invalid("{}: mlp_only_layers: {}, expected layers below {}", reader.path(),
                              JsonText(element), config->num_hidden_layers));
        return;
      }
      dense.push_back(*layer);
    }
  }
  if (!reader.ok()) return;
  SetSparse(config, [&](uint32_t i) {
    return (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  });
}

// first_k_dense_replace, and the moe_layer_freq of the configs' own remote code.
void ReadFirstDense(ConfigReader& reader, uint32_t first_dense, ModelConfig* config) {
  const uint32_t first = reader.Count({"first_k_dense_replace"}, kLayerCountMax, first_dense);
  const uint32_t step = reader.Size({"moe_layer_freq"}, kLayerCountMax, 1);
  if (!reader.ok()) return;
  SetSparse(config, [&](uint32_t i) { return i >= first && i % step == 0; });
}

void ReadGroups(ConfigReader& reader, uint32_t groups, uint32_t top_groups, ModelConfig* config) {
  config->n_group = reader.Size({"n_group"}, kExpertCountMax, groups);
  config->topk_group = reader.Size({"topk_group"}, kExpertCountMax, top_groups);
  if (config->topk_group > config->n_group || config->num_experts % config->n_group != 0) {
    reader.Refuse(
        Invalid("{}: n_group {}, topk_group {}: expected groups that divide {} experts, and "
                "no more chosen than there are",
                reader.path(), config->n_group, config->topk_group, config->num_experts));
  }
}

// `family`: what its reference computes whatever the key says; a key that says otherwise is
// refused.
void ReadScoring(ConfigReader& reader, ScoringFunction family, ModelConfig* config) {
  config->scoring = family;
  const std::string name = reader.Text("scoring_func", "");
  if (name.empty()) return;
  ScoringFunction found = family;
  if (name == "softmax") {
    found = ScoringFunction::kSoftmax;
  } else if (name == "sigmoid" || name == "noaux_tc") {  // dots1 names the method here
    found = ScoringFunction::kSigmoid;
  } else {
    reader.Refuse(
        Invalid("{}: scoring_func: {}, expected softmax or sigmoid", reader.path(), name));
  }
  if (found != family && config->family != Family::kDeepseek &&
      config->family != Family::kUnknown) {
    reader.Refuse(Unsupported("{}: scoring_func: {}, which {} models do not use", reader.path(),
                              name, FamilyName(config->family)));
  }
  config->scoring = found;
}

// Latent attention: q and k heads are a part without and a part with rope.
void ReadLatentHead(ConfigReader& reader, ModelConfig* config) {
  config->head_dim = reader.Size({"qk_nope_head_dim"}, kHeadDimMax / 2, 128) +
                     reader.Size({"qk_rope_head_dim"}, kHeadDimMax / 2, 64);
}

// Windows ---------------------------------------------------------------------------------------

// The window that is in force: null turns it off, absent means `fallback`.
uint64_t ReadWindow(ConfigReader& reader, uint64_t fallback) {
  if (reader.IsNull("sliding_window")) return 0;
  return reader.LargeCount({"sliding_window"}, kPositionCountMax, fallback);
}

// layer_types where the config has it, else rule(i).
template <class Rule>
void SetSliding(ConfigReader& reader, uint64_t window, Rule rule, ModelConfig* config) {
  std::vector<bool> sliding;
  const Json* types = reader.Find("layer_types");
  if (types != nullptr && !types->is_array()) {
    reader.Refuse(Invalid("{}: layer_types: {}, expected a list", reader.path(), JsonText(*types)));
    return;
  }
  if (types != nullptr && types->AsArray()->size() != config->num_hidden_layers) {
    reader.Refuse(Invalid("{}: layer_types: {} entries, expected {} as num_hidden_layers",
                          reader.path(), types->AsArray()->size(), config->num_hidden_layers));
    return;
  }
  for (uint32_t i = 0; i < config->num_hidden_layers; ++i) {
    if (types == nullptr) {
      sliding.push_back(rule(i));
      continue;
    }
    const std::string* type = (*types->AsArray())[i].AsString();
    if (type == nullptr || (*type != "full_attention" && *type != "sliding_attention" &&
                            *type != "linear_attention")) {
      reader.Refuse(
          Invalid("{}: layer_types: {}, expected full_attention, sliding_attention or "
                  "linear_attention",
                  reader.path(), JsonText((*types->AsArray())[i])));
      return;
    }
    sliding.push_back(*type == "sliding_attention");
  }
  if (window == 0 || std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return;
  config->sliding_window = window;
  config->layer_is_sliding = std::move(sliding);
}

// Families ------------------------------------------------------------------------------------

// Source: transformers 5.24 qwen3_moe. A window, if switched on, covers all layers, unless
// layer_types (which that class ignores) names some.
void ParseQwen3Moe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, 8, config);
  ReadMoeWidth(reader, config);
  ReadSparseStep(reader, config);
  const bool on = reader.Flag("use_sliding_window", false);
  SetSliding(
      reader, on ? ReadWindow(reader, 4096) : 0, [](uint32_t) { return true; }, config);
}

void ParseQwen2Moe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, 4, config);
  ReadMoeWidth(reader, config);
  ReadSparseStep(reader, config);
  SetSharedWidth(reader,
                 reader.Count({"shared_expert_intermediate_size"}, kIntermediateSizeMax, 5632),
                 config);
  const bool on = reader.Flag("use_sliding_window", false);
  const uint32_t windows = reader.Count({"max_window_layers"}, kLayerCountMax, 28);
  SetSliding(
      reader, on ? ReadWindow(reader, 4096) : 0,
      [&](uint32_t i) { return (i + 1) % 2 != 0 && i < windows; }, config);
}

void ParseOlmoe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, 8, config);
  ReadSingleWidth(reader, config);
  SetAllSparse(config);
  if (reader.Find("clip_qkv") != nullptr) config->clip_qkv = reader.Positive("clip_qkv", 0);
}

void ParseMixtral(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, 2, config);
  ReadSingleWidth(reader, config);
  SetAllSparse(config);
  SetSliding(
      reader, ReadWindow(reader, 0), [](uint32_t) { return true; }, config);
}

// Source: configuration_deepseek.py and modeling_deepseek.py of deepseek-moe-16b-base.
void ParseDeepseek(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"n_routed_experts"}, {"num_experts_per_tok"}, std::nullopt, config);
  ReadMoeWidth(reader, config);
  ReadFirstDense(reader, 0, config);
  ReadSharedCount(reader, "n_shared_experts", 0, config);
  ReadScoring(reader, ScoringFunction::kSoftmax, config);
}

void ParseDeepseekV2(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"n_routed_experts"}, {"num_experts_per_tok"}, std::nullopt, config);
  ReadMoeWidth(reader, config);
  ReadFirstDense(reader, 0, config);
  ReadSharedCount(reader, "n_shared_experts", 2, config);
  ReadScoring(reader, ScoringFunction::kSoftmax, config);
  config->routed_scaling_factor = reader.Positive("routed_scaling_factor", 1.0);
  ReadLatentHead(reader, config);
  const std::string method = reader.Text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(reader, 1, 1, config);
  } else if (method != "greedy") {
    reader.Refuse(Invalid("{}: topk_method: {}, expected greedy or group_limited_greedy",
                          reader.path(), method));
  }
}

// The router of deepseek_v3, which glm4_moe and dots1 share.
void ReadBiasedRouter(ConfigReader& reader, double factor, uint32_t groups, uint32_t top_groups,
                      ModelConfig* config) {
  ReadScoring(reader, ScoringFunction::kSigmoid, config);
  config->routed_scaling_factor = reader.Positive("routed_scaling_factor", factor);
  ReadGroups(reader, groups, top_groups, config);
}

void ParseDeepseekV3(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, 8,
              config);
  ReadMoeWidth(reader, config);
  ReadFirstDense(reader, 3, config);
  ReadSharedCount(reader, "n_shared_experts", 1, config);
  ReadBiasedRouter(reader, 2.5, 8, 4, config);
  ReadLatentHead(reader, config);
}

void ParseGlm4Moe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, 8,
              config);
  ReadMoeWidth(reader, config);
  ReadFirstDense(reader, 1, config);
  ReadSharedCount(reader, "n_shared_experts", 1, config);
  ReadBiasedRouter(reader, 1.0, 1, 1, config);
}

void ParseDots1(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"},
              std::nullopt, config);
  ReadMoeWidth(reader, config);
  ReadFirstDense(reader, 0, config);
  ReadSharedCount(reader, "n_shared_experts", 0, config);
  ReadBiasedRouter(reader, 1.0, 1, 1, config);
  const uint32_t full = reader.Count({"max_window_layers"}, kLayerCountMax, 62);
  SetSliding(
      reader, ReadWindow(reader, 4096), [&](uint32_t i) { return i >= full; }, config);
}

void ParseGptOss(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_local_experts", "num_experts"},
              {"num_experts_per_tok", "experts_per_token"}, 4, config);
  ReadSingleWidth(reader, config);
  SetAllSparse(config);
  SetSliding(
      reader, ReadWindow(reader, 128), [](uint32_t i) { return i % 2 == 0; }, config);
}

void ParseQwen3Next(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, 10, config);
  ReadMoeWidth(reader, config);
  ReadSparseStep(reader, config);
  SetSharedWidth(
      reader, reader.Count({"shared_expert_intermediate_size"}, kIntermediateSizeMax, 512), config);
}

void ParseQwen35Moe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, 8, config);
  ReadMoeWidth(reader, config);
  SetAllSparse(config);
  SetSharedWidth(
      reader, reader.Count({"shared_expert_intermediate_size"}, kIntermediateSizeMax, 512), config);
  config->norm_topk_prob = true;  // always, whatever the key says
}

void ParseMinimaxM2(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, 8, config);
  ReadSingleWidth(reader, config);
  SetAllSparse(config);
  ReadScoring(reader, ScoringFunction::kSigmoid, config);
}

void ParseErnie45Moe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"moe_num_experts", "num_experts"}, {"moe_k", "num_experts_per_tok"}, 6,
              config);
  ReadMoeWidth(reader, config);
  ReadSharedCount(reader, "moe_num_shared_experts", 2, config);
  const uint32_t first = reader.Count({"moe_layer_start_index"}, kLayerCountMax, 1);
  const uint32_t step = reader.Size({"moe_layer_interval"}, kLayerCountMax, 1);
  const Json* end = reader.Find("moe_layer_end_index");
  uint32_t last = kLayerCountMax;
  if (end != nullptr && end->AsInt() != -1) {
    last = reader.Count({"moe_layer_end_index"}, kLayerCountMax, 0);
  }
  if (!reader.ok()) return;
  SetSparse(config, [&](uint32_t i) { return (i + 1) % step == 0 && i >= first && i <= last; });
}

void ParseGraniteMoe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, 2, config);
  ReadSingleWidth(reader, config);
  SetAllSparse(config);
}

// The shared MLP has the width of one expert.
void ParseHunyuanV1Moe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, {"num_experts", "num_local_experts"}, {"moe_topk", "num_experts_per_tok"}, 1,
              config);
  ReadSingleWidth(reader, config);
  SetAllSparse(config);
  config->shared_expert_intermediate_size = config->intermediate_size;
}

// A model_type we do not know: what its keys say under any family's name. The tensors decide which
// layers are sparse, unless a key does.
void ParseUnknown(ConfigReader& reader, ModelConfig* config) {
  config->num_experts =
      reader.Count({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"},
                   kExpertCountMax, 0);
  config->num_experts_per_tok = reader.Count(
      {"num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"}, kExpertCountMax, 0);
  config->intermediate_size = reader.Count({"intermediate_size"}, kIntermediateSizeMax, 0);
  config->moe_intermediate_size =
      reader.Count({"moe_intermediate_size"}, kIntermediateSizeMax, config->intermediate_size);
  ReadSharedCount(reader, "n_shared_experts", 0, config);
  if (reader.Find("first_k_dense_replace") != nullptr) {
    ReadFirstDense(reader, 0, config);
  } else if (reader.Find("decoder_sparse_step") != nullptr) {
    ReadSparseStep(reader, config);
  }
}

constexpr FamilyRow kFamilies[] = {
    {"qwen2_moe", Family::kQwen2Moe, {.positions = 32768, .kv_heads = 16}, ParseQwen2Moe},
    {"qwen3_moe", Family::kQwen3Moe, {.positions = 32768, .kv_heads = 4}, ParseQwen3Moe},
    {"olmoe", Family::kOlmoe, {.rms_norm_eps = 1e-5, .positions = 4096}, ParseOlmoe},
    {"mixtral",
     Family::kMixtral,
     {.rms_norm_eps = 1e-5,
      .positions = 4096 * 32,
      .kv_heads = 8,
      .norm_topk_prob = true,
      .theta = 1e6},
     ParseMixtral},
    {"deepseek", Family::kDeepseek, {.positions = 2048}, ParseDeepseek},
    {"deepseek_v2", Family::kDeepseekV2, {.positions = 2048}, ParseDeepseekV2},
    {"deepseek_v3",
     Family::kDeepseekV3,
     {.positions = 4096, .norm_topk_prob = true},
     ParseDeepseekV3},
    {"glm4_moe",
     Family::kGlm4Moe,
     {.rms_norm_eps = 1e-5,
      .positions = 131072,
      .kv_heads = 8,
      .norm_topk_prob = true,
      .partial_rotary_factor = 0.5},
     ParseGlm4Moe},
    {"gpt_oss",
     Family::kGptOss,
     {.rms_norm_eps = 1e-5,
      .positions = 131072,
      .kv_heads = 8,
      .head_dim = 64,
      .norm_topk_prob = true,
      .theta = 150000},
     ParseGptOss},
    {"qwen3_next",
     Family::kQwen3Next,
     {.positions = 32768,
      .kv_heads = 2,
      .head_dim = 256,
      .norm_topk_prob = true,
      .partial_rotary_factor = 0.25},
     ParseQwen3Next},
    {"qwen3_5_moe",
     Family::kQwen35Moe,
     {.positions = 32768,
      .kv_heads = 2,
      .head_dim = 256,
      .norm_topk_prob = true,
      .partial_rotary_factor = 0.25},
     ParseQwen35Moe},
    {"minimax_m2",
     Family::kMinimaxM2,
     {.positions = 196608, .kv_heads = 8, .head_dim = 128, .norm_topk_prob = true, .theta = 5e6},
     ParseMinimaxM2},
    {"ernie4_5_moe",
     Family::kErnie45Moe,
     {.rms_norm_eps = 1e-5,
      .positions = 131072,
      .kv_heads = 4,
      .tied = true,
      .norm_topk_prob = true,
      .theta = 500000},
     ParseErnie45Moe},
    {"granitemoe",
     Family::kGraniteMoe,
     {.positions = 2048, .norm_topk_prob = true},
     ParseGraniteMoe},
    {"dots1", Family::kDots1, {.positions = 2048}, ParseDots1},
    {"hunyuan_v1_moe",
     Family::kHunyuanV1Moe,
     {.rms_norm_eps = 1e-5, .positions = 2048, .norm_topk_prob = true},
     ParseHunyuanV1Moe},
    {"unknown", Family::kUnknown, {.positions = 2048}, ParseUnknown},
};

}  // namespace

const FamilyRow& FindFamily(std::string_view model_type) {
  // The text half of a container may say so in its type.
  constexpr std::string_view kTextSuffix = "_text";
  if (model_type.ends_with(kTextSuffix)) model_type.remove_suffix(kTextSuffix.size());
  for (const FamilyRow& row : kFamilies) {
    if (model_type == row.model_type) return row;
  }
  return kFamilies[std::size(kFamilies) - 1];
}

const char* FamilyName(Family family) {
  for (const FamilyRow& row : kFamilies) {
    if (row.family == family) return row.model_type;
  }
  return "unknown";
}

}  // namespace smoe::checkpoint
