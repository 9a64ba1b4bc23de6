// InspectTrunk of checkpoint/checkpoint.h: what the names of the tensors say about the trunk.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expert_names.h"
#include "checkpoint/linear_weight.h"
#include "checkpoint/name_list.h"

namespace smoe::checkpoint {

namespace {

constexpr std::string_view kEmbedding = "embed_tokens.weight";
constexpr std::string_view kEmbeddingStem = "embed_tokens.";
constexpr std::string_view kHead = "lm_head";

// What every layer of a known family may have, below "layers.N.", without the last component
// (weight, bias, or what a quantised weight has).
constexpr std::string_view kLayerParts[] = {
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.query_layernorm",
    "self_attn.key_layernorm",
    "self_attn.q_a_proj",
    "self_attn.q_a_layernorm",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj",
    "linear_attn.conv1d",
    "linear_attn.in_proj_ba",
    "linear_attn.in_proj_qkvz",
    "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z",
    "linear_attn.in_proj_b",
    "linear_attn.in_proj_a",
    "linear_attn.norm",
    "linear_attn.out_proj",
    "mlp.gate",
    "mlp.gate.wg",
    "mlp.router",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.shared_expert.gate_proj",
    "mlp.shared_expert.up_proj",
    "mlp.shared_expert.down_proj",
    "mlp.shared_expert_gate",
    "mlp.shared_experts.gate_proj",
    "mlp.shared_experts.up_proj",
    "mlp.shared_experts.down_proj",
    "mlp.shared_mlp.gate_proj",
    "mlp.shared_mlp.up_proj",
    "mlp.shared_mlp.down_proj",
    "block_sparse_moe.gate",
    "block_sparse_moe.router.layer",
};
constexpr std::string_view kLayerTensors[] = {
    "self_attn.sinks",
    "self_attn.k_scale",  // of a quantised KV cache
    "self_attn.v_scale",
    "self_attn.rotary_emb.inv_freq",  // saved by old versions, computed from the config
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "mlp.gate.e_score_correction_bias",
    "mlp.moe_statics.e_score_correction_bias",
    "block_sparse_moe.e_score_correction_bias",
};
// Only a multi-token-prediction block has these.
constexpr std::string_view kMtpMarkers[] = {"eh_proj.weight", "enorm.weight", "hnorm.weight"};
// Towers of models that do more than text.
constexpr std::string_view kOtherTowers[] = {"visual", "vision_tower", "vision_model",
                                             "audio_tower", "multi_modal_projector"};

template <size_t kCount>
bool IsOneOf(const std::string_view (&list)[kCount], std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

bool HasComponent(std::string_view name, std::string_view component) {
  while (!name.empty()) {
    const size_t dot = std::min(name.find('.'), name.size());
    if (name.substr(0, dot) == component) return true;
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return false;
}

bool IsOfOtherTower(std::string_view name) {
  return std::any_of(std::begin(kOtherTowers), std::end(kOtherTowers),
                     [&](std::string_view tower) { return HasComponent(name, tower); });
}

bool IsKnownLayerTensor(std::string_view rest) {
  if (IsOneOf(kLayerTensors, rest)) return true;
  const size_t dot = rest.rfind('.');
  std::string_view stem;
  return dot != std::string_view::npos && IsOneOf(kLayerParts, rest.substr(0, dot)) &&
         (IsLinearName(rest, &stem) || IsQuantisationName(rest) || rest.ends_with(".bias"));
}

// What the codes of our own formats are, by the name of their scales.
struct OwnFormat {
  std::string_view scales;
  tensor::DType codes;
};
constexpr OwnFormat kOwnFormats[] = {{kInt8ScaleName, tensor::DType::kI8},
                                     {kQ4ScaleName, tensor::DType::kU8}};

// "lm_head.weight", and what belongs to it.
bool IsOfHead(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || ParseLayerName(name)) return false;
  std::string_view stem;
  return name.substr(0, dot).ends_with(kHead) &&
         (IsLinearName(name, &stem) || IsQuantisationName(name));
}

struct Tally {
  uint64_t count = 0;
  uint64_t bytes = 0;
  void Add(const TensorInfo& info) {
    ++count;
    bytes += info.size;
  }
};

class TrunkInspector {
 public:
  TrunkInspector(const TensorFiles& trunk, const ModelConfig& config)
      : trunk_(trunk), config_(config) {}

  Result<TrunkFacts> Inspect(const std::vector<uint32_t>& sparse_layers) {
    SMOE_TRY(FindPrefix());
    for (const auto& [name, info] : trunk_.tensors()) Sort(name, info);
    SMOE_TRY(CheckLayers());
    SMOE_TRY(CheckOwnScales());
    NoteLayerKinds(sparse_layers);
    SMOE_TRY(DecideHead());
    NoteAttention();
    NoteEncodings();
    NoteLeftOut();
    return std::move(facts_);
  }

 private:
  // Where the text model begins: beside its embedding.
  Status FindPrefix() {
    std::vector<std::string> found;
    for (const auto& [name, info] : trunk_.tensors()) {
      if (!name.ends_with(kEmbedding) || ParseLayerName(name) || HasComponent(name, "mtp"))
        continue;
      const std::string prefix = name.substr(0, name.size() - kEmbedding.size());
      if (prefix.empty() || prefix.back() == '.') found.push_back(prefix);
    }
    if (found.size() == 1) {
      facts_.prefix = found[0];
      return Ok();
    }
    if (found.empty()) return Corrupt("tensor model.{}: missing", kEmbedding);
    return Corrupt("two embeddings: {}{} and {}{}: expected one", found[0], kEmbedding, found[1],
                   kEmbedding);
  }

  void Sort(const std::string& name, const TensorInfo& info) {
    const auto layer = ParseLayerName(name);
    if (HasComponent(name, "mtp")) return mtp_.Add(info);
    if (layer && layer->prefix == facts_.prefix) {
      if (layer->layer_index >= config_.num_hidden_layers) {
        mtp_.Add(info);
        layers_beyond_[layer->layer_index].insert(std::string(layer->rest));
        return;
      }
      layers_seen_.insert(layer->layer_index);
      if (ParseExpertName(name)) return;
      NoteAttentionTensor(layer->rest);
      if (!IsKnownLayerTensor(layer->rest)) unknown_.push_back(name);
      NoteQuantised(name, info);
      return;
    }
    if (IsOfEmbedding(name)) return NoteQuantised(name, info);
    if (name == facts_.prefix + "norm.weight") return;
    if (IsOfHead(name)) {
      if (!IsQuantisationName(name)) heads_.push_back(name);
      NoteQuantised(name, info);
      return;
    }
    if (IsOfOtherTower(name)) return towers_.Add(info);
    unknown_.push_back(name);
  }

  void NoteQuantised(std::string_view name, const TensorInfo& info) {
    std::string_view stem;
    if (!IsLinearName(name, &stem)) return;
    const bool is_q4 = trunk_.Find(fmt::format("{}.{}", stem, kQ4ScaleName)) != nullptr;
    if (info.dtype == tensor::DType::kU8) (is_q4 ? q4_ : nvfp4_).Add(info);
    if (info.dtype == tensor::DType::kF8E4M3) fp8_.Add(info);
    if (info.dtype == tensor::DType::kI8) int8_.Add(info);
  }

  // The embedding, or the scales of one that this program quantised.
  bool IsOfEmbedding(std::string_view name) const {
    if (!name.starts_with(facts_.prefix)) return false;
    const std::string_view rest = name.substr(facts_.prefix.size());
    if (rest == kEmbedding) return true;
    if (!rest.starts_with(kEmbeddingStem)) return false;
    const std::string_view last = rest.substr(kEmbeddingStem.size());
    return last == kInt8ScaleName || last == kQ4ScaleName;
  }

  void NoteAttentionTensor(std::string_view rest) {
    constexpr std::string_view kAttention = "self_attn.";
    if (!rest.starts_with(kAttention)) return;
    rest.remove_prefix(kAttention.size());
    if (rest == "q_norm.weight" || rest == "query_layernorm.weight") facts_.has_qk_norm = true;
    if (rest.ends_with("_proj.bias")) biases_.insert(std::string(rest.substr(0, rest.find('_'))));
  }

  Status CheckLayers() const {
    for (uint32_t i = 0; i < config_.num_hidden_layers; ++i) {
      if (layers_seen_.contains(i)) continue;
      return Corrupt("layer {}: no tensor {}layers.{}.*, the config says {} layers", i,
                     facts_.prefix, i, config_.num_hidden_layers);
    }
    for (const auto& [index, tails] : layers_beyond_) {
      const bool is_announced =
          index < config_.num_hidden_layers + config_.num_nextn_predict_layers;
      const bool is_marked =
          std::any_of(std::begin(kMtpMarkers), std::end(kMtpMarkers),
                      [&, &names = tails](auto marker) { return names.contains(marker); });
      if (is_announced || is_marked) continue;
      return Corrupt(
          "layer {}: tensor {}layers.{}.{}, the config says {} layers and no "
          "multi-token prediction",
          index, facts_.prefix, index, *tails.begin(), config_.num_hidden_layers);
    }
    return Ok();
  }

  // Scales whose codes are gone, or are another format's, are half of a matrix. Without this check
  // a head that is lost in part would be taken for one that is tied.
  Status CheckOwnScales() const {
    for (const auto& [name, info] : trunk_.tensors()) {
      const size_t stem_end = name.rfind('.') + 1;
      const std::string_view last = std::string_view(name).substr(stem_end);
      for (const OwnFormat& format : kOwnFormats) {
        if (last != format.scales) continue;
        const std::string codes = name.substr(0, stem_end) + "weight";
        const TensorInfo* const found = trunk_.Find(codes);
        if (found == nullptr) return Corrupt("tensor {}: missing, {} is there", codes, name);
        if (found->dtype == format.codes) continue;
        return Corrupt("tensor {}: {}, expected {} beside {}", codes,
                       tensor::DTypeName(found->dtype), tensor::DTypeName(format.codes), name);
      }
    }
    return Ok();
  }

  void NoteLayerKinds(const std::vector<uint32_t>& sparse_layers) {
    facts_.layer_is_sparse.assign(config_.num_hidden_layers, false);
    for (const uint32_t layer : sparse_layers) {
      if (layer < config_.num_hidden_layers) facts_.layer_is_sparse[layer] = true;
    }
    facts_.decisions.push_back(
        fmt::format("layers: {}, by the experts present", LayerKindsText(facts_.layer_is_sparse)));
    if (!config_.layer_is_sparse.empty() && config_.layer_is_sparse != facts_.layer_is_sparse) {
      facts_.warnings.push_back(fmt::format("layers: the config says {}, experts are there for {}",
                                            LayerKindsText(config_.layer_is_sparse),
                                            LayerKindsText(facts_.layer_is_sparse)));
    }
  }

  // A06. The flag and the tensor together.
  Status DecideHead() {
    const bool is_tied =
        config_.tie_word_embeddings || (heads_.empty() && config_.family == Family::kUnknown);
    facts_.head_is_tied = is_tied;
    if (!is_tied && heads_.empty()) {
      return Corrupt(
          "tensor {}.weight: missing, and tie_word_embeddings is false: the head was lost, or "
          "the config is that of another model",
          kHead);
    }
    if (!is_tied) {
      facts_.decisions.push_back(fmt::format("head: {}", heads_[0]));
      return Ok();
    }
    facts_.decisions.push_back("head: tied to the embedding");
    if (!heads_.empty()) {
      facts_.warnings.push_back(fmt::format(
          "{}: ignored, tie_word_embeddings is true and the embedding is the head", heads_[0]));
    }
    return Ok();
  }

  void NoteAttention() {
    facts_.decisions.push_back(fmt::format("rope: {}, theta {}, rotary dims {} of {}",
                                           RopeTypeName(config_.rope.type), config_.rope.theta,
                                           config_.rotary_dim(), config_.head_dim));
    std::string biases = biases_.empty() ? "no biases" : "biases on";
    for (const std::string& name : biases_) biases += ' ' + name;
    facts_.decisions.push_back(fmt::format(
        "attention: {}, {}", facts_.has_qk_norm ? "q/k norms" : "no q/k norms", biases));
    if (config_.sliding_window != 0) {
      const auto count =
          std::count(config_.layer_is_sliding.begin(), config_.layer_is_sliding.end(), true);
      facts_.decisions.push_back(
          fmt::format("window: {} tokens on {} layers", config_.sliding_window, count));
    }
  }

  void NoteEncodings() {
    std::string text;
    for (const auto& [tally, name] : {std::pair{&nvfp4_, "NVFP4"}, std::pair{&fp8_, "FP8"},
                                      std::pair{&int8_, "int8"}, std::pair{&q4_, "q4"}}) {
      if (tally->count == 0) continue;
      text += fmt::format("{}{}{} in {}", text.empty() ? "" : ", ", tally->count,
                          text.empty() ? " matrices" : "", name);
    }
    if (!text.empty()) facts_.decisions.push_back("quantised trunk: " + text);
  }

  void NoteLeftOut() {
    if (mtp_.count != 0) {
      facts_.decisions.push_back(fmt::format("multi-token prediction: {} tensors skipped, {} bytes",
                                             mtp_.count, mtp_.bytes));
    } else if (config_.num_nextn_predict_layers != 0) {
      facts_.decisions.push_back(
          fmt::format("multi-token prediction: {} layers in the config, none in the tensors",
                      config_.num_nextn_predict_layers));
    }
    if (towers_.count != 0) {
      facts_.decisions.push_back(fmt::format("images and sound: {} tensors not used, {} bytes",
                                             towers_.count, towers_.bytes));
    }
    if (!unknown_.empty()) {
      facts_.warnings.push_back(
          fmt::format("{} tensors are not known: {}", unknown_.size(), ListNames(unknown_)));
    }
  }

  const TensorFiles& trunk_;
  const ModelConfig& config_;
  TrunkFacts facts_;
  Tally nvfp4_;
  Tally fp8_;
  Tally int8_;
  Tally q4_;
  Tally mtp_;
  Tally towers_;
  std::set<uint32_t> layers_seen_;
  std::map<uint32_t, std::set<std::string, std::less<>>> layers_beyond_;
  std::set<std::string> biases_;  // "q", "k", ...
  std::vector<std::string> heads_;
  std::vector<std::string> unknown_;
};

}  // namespace

Result<TrunkFacts> InspectTrunk(const TensorFiles& trunk, const ModelConfig& config,
                                const std::vector<uint32_t>& sparse_layers) {
  return TrunkInspector(trunk, config).Inspect(sparse_layers);
}

}  // namespace smoe::checkpoint
