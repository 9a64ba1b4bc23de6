#include "convert/synth_trunk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "convert/random_weights.h"
#include "tensor/dtype.h"

namespace smoe::convert {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
constexpr uint64_t kRowStep = 8;  // so that pieces begin at whole random words

// Parts of the trunk's key.
constexpr uint64_t kOrderPart = 0;
constexpr uint64_t kTensorPart = 1;

// Experts have odd parts of the seed.
uint64_t TrunkKey(uint64_t seed) { return RandomKey(seed, 0); }

// The order of the experts' biases in a layer.
std::vector<uint32_t> ExpertOrder(uint64_t seed, uint32_t layer, uint32_t expert_count) {
  const uint64_t key = RandomKey(RandomKey(TrunkKey(seed), kOrderPart), layer);
  std::vector<uint32_t> order(expert_count);
  for (uint32_t i = 0; i < expert_count; ++i) {
    const auto j = static_cast<uint32_t>(RandomKey(key, i) % (i + 1));
    order[i] = order[j];
    order[j] = i;
  }
  return order;
}

class TrunkPlanner {
 public:
  TrunkPlanner(const checkpoint::ModelConfig& config, const SynthRecipe& recipe, uint64_t seed)
      : config_(config), recipe_(recipe), seed_(seed) {}

  std::vector<SynthTensor> Run() {
    const uint64_t hidden = config_.hidden_size;
    const uint64_t vocab = config_.vocab_size;
    Matrix("model.embed_tokens", vocab, hidden, 1, std::vector<float>(vocab, 1.0F));
    Norm("model.norm", hidden, 1);
    if (!config_.tie_word_embeddings) {
      Matrix("lm_head", vocab, hidden, recipe_.head_deviation, {});
    }
    for (uint32_t i = 0; i < config_.num_hidden_layers; ++i) Layer(i);
    std::sort(tensors_.begin(), tensors_.end(),
              [](const SynthTensor& a, const SynthTensor& b) { return a.spec.name < b.spec.name; });
    return std::move(tensors_);
  }

 private:
  void Matrix(const std::string& stem, uint64_t rows, uint64_t cols, double deviation,
              std::vector<float> constants) {
    tensors_.push_back({{stem + ".weight", tensor::DType::kBF16, {rows, cols}},
                        deviation,
                        0,
                        std::move(constants)});
  }

  void Norm(const std::string& stem, uint64_t size, double fill) {
    tensors_.push_back({{stem + ".weight", tensor::DType::kBF16, {size}}, 0, fill, {}});
  }

  // What the constant channels add to rows of q or k, seen through a norm that divides by `rms`.
  std::vector<float> RecentConstants(uint64_t head_count, double rms) const {
    std::vector<float> constants(head_count * config_.head_dim, 0.0F);
    for (uint64_t head = 0; head < head_count; ++head) {
      for (const uint32_t row : recipe_.recent_rows) {
        constants[head * config_.head_dim + row] =
            static_cast<float>(recipe_.recent_value * rms / kConstantChannels);
      }
    }
    return constants;
  }

  std::vector<float> RouterConstants(uint32_t layer) const {
    const double rms = recipe_.layers[layer].router_rms;
    std::vector<float> constants;
    for (const uint32_t rank : ExpertOrder(seed_, layer, config_.num_experts)) {
      constants.push_back(static_cast<float>(recipe_.biases[rank] * rms / kConstantChannels));
    }
    return constants;
  }

  void Layer(uint32_t i) {
    const LayerRecipe& layer = recipe_.layers[i];
    const std::string stem = fmt::format("model.layers.{}.", i);
    const std::string attention = stem + "self_attn.";
    const uint64_t hidden = config_.hidden_size;
    const uint64_t head_dim = config_.head_dim;
    const uint64_t q_rows = config_.num_attention_heads * head_dim;
    const uint64_t kv_rows = config_.num_key_value_heads * head_dim;
    const bool is_whole = config_.family == checkpoint::Family::kOlmoe;
    Norm(stem + "input_layernorm", hidden, 1);
    Norm(stem + "post_attention_layernorm", hidden, 1);
    Norm(attention + "q_norm", is_whole ? q_rows : head_dim, recipe_.head_norm);
    Norm(attention + "k_norm", is_whole ? kv_rows : head_dim, recipe_.head_norm);
    Matrix(attention + "q_proj", q_rows, hidden, recipe_.in_deviation,
           RecentConstants(config_.num_attention_heads, layer.attention_rms));
    Matrix(attention + "k_proj", kv_rows, hidden, recipe_.in_deviation,
           RecentConstants(config_.num_key_value_heads, layer.attention_rms));
    Matrix(attention + "v_proj", kv_rows, hidden, recipe_.in_deviation,
           std::vector<float>(kv_rows, 0.0F));
    Matrix(attention + "o_proj", hidden, q_rows, layer.output_deviation, {});
    Matrix(stem + "mlp.gate", config_.num_experts, hidden, recipe_.in_deviation,
           RouterConstants(i));
  }

  const checkpoint::ModelConfig& config_;
  const SynthRecipe& recipe_;
  const uint64_t seed_;
  std::vector<SynthTensor> tensors_;
};

// Rows [first_row, ...) of a tensor.
void FillRows(const SynthTensor& tensor, const NormalBf16& normal, uint64_t key, uint64_t first_row,
              std::span<uint16_t> out) {
  const uint64_t cols = tensor.spec.shape.back();
  if (tensor.deviation == 0) {
    std::fill(out.begin(), out.end(), tensor::BF16FromF32(static_cast<float>(tensor.fill)));
    return;
  }
  normal.Fill(key, first_row * cols, out);
  if (tensor.constants.empty()) return;
  for (uint64_t row = 0; row < out.size() / cols; ++row) {
    const uint16_t constant = tensor::BF16FromF32(tensor.constants[first_row + row]);
    std::fill_n(out.begin() + static_cast<ptrdiff_t>(row * cols), kConstantChannels, constant);
  }
}

}  // namespace

Result<SynthTrunk> PlanSynthTrunk(const checkpoint::ModelConfig& config, const SynthRecipe& recipe,
                                  uint64_t seed) {
  SynthTrunk trunk;
  trunk.tensors = TrunkPlanner(config, recipe, seed).Run();
  std::vector<checkpoint::TensorSpec> specs;
  for (const SynthTensor& tensor : trunk.tensors) specs.push_back(tensor.spec);
  SMOE_TRY_ASSIGN(trunk.layout, checkpoint::LayOutSafetensors(specs, {}));
  return trunk;
}

Status StreamSynthTrunk(const SynthTrunk& trunk, uint64_t seed, const TrunkSink& sink,
                        Progress& progress) {
  SMOE_TRY(sink(AsBytes(std::string_view(trunk.layout.header))));
  progress.Advance(trunk.layout.header.size());
  const uint64_t tensors_key = RandomKey(TrunkKey(seed), kTensorPart);
  std::vector<uint16_t> piece;
  for (const SynthTensor& tensor : trunk.tensors) {
    const NormalBf16 normal(tensor.deviation);
    const uint64_t key =
        RandomKey(tensors_key, Checksum(AsBytes(std::string_view(tensor.spec.name))));
    const uint64_t cols = tensor.spec.shape.back();
    const uint64_t rows = tensor.spec.shape.size() == 1 ? 1 : tensor.spec.shape.front();
    const uint64_t step =
        std::max(kPieceBytes / (cols * sizeof(uint16_t)) / kRowStep * kRowStep, kRowStep);
    for (uint64_t first = 0; first < rows; first += step) {
      piece.resize(std::min(step, rows - first) * cols);
      FillRows(tensor, normal, key, first, piece);
      const Bytes bytes = std::as_bytes(std::span(piece));
      SMOE_TRY(CheckGoesOn(progress));
      SMOE_TRY(sink(bytes));
      progress.Advance(bytes.size());
    }
  }
  return Ok();
}

}  // namespace smoe::convert
