#include "checkpoint/model_config.h"

#include <algorithm>
#include <string_view>

#include "checkpoint/config_reader.h"
#include "checkpoint/model_families.h"
#include "checkpoint/rope_config.h"

namespace smoe::checkpoint {

namespace {

// The model_type of the whole, or of its text part where only that is known.
const FamilyRow& ReadFamily(ConfigReader& reader, ModelConfig* config) {
  const std::string text_type = reader.Text("model_type", "");
  config->model_type = text_type;
  const FamilyRow* row = &FindFamily(text_type);
  const Json* whole = reader.root().Find("model_type");
  if (whole != nullptr && whole->AsString() != nullptr) {
    config->model_type = *whole->AsString();
    if (row->family == Family::kUnknown) row = &FindFamily(*whole->AsString());
  }
  config->family = row->family;
  const Json* architectures = reader.root().Find("architectures");
  if (architectures != nullptr && architectures->is_array() && !architectures->AsArray()->empty() &&
      architectures->AsArray()->front().AsString()) {
    config->architecture = *architectures->AsArray()->front().AsString();
  }
  return *row;
}

void ReadHeads(ConfigReader& reader, const FamilyDefaults& defaults, ModelConfig* config) {
  config->num_attention_heads = reader.Size({"num_attention_heads"}, kHeadCountMax);
  const uint32_t kv_heads =
      defaults.kv_heads != 0 ? defaults.kv_heads : std::max(config->num_attention_heads, 1U);
  config->num_key_value_heads = reader.Size({"num_key_value_heads"}, kHeadCountMax, kv_heads);
  if (!reader.ok()) return;
  if (config->num_attention_heads % config->num_key_value_heads != 0) {
    reader.Refuse(
        Invalid("{}: num_key_value_heads: {}, expected a divisor of num_attention_heads {}",
                reader.path(), config->num_key_value_heads, config->num_attention_heads));
  }
  config->head_dim = reader.Count({"head_dim"}, kHeadDimMax, defaults.head_dim);
  if (config->head_dim != 0) return;
  config->head_dim = config->hidden_size / config->num_attention_heads;
  if (config->head_dim == 0 || config->head_dim > kHeadDimMax ||
      config->hidden_size % config->num_attention_heads != 0) {
    reader.Refuse(
        Invalid("{}: head_dim: missing, and hidden_size {} / num_attention_heads {} is "
                "no whole number of 1 to {}",
                reader.path(), config->hidden_size, config->num_attention_heads, kHeadDimMax));
  }
}

void ReadSizes(ConfigReader& reader, const FamilyDefaults& defaults, ModelConfig* config) {
  config->vocab_size = reader.Size({"vocab_size"}, kVocabSizeMax);
  config->hidden_size = reader.Size({"hidden_size"}, kHiddenSizeMax);
  config->num_hidden_layers = reader.Size({"num_hidden_layers"}, kLayerCountMax);
  config->max_position_embeddings =
      reader.LargeCount({"max_position_embeddings"}, kPositionCountMax, defaults.positions);
  config->rms_norm_eps = reader.Positive("rms_norm_eps", defaults.rms_norm_eps);
  config->hidden_act = reader.Text("hidden_act", "silu");
  config->tie_word_embeddings = reader.Flag("tie_word_embeddings", defaults.tied);
  config->norm_topk_prob = reader.Flag("norm_topk_prob", defaults.norm_topk_prob);
  config->num_nextn_predict_layers =
      reader.Count({"num_nextn_predict_layers", "num_mtp_layers"}, kLayerCountMax, 0);
}

// A token id, or a list of them.
void ReadTokens(ConfigReader& reader, ModelConfig* config) {
  const auto one = [&](const char* key, const Json& value) {
    const auto id = value.AsUint();
    if (!id || *id > UINT32_MAX) {
      reader.Refuse(
          Invalid("{}: {}: {}, expected a token id", reader.path(), key, JsonText(value)));
      return uint32_t{0};
    }
    return static_cast<uint32_t>(*id);
  };
  if (const Json* bos = reader.Find("bos_token_id")) {
    config->bos_token_id = one("bos_token_id", *bos);
  }
  const Json* eos = reader.Find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    config->eos_token_ids.push_back(one("eos_token_id", *eos));
    return;
  }
  if (eos->AsArray()->size() > kEosCountMax) {
    reader.Refuse(Invalid("{}: eos_token_id: {} ids, expected at most {}", reader.path(),
                          eos->AsArray()->size(), kEosCountMax));
    return;
  }
  for (const Json& id : *eos->AsArray()) config->eos_token_ids.push_back(one("eos_token_id", id));
}

void ReadQuantisation(ConfigReader& reader, ModelConfig* config) {
  const Json* section = reader.Find("quantization_config");
  if (section == nullptr) return;
  const Json* method = section->Find("quant_method");
  if (method != nullptr && method->AsString() != nullptr)
    config->quant_method = *method->AsString();
  const Json* block = section->Find("weight_block_size");
  if (block == nullptr) return;
  const auto side = [&](size_t index) {
    const auto value = block->is_array() && block->AsArray()->size() == 2
                           ? (*block->AsArray())[index].AsUint()
                           : std::nullopt;
    if (value && *value >= 1 && *value <= kIntermediateSizeMax) {
      return static_cast<uint32_t>(*value);
    }
    reader.Refuse(Invalid("{}: quantization_config.weight_block_size: {}, expected two sizes",
                          reader.path(), JsonText(*block)));
    return uint32_t{1};
  };
  config->fp8_block_rows = side(0);
  config->fp8_block_cols = side(1);
}

// gpt_oss without any rope key: its class writes a whole YaRN section.
RopeConfig DefaultRope(const FamilyRow& row) {
  RopeConfig rope;
  if (row.family == Family::kGptOss) {
    rope.type = RopeType::kYarn;
    rope.factor = 32.0;
    rope.original_positions = 4096;
    rope.truncate = false;
  }
  rope.theta = row.defaults.theta;
  rope.partial_rotary_factor = row.defaults.partial_rotary_factor;
  return rope;
}

}  // namespace

Result<ModelConfig> ParseModelConfig(const Json& json, const std::string& path) {
  if (!json.is_object()) return Invalid("{}: {}, expected an object", path, JsonText(json));
  ConfigReader reader(json, path);
  ModelConfig config;
  const FamilyRow& row = ReadFamily(reader, &config);
  ReadSizes(reader, row.defaults, &config);
  ReadHeads(reader, row.defaults, &config);
  SMOE_TRY(reader.status());  // the rest divides by these
  row.parse(reader, &config);
  if (config.num_experts > 0 && config.num_experts_per_tok > config.num_experts) {
    reader.Refuse(Invalid("{}: num_experts_per_tok: {}, expected at most the {} experts", path,
                          config.num_experts_per_tok, config.num_experts));
  }
  ReadRope(reader, DefaultRope(row), &config);
  ReadTokens(reader, &config);
  ReadQuantisation(reader, &config);
  SMOE_TRY(reader.status());
  return config;
}

}  // namespace smoe::checkpoint
