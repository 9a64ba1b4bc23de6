#include "model/trunk_plan.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/bytes.h"
#include "checkpoint/expert_names.h"

namespace smoe::model {

namespace {

using checkpoint::LinearKind;
using checkpoint::LinearWeight;
using checkpoint::TensorInfo;
using checkpoint::TrunkPart;
using tensor::Shape;
using tensor::WeightFormat;

// Part of a name that no family of ours runs: vision towers, multi-token prediction, scales that no
// weight depends on, and buffers that old checkpoints stored although they follow from the config.
bool IsKnownExtra(std::string_view name) {
  for (const std::string_view start : {"mtp.", "model.mtp.", "visual.", "model.visual.",
                                       "vision_tower.", "multi_modal_projector."}) {
    if (name.starts_with(start)) return true;
  }
  return name.ends_with("rotary_emb.inv_freq") || checkpoint::IsActivationScaleName(name);
}

// A copy of the embedding that tied models may carry is never read.
bool IsHead(std::string_view name) {
  std::string_view stem;
  return name.starts_with("lm_head.") &&
         (checkpoint::IsLinearName(name, &stem) || checkpoint::IsQuantisationName(name));
}

// In which format a matrix is kept: as was asked for its part, or, where it belongs to none, as the
// file has its floats. A product in f32 has the same bits with bf16 and f16 weights as with the
// same numbers in f32, and half of the bytes.
enum class Keep : uint8_t { kByPart, kExact };

}  // namespace

std::optional<PieceBytes> BytesOf(WeightFormat format, uint64_t rows, uint64_t cols) {
  if (format == WeightFormat::kInt8) {
    const auto codes = tensor::Int8CodeBytes(rows, cols);
    const auto scales = tensor::Int8ScaleBytes(rows, cols);
    if (!codes || !scales) return std::nullopt;
    return PieceBytes{*codes, *scales};
  }
  const std::optional<uint64_t> count = CheckedMul(rows, cols);
  if (!count) return std::nullopt;
  if (format == WeightFormat::kSmoeQ4) {
    return PieceBytes{tensor::PackedBytes(*count, tensor::SmoeBits::kQ4),
                      tensor::ScaleBytes(*count, checkpoint::kQ4Group)};
  }
  const auto bytes = CheckedMul(*count, format == WeightFormat::kF32 ? 4 : 2);
  if (!bytes) return std::nullopt;
  return PieceBytes{*bytes, 0};
}

namespace {

class TrunkPlanner {
 public:
  TrunkPlanner(const store::ModelFiles& files, const ArchTraits& traits,
               const TrunkOptions& options)
      : files_(files), config_(files.config), traits_(traits), options_(options) {}

  Result<TrunkPlan> Plan(Trunk* trunk) {
    SMOE_TRY(WantAll(trunk));
    SMOE_TRY(CheckNothingIsLeft());
    return std::move(plan_);
  }

 private:
  bool Has(const std::string& name) const { return files_.trunk.Find(name) != nullptr; }
  // A tensor of floats.
  Result<LinearWeight> FindFloats(const std::string& name, const Shape& shape) const;
  // A matrix, wanted by its name without ".weight".
  Result<LinearWeight> FindMatrix(const std::string& stem, const Shape& shape) const;
  void Use(const TrunkPiece& piece);
  Status Add(TrunkPiece piece);
  Result<TrunkPiece> FindPiece(const std::string& stem, uint64_t rows, uint64_t cols, Keep keep,
                               bool is_head_too);
  Status WantMatrix(const std::string& stem, uint64_t rows, uint64_t cols, tensor::WeightView* to,
                    Keep keep = Keep::kByPart, tensor::WeightView* second = nullptr);
  Status WantVector(const std::string& name, uint64_t count, FloatVector* to);
  Status WantDense(const std::string& stem, uint64_t width, tensor::ExpertWeights* to);

  Status WantAll(Trunk* trunk);
  Status WantEmbedding(const std::string& stem, Trunk* trunk);
  Status WantEnds(Trunk* trunk);
  Status WantAttention(const std::string& stem, LayerWeights* layer);
  Status WantFeedForward(const std::string& stem, LayerWeights* layer);
  Status CheckNothingIsLeft() const;
  std::string PathOf(const TensorInfo& info) const {
    return files_.trunk.files()[info.file_index].path();
  }

  const store::ModelFiles& files_;
  const checkpoint::ModelConfig& config_;
  const ArchTraits& traits_;
  const TrunkOptions& options_;
  TrunkPlan plan_;
  std::set<std::string, std::less<>> used_;
};

Result<LinearWeight> TrunkPlanner::FindFloats(const std::string& name, const Shape& shape) const {
  const auto found = files_.trunk.tensors().find(name);
  if (found == files_.trunk.tensors().end()) {
    return Corrupt("{}: tensor {} is missing, a {} model needs it as {}", files_.path, name,
                   checkpoint::FamilyName(traits_.family), tensor::ShapeText(shape));
  }
  const TensorInfo& info = found->second;
  if (info.shape != shape) {
    return Corrupt("{}: tensor {}: shape {} expected from config.json, {} found", PathOf(info),
                   name, tensor::ShapeText(shape), tensor::ShapeText(info.shape));
  }
  if (!tensor::IsFloat(info.dtype)) {
    return Unsupported("{}: tensor {}: dtype {}, this build computes with F32, F16 and BF16",
                       PathOf(info), name, tensor::DTypeName(info.dtype));
  }
  LinearWeight weight;
  weight.codes = {&found->first, &info};
  weight.shape = info.shape;
  return weight;
}

Result<LinearWeight> TrunkPlanner::FindMatrix(const std::string& stem, const Shape& shape) const {
  const std::string name = stem + ".weight";
  if (!Has(name) && !Has(name + "_packed")) return FindFloats(name, shape);
  auto found = checkpoint::FindLinear(files_.trunk, stem, config_);
  if (!found) return While(files_.path, std::move(found));
  if (found->kind == LinearKind::kFloat) return FindFloats(name, shape);
  if (found->shape == shape) return found;
  return Corrupt("{}: tensor {}: shape {} expected from config.json, {} found",
                 PathOf(*found->codes.info), *found->codes.name, tensor::ShapeText(shape),
                 tensor::ShapeText(found->shape));
}

void TrunkPlanner::Use(const TrunkPiece& piece) {
  for (const checkpoint::NamedTensor& tensor :
       {piece.source.codes, piece.source.scales, piece.source.global_scale}) {
    if (tensor.name != nullptr) used_.insert(*tensor.name);
  }
}

Status TrunkPlanner::Add(TrunkPiece piece) {
  Use(piece);
  const std::optional<PieceBytes> bytes = BytesOf(piece.format, piece.rows, piece.cols);
  // Half of the address space leaves room for the rounding, and for the sum of a few thousand.
  constexpr uint64_t kBytesMax = uint64_t{1} << 62;
  if (!bytes || bytes->elements > kBytesMax - plan_.total_bytes ||
      bytes->scales > kBytesMax - plan_.total_bytes - bytes->elements) {
    return Exhausted("trunk: tensor {} of {} x {} and those before it do not fit any memory",
                     piece.name, piece.rows, piece.cols);
  }
  piece.offset = plan_.total_bytes;
  piece.bytes = bytes->elements;
  piece.scales_offset = RoundUp(piece.offset + piece.bytes, kCacheLineBytes);
  piece.scale_bytes = bytes->scales;
  plan_.total_bytes = RoundUp(piece.scales_offset + piece.scale_bytes, kCacheLineBytes);
  plan_.pieces.push_back(std::move(piece));
  return Ok();
}

Result<TrunkPiece> TrunkPlanner::FindPiece(const std::string& stem, uint64_t rows, uint64_t cols,
                                           Keep keep, bool is_head_too) {
  TrunkPiece piece;
  SMOE_TRY_ASSIGN(piece.source, FindMatrix(stem, {rows, cols}));
  piece.name = *piece.source.codes.name;
  piece.rows = rows;
  piece.cols = cols;
  if (keep == Keep::kByPart) {
    piece.part = checkpoint::FindTrunkPart(stem, files_.facts.prefix, config_.num_hidden_layers);
    SMOE_CHECK(piece.part.has_value());
    if (is_head_too) piece.part = TrunkPart::kHead;
    if (piece.source.kind == LinearKind::kFloat &&
        !checkpoint::FormatOf(piece.source.codes.info->dtype)) {
      return Unsupported("{}: tensor {}: dtype {}, this build computes with F32, F16 and BF16",
                         PathOf(*piece.source.codes.info), *piece.source.codes.name,
                         tensor::DTypeName(piece.source.codes.info->dtype));
    }
    piece.format = checkpoint::ChooseFormat(options_.formats.Of(*piece.part), piece.source);
  } else if (piece.source.kind == LinearKind::kFloat) {
    piece.format =
        checkpoint::FormatOf(piece.source.codes.info->dtype).value_or(WeightFormat::kF32);
  }
  return piece;
}

Status TrunkPlanner::WantMatrix(const std::string& stem, uint64_t rows, uint64_t cols,
                                tensor::WeightView* to, Keep keep, tensor::WeightView* second) {
  SMOE_TRY_ASSIGN(TrunkPiece piece, FindPiece(stem, rows, cols, keep, second != nullptr));
  piece.matrix = to;
  piece.second_matrix = second;
  return Add(std::move(piece));
}

Status TrunkPlanner::WantVector(const std::string& name, uint64_t count, FloatVector* to) {
  TrunkPiece piece;
  SMOE_TRY_ASSIGN(piece.source, FindFloats(name, {count}));
  piece.name = *piece.source.codes.name;
  piece.rows = 1;
  piece.cols = count;
  piece.vector = to;
  return Add(std::move(piece));
}

Status TrunkPlanner::WantDense(const std::string& stem, uint64_t width, tensor::ExpertWeights* to) {
  SMOE_TRY(WantMatrix(stem + ".gate_proj", width, config_.hidden_size, &to->gate));
  SMOE_TRY(WantMatrix(stem + ".up_proj", width, config_.hidden_size, &to->up));
  return WantMatrix(stem + ".down_proj", config_.hidden_size, width, &to->down);
}

Status TrunkPlanner::WantAttention(const std::string& stem, LayerWeights* layer) {
  const uint64_t hidden = config_.hidden_size;
  const uint64_t q_width = uint64_t{config_.num_attention_heads} * config_.head_dim;
  const uint64_t kv_width = uint64_t{config_.num_key_value_heads} * config_.head_dim;
  const std::string attention = stem + "self_attn.";
  SMOE_TRY(WantMatrix(attention + "q_proj", q_width, hidden, &layer->q));
  SMOE_TRY(WantMatrix(attention + "k_proj", kv_width, hidden, &layer->k));
  SMOE_TRY(WantMatrix(attention + "v_proj", kv_width, hidden, &layer->v));
  SMOE_TRY(WantMatrix(attention + "o_proj", hidden, q_width, &layer->o));
  struct Bias {
    const char* name;
    uint64_t count;
    FloatVector* to;
  };
  const Bias biases[] = {{"q_proj.bias", q_width, &layer->q_bias},
                         {"k_proj.bias", kv_width, &layer->k_bias},
                         {"v_proj.bias", kv_width, &layer->v_bias},
                         {"o_proj.bias", hidden, &layer->o_bias}};
  // The tensors decide, not the flag; the first layer decides for all, so that a layer whose bias
  // was lost is missing a tensor.
  const std::string first = files_.facts.prefix + "layers.0.self_attn.";
  for (const Bias& bias : biases) {
    if (Has(first + bias.name)) SMOE_TRY(WantVector(attention + bias.name, bias.count, bias.to));
  }
  if (traits_.qk_norm == QkNorm::kNone) return Ok();
  const bool per_head = traits_.qk_norm == QkNorm::kPerHead;
  SMOE_TRY(WantVector(attention + "q_norm.weight", per_head ? config_.head_dim : q_width,
                      &layer->q_norm));
  return WantVector(attention + "k_norm.weight", per_head ? config_.head_dim : kv_width,
                    &layer->k_norm);
}

Status TrunkPlanner::WantFeedForward(const std::string& stem, LayerWeights* layer) {
  if (!layer->is_sparse) return WantDense(stem + "mlp", config_.intermediate_size, &layer->dense);
  SMOE_TRY(WantMatrix(stem + traits_.moe_block + ".gate", config_.num_experts, config_.hidden_size,
                      &layer->router, Keep::kExact));
  if (traits_.shared_expert == nullptr || config_.shared_expert_intermediate_size == 0) return Ok();
  SMOE_TRY(WantDense(stem + traits_.shared_expert, config_.shared_expert_intermediate_size,
                     &layer->dense));
  if (traits_.shared_expert_gate == nullptr) return Ok();
  return WantMatrix(stem + traits_.shared_expert_gate, 1, config_.hidden_size, &layer->shared_gate,
                    Keep::kExact);
}

// Left on the drive where that was asked for and a row of floats is all that a token needs of it.
Status TrunkPlanner::WantEmbedding(const std::string& stem, Trunk* trunk) {
  const bool is_tied = files_.facts.head_is_tied;
  SMOE_TRY_ASSIGN(TrunkPiece piece,
                  FindPiece(stem, config_.vocab_size, config_.hidden_size, Keep::kByPart, is_tied));
  if (options_.leaves_embedding && !is_tied && piece.source.kind == LinearKind::kFloat) {
    Use(piece);
    plan_.left = std::move(piece);
    return Ok();
  }
  piece.matrix = &trunk->embedding;
  if (is_tied) piece.second_matrix = &trunk->head;
  return Add(std::move(piece));
}

Status TrunkPlanner::WantEnds(Trunk* trunk) {
  const std::string& prefix = files_.facts.prefix;
  const uint64_t hidden = config_.hidden_size;
  const bool is_tied = files_.facts.head_is_tied;
  SMOE_TRY(WantEmbedding(prefix + "embed_tokens", trunk));
  if (!is_tied) SMOE_TRY(WantMatrix("lm_head", config_.vocab_size, hidden, &trunk->head));
  return WantVector(prefix + "norm.weight", hidden, &trunk->final_norm);
}

Status TrunkPlanner::WantAll(Trunk* trunk) {
  SMOE_TRY(WantEnds(trunk));
  const uint64_t hidden = config_.hidden_size;
  trunk->layers.resize(config_.num_hidden_layers);
  for (size_t index = 0; index < trunk->layers.size(); ++index) {
    LayerWeights* layer = &trunk->layers[index];
    layer->is_sparse = files_.facts.layer_is_sparse[index];
    const std::string stem = fmt::format("{}layers.{}.", files_.facts.prefix, index);
    SMOE_TRY(WantVector(stem + "input_layernorm.weight", hidden, &layer->input_norm));
    SMOE_TRY(WantVector(stem + "post_attention_layernorm.weight", hidden, &layer->post_norm));
    SMOE_TRY(WantAttention(stem, layer));
    SMOE_TRY(WantFeedForward(stem, layer));
  }
  return Ok();
}

Status TrunkPlanner::CheckNothingIsLeft() const {
  for (const auto& [name, info] : files_.trunk.tensors()) {
    if (used_.contains(name) || IsKnownExtra(name)) continue;
    if (files_.facts.head_is_tied && IsHead(name)) continue;
    const auto layer = checkpoint::ParseLayerName(name);
    const bool is_ours = layer && layer->prefix == files_.facts.prefix;
    if (is_ours && layer->layer_index >= config_.num_hidden_layers) continue;
    if (is_ours && checkpoint::ParseExpertName(name)) continue;
    return Unsupported(
        "{}: tensor {} {} belongs to nothing that this build computes for {}; results without it "
        "would be wrong",
        PathOf(info), name, tensor::ShapeText(info.shape), checkpoint::FamilyName(traits_.family));
  }
  return Ok();
}

}  // namespace

Result<TrunkPlan> PlanTrunk(const store::ModelFiles& files, const ArchTraits& traits,
                            const TrunkOptions& options, Trunk* trunk) {
  if (files.facts.layer_is_sparse.size() != files.config.num_hidden_layers) {
    return Corrupt("{}: {} layers found in the tensors, {} in config.json", files.path,
                   files.facts.layer_is_sparse.size(), files.config.num_hidden_layers);
  }
  return TrunkPlanner(files, traits, options).Plan(trunk);
}

}  // namespace smoe::model
