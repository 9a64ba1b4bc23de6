#include "convert/synth_shape.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "checkpoint/checkpoint.h"

namespace smoe::convert {
namespace {

using checkpoint::Family;
using checkpoint::ModelConfig;

constexpr SynthPreset kPresets[] = {
    {"qwen3-30b-a3b", "qwen3_moe", 2048, 48, 128, 8, 768, 32, 4, 128, 151936, 40960, 1e6, 1e-6,
     true},
    {"qwen3-235b-a22b", "qwen3_moe", 4096, 94, 128, 8, 1536, 64, 4, 128, 151936, 40960, 1e6, 1e-6,
     true},
    {"olmoe-1b-7b", "olmoe", 2048, 16, 64, 8, 1024, 16, 16, 128, 50304, 4096, 1e4, 1e-5, false},
    {"gpt-oss-120b", "qwen3_moe", 2880, 36, 128, 4, 2880, 64, 8, 64, 201088, 131072, 1.5e5, 1e-5,
     true},
};

Json ConfigOf(const SynthPreset& preset) {
  const bool is_olmoe = std::string_view(preset.model_type) == "olmoe";
  Json json;
  json.Set("architectures", Json::Array{is_olmoe ? "OlmoeForCausalLM" : "Qwen3MoeForCausalLM"})
      .Set("attention_bias", false)
      .Set("hidden_act", "silu")
      .Set("hidden_size", preset.hidden_size)
      .Set("intermediate_size", preset.moe_intermediate_size)
      .Set("max_position_embeddings", preset.max_position_embeddings)
      .Set("model_type", preset.model_type)
      .Set("norm_topk_prob", preset.norm_topk_prob)
      .Set("num_attention_heads", preset.num_attention_heads)
      .Set("num_experts", preset.num_experts)
      .Set("num_experts_per_tok", preset.num_experts_per_tok)
      .Set("num_hidden_layers", preset.num_hidden_layers)
      .Set("num_key_value_heads", preset.num_key_value_heads)
      .Set("rms_norm_eps", preset.rms_norm_eps)
      .Set("rope_theta", preset.rope_theta)
      .Set("tie_word_embeddings", false)
      .Set("torch_dtype", "bfloat16")
      .Set("vocab_size", preset.vocab_size);
  if (!is_olmoe) {
    json.Set("head_dim", preset.head_dim)
        .Set("moe_intermediate_size", preset.moe_intermediate_size);
  }
  return json;
}

// What a config of real weights says and random ones must not: ends of text would stop a
// measurement, and no weight is quantised but the experts'.
void Adapt(Json* json) {
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id", "quantization_config"}) {
    if (json->Find(key) != nullptr) json->Set(key, nullptr);
  }
}

Status Cut(const std::string& name, const char* option, const char* key,
           std::optional<uint32_t> wanted, uint32_t found, Json* json) {
  if (!wanted) return Ok();
  if (*wanted == 0 || *wanted > found) {
    return Invalid("{}: {} {}, expected 1 to {}, which {} has", option, *wanted,
                   *wanted == 0 ? "would leave nothing" : "is more than there is", found, name);
  }
  json->Set(key, *wanted);
  return Ok();
}

Status CheckShape(const SynthShape& shape) {
  const ModelConfig& config = shape.config;
  if (config.family != Family::kQwen3Moe && config.family != Family::kOlmoe) {
    return Unsupported("{}: model_type {}, expected qwen3_moe or olmoe", shape.name,
                       config.model_type);
  }
  for (size_t layer = 0; layer < config.layer_is_sparse.size(); ++layer) {
    if (config.layer_is_sparse[layer]) continue;
    return Unsupported("{}: layer {} is dense, expected experts in every layer", shape.name, layer);
  }
  // What no engine of this build could run is no model to measure with.
  if (config.rope.type != checkpoint::RopeType::kDefault &&
      config.rope.type != checkpoint::RopeType::kYarn) {
    return Unsupported("{}: rope type {}, expected default or yarn", shape.name,
                       checkpoint::RopeTypeName(config.rope.type));
  }
  if (config.rotary_dim() == 0 || config.rotary_dim() % 2 != 0) {
    return Invalid("{}: {} of head_dim {} dimensions rotate, expected an even number above 0",
                   shape.name, config.rotary_dim(), config.head_dim);
  }
  if (config.hidden_size < 2 * kConstantChannels) {
    return Invalid("{}: hidden_size {}, expected at least {}: {} channels carry the routing's skew",
                   shape.name, config.hidden_size, 2 * kConstantChannels, kConstantChannels);
  }
  return Ok();
}

Result<Json> ReadConfig(const std::string& path) {
  SMOE_TRY_ASSIGN(const checkpoint::SideFiles files, checkpoint::ReadSideFiles(path));
  SMOE_TRY_ASSIGN(Json json, Json::Parse(files.config, path));
  if (json.Find("text_config") == nullptr) return json;
  return Unsupported("{}: text_config: a config of more than text, expected a plain one", path);
}

}  // namespace

std::span<const SynthPreset> SynthPresets() { return kPresets; }

std::string SynthPresetNames() {
  std::string names;
  for (const SynthPreset& preset : kPresets) {
    if (!names.empty()) names += ", ";
    names += preset.name;
  }
  return names;
}

Result<SynthShape> FindSynthShape(const std::string& name, std::optional<uint32_t> layers,
                                  std::optional<uint32_t> vocab) {
  SynthShape shape;
  shape.name = name;
  Json json;
  const auto* preset = std::find_if(std::begin(kPresets), std::end(kPresets),
                                    [&](const SynthPreset& entry) { return entry.name == name; });
  std::error_code ignored;
  if (preset != std::end(kPresets)) {
    json = ConfigOf(*preset);
  } else if (std::filesystem::exists(name, ignored)) {
    SMOE_TRY_ASSIGN(json, ReadConfig(name));
    shape.config_path = std::filesystem::is_directory(name, ignored)
                            ? (std::filesystem::path(name) / "config.json").string()
                            : name;
    Adapt(&json);
  } else {
    return Invalid("{}: no such shape; expected {}, or a config.json", name, SynthPresetNames());
  }
  SMOE_TRY_ASSIGN(const ModelConfig whole, checkpoint::ParseModelConfig(json, name));
  SMOE_TRY(Cut(name, "--layers", "num_hidden_layers", layers, whole.num_hidden_layers, &json));
  SMOE_TRY(Cut(name, "--vocab", "vocab_size", vocab, whole.vocab_size, &json));
  SMOE_TRY_ASSIGN(shape.config, checkpoint::ParseModelConfig(json, name));
  shape.config_text = json.Dump(2) + "\n";
  SMOE_TRY(CheckShape(shape));
  return shape;
}

}  // namespace smoe::convert
