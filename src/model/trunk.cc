#include "model/trunk.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/expert_names.h"
#include "checkpoint/linear_weight.h"
#include "tensor/finite.h"

namespace smoe::model {

namespace {

using checkpoint::LinearKind;
using checkpoint::LinearWeight;
using checkpoint::TensorInfo;
using tensor::DType;
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

std::optional<WeightFormat> FormatOf(DType dtype) {
  if (dtype == DType::kF32) return WeightFormat::kF32;
  if (dtype == DType::kF16) return WeightFormat::kF16;
  if (dtype == DType::kBF16) return WeightFormat::kBF16;
  return std::nullopt;
}

// Two passes over the same list: Want() collects names, checks shapes and adds up sizes; Read()
// takes the memory once and fills it.
class TrunkLoader {
 public:
  TrunkLoader(const store::ModelFiles& files, const ArchTraits& traits)
      : files_(files), config_(files.config), traits_(traits) {}

  Result<std::unique_ptr<Trunk>> Load();

 private:
  struct Piece {
    std::string name;
    const TensorInfo* info = nullptr;
    std::optional<LinearWeight> quantised;  // info is that of its codes
    Shape shape;
    DType dtype = DType::kF32;  // in memory
    uint64_t offset = 0;        // in memory
    uint64_t count = 0;         // elements
    tensor::WeightView* matrix = nullptr;
    FloatVector* vector = nullptr;
    tensor::TensorView* table = nullptr;
  };

  bool Has(const std::string& name) const { return files_.trunk.Find(name) != nullptr; }
  Result<Piece*> Want(const std::string& name, const Shape& shape, std::optional<DType> convert_to);
  // Matrices are wanted by their names without ".weight".
  Result<Piece*> WantLinear(const std::string& stem, const Shape& shape,
                            std::optional<DType> convert_to);
  Result<Piece*> WantQuantised(const LinearWeight& weight, const Shape& shape);
  Piece* Add(Piece piece);
  Status WantMatrix(const std::string& stem, uint64_t rows, uint64_t cols, tensor::WeightView* to,
                    std::optional<DType> convert_to = std::nullopt);
  Status WantVector(const std::string& name, uint64_t count, FloatVector* to);
  Status WantDense(const std::string& stem, uint64_t width, tensor::ExpertWeights* to);

  Status WantAll(Trunk* trunk);
  Status WantAttention(const std::string& stem, LayerWeights* layer);
  Status WantFeedForward(const std::string& stem, LayerWeights* layer);
  Status CheckNothingIsLeft() const;

  Status Read(Trunk* trunk);
  Status ReadPiece(const Piece& piece, AlignedBuffer* memory,
                   std::vector<std::byte>* staging) const;
  Status ReadQuantised(const Piece& piece, std::span<float> target) const;
  std::string PathOf(const TensorInfo& info) const {
    return files_.trunk.files()[info.file_index].path();
  }

  const store::ModelFiles& files_;
  const checkpoint::ModelConfig& config_;
  const ArchTraits& traits_;
  std::vector<Piece> pieces_;
  std::set<std::string, std::less<>> used_;
  uint64_t total_bytes_ = 0;
};

Result<TrunkLoader::Piece*> TrunkLoader::Want(const std::string& name, const Shape& shape,
                                              std::optional<DType> convert_to) {
  const TensorInfo* info = files_.trunk.Find(name);
  if (info == nullptr) {
    return Corrupt("{}: tensor {} is missing, a {} model needs it as {}", files_.path, name,
                   checkpoint::FamilyName(traits_.family), tensor::ShapeText(shape));
  }
  if (info->shape != shape) {
    return Corrupt("{}: tensor {}: shape {} expected from config.json, {} found", PathOf(*info),
                   name, tensor::ShapeText(shape), tensor::ShapeText(info->shape));
  }
  if (convert_to ? !tensor::IsFloat(info->dtype) : !FormatOf(info->dtype)) {
    return Unsupported("{}: tensor {}: dtype {}, this build computes with F32, F16 and BF16",
                       PathOf(*info), name, tensor::DTypeName(info->dtype));
  }
  Piece piece;
  piece.name = name;
  piece.info = info;
  piece.shape = shape;
  piece.dtype = convert_to.value_or(info->dtype);
  return Add(std::move(piece));
}

Result<TrunkLoader::Piece*> TrunkLoader::WantQuantised(const LinearWeight& weight,
                                                       const Shape& shape) {
  const std::string& name = *weight.codes.name;
  if (weight.shape != shape) {
    return Corrupt("{}: tensor {}: shape {} expected from config.json, {} found",
                   PathOf(*weight.codes.info), name, tensor::ShapeText(shape),
                   tensor::ShapeText(weight.shape));
  }
  for (const checkpoint::NamedTensor& tensor : {weight.scales, weight.global_scale}) {
    if (tensor.name != nullptr) used_.insert(*tensor.name);
  }
  Piece piece;
  piece.name = name;
  piece.info = weight.codes.info;
  piece.quantised = weight;
  piece.shape = shape;
  return Add(std::move(piece));
}

TrunkLoader::Piece* TrunkLoader::Add(Piece piece) {
  piece.offset = total_bytes_;
  piece.count = *tensor::ElementCount(piece.shape);
  // Sizes are those of ranges inside real files, so sums and a few doublings cannot overflow.
  total_bytes_ =
      RoundUp(total_bytes_ + piece.count * tensor::DTypeBytes(piece.dtype), kCacheLineBytes);
  used_.insert(piece.name);
  pieces_.push_back(std::move(piece));
  return &pieces_.back();
}

Result<TrunkLoader::Piece*> TrunkLoader::WantLinear(const std::string& stem, const Shape& shape,
                                                    std::optional<DType> convert_to) {
  const std::string name = stem + ".weight";
  if (Has(name) || Has(name + "_packed")) {
    auto found = checkpoint::FindLinear(files_.trunk, stem, config_);
    if (!found) return While(files_.path, std::move(found));
    if (found->kind != LinearKind::kFloat) return WantQuantised(*found, shape);
  }
  return Want(name, shape, convert_to);
}

Status TrunkLoader::WantMatrix(const std::string& stem, uint64_t rows, uint64_t cols,
                               tensor::WeightView* to, std::optional<DType> convert_to) {
  SMOE_TRY_ASSIGN(Piece * piece, WantLinear(stem, {rows, cols}, convert_to));
  piece->matrix = to;
  return Ok();
}

Status TrunkLoader::WantVector(const std::string& name, uint64_t count, FloatVector* to) {
  SMOE_TRY_ASSIGN(Piece * piece, Want(name, {count}, DType::kF32));
  piece->vector = to;
  return Ok();
}

Status TrunkLoader::WantDense(const std::string& stem, uint64_t width, tensor::ExpertWeights* to) {
  SMOE_TRY(WantMatrix(stem + ".gate_proj", width, config_.hidden_size, &to->gate));
  SMOE_TRY(WantMatrix(stem + ".up_proj", width, config_.hidden_size, &to->up));
  return WantMatrix(stem + ".down_proj", config_.hidden_size, width, &to->down);
}

Status TrunkLoader::WantAttention(const std::string& stem, LayerWeights* layer) {
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

Status TrunkLoader::WantFeedForward(const std::string& stem, LayerWeights* layer) {
  if (!layer->is_sparse) return WantDense(stem + "mlp", config_.intermediate_size, &layer->dense);
  SMOE_TRY(WantMatrix(stem + traits_.moe_block + ".gate", config_.num_experts, config_.hidden_size,
                      &layer->router, DType::kF32));
  if (traits_.shared_expert == nullptr || config_.shared_expert_intermediate_size == 0) return Ok();
  SMOE_TRY(WantDense(stem + traits_.shared_expert, config_.shared_expert_intermediate_size,
                     &layer->dense));
  if (traits_.shared_expert_gate == nullptr) return Ok();
  return WantMatrix(stem + traits_.shared_expert_gate, 1, config_.hidden_size, &layer->shared_gate,
                    DType::kF32);
}

Status TrunkLoader::WantAll(Trunk* trunk) {
  const std::string& prefix = files_.facts.prefix;
  const uint64_t hidden = config_.hidden_size;
  SMOE_TRY_ASSIGN(Piece * embedding,
                  Want(prefix + "embed_tokens.weight", {config_.vocab_size, hidden}, std::nullopt));
  embedding->table = &trunk->embedding;
  if (files_.facts.head_is_tied) {
    embedding->matrix = &trunk->head;
  } else {
    SMOE_TRY(WantMatrix("lm_head", config_.vocab_size, hidden, &trunk->head));
  }
  SMOE_TRY(WantVector(prefix + "norm.weight", hidden, &trunk->final_norm));
  trunk->layers.resize(config_.num_hidden_layers);
  for (size_t index = 0; index < trunk->layers.size(); ++index) {
    LayerWeights* layer = &trunk->layers[index];
    layer->is_sparse = files_.facts.layer_is_sparse[index];
    const std::string stem = fmt::format("{}layers.{}.", prefix, index);
    SMOE_TRY(WantVector(stem + "input_layernorm.weight", hidden, &layer->input_norm));
    SMOE_TRY(WantVector(stem + "post_attention_layernorm.weight", hidden, &layer->post_norm));
    SMOE_TRY(WantAttention(stem, layer));
    SMOE_TRY(WantFeedForward(stem, layer));
  }
  return Ok();
}

Status TrunkLoader::CheckNothingIsLeft() const {
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

Status TrunkLoader::ReadPiece(const Piece& piece, AlignedBuffer* memory,
                              std::vector<std::byte>* staging) const {
  const uint64_t source_bytes = tensor::DTypeBytes(piece.info->dtype);
  const uint64_t step = kTrunkPieceBytes / source_bytes;
  const uint64_t stored_bytes = tensor::DTypeBytes(piece.dtype);
  const bool converts = piece.dtype != piece.info->dtype;
  for (uint64_t first = 0; first < piece.count; first += step) {
    const uint64_t count = std::min(step, piece.count - first);
    const MutableBytes target =
        memory->bytes().subspan(piece.offset + first * stored_bytes, count * stored_bytes);
    const MutableBytes source =
        converts ? MutableBytes(*staging).first(count * source_bytes) : target;
    SMOE_TRY(files_.trunk.Read(*piece.info, first * source_bytes, source));
    if (converts) {
      tensor::ToF32({piece.info->dtype, {count}, source}, 0,
                    memory->As<float>().subspan(piece.offset / sizeof(float) + first, count));
    }
    if (const std::optional<uint64_t> bad = tensor::FindNonFinite(piece.dtype, target)) {
      return Corrupt("{}: tensor {}: element {} is NaN or infinite, weights must be finite",
                     PathOf(*piece.info), piece.name, first + *bad);
    }
  }
  return Ok();
}

Status TrunkLoader::ReadQuantised(const Piece& piece, std::span<float> target) const {
  const uint64_t cols = piece.shape[1];
  const uint64_t step = std::max<uint64_t>(kTrunkPieceBytes / sizeof(float) / cols, 1) * cols;
  for (uint64_t first = 0; first < piece.count; first += step) {
    const std::span<float> part = target.subspan(first, std::min(step, piece.count - first));
    const std::string path = PathOf(*piece.info);
    auto read = checkpoint::ReadLinearRows(files_.trunk, *piece.quantised, first / cols, part);
    if (!read) return While(path, std::move(read));
    const auto bad = tensor::FindNonFinite(DType::kF32, std::as_bytes(part));
    if (!bad) continue;
    return Corrupt("{}: tensor {}: element {} is NaN or infinite, weights must be finite", path,
                   piece.name, first + *bad);
  }
  return Ok();
}

Status TrunkLoader::Read(Trunk* trunk) {
  SMOE_TRY_ASSIGN(trunk->memory, AlignedBuffer::Create(total_bytes_, "trunk"));
  std::vector<std::byte> staging(kTrunkPieceBytes);
  for (const Piece& piece : pieces_) {
    const MutableBytes memory =
        trunk->memory.bytes().subspan(piece.offset, piece.count * tensor::DTypeBytes(piece.dtype));
    if (piece.quantised) {
      SMOE_TRY(ReadQuantised(
          piece, trunk->memory.As<float>().subspan(piece.offset / sizeof(float), piece.count)));
    } else {
      SMOE_TRY(ReadPiece(piece, &trunk->memory, &staging));
    }
    if (piece.vector != nullptr) {
      *piece.vector = trunk->memory.As<float>().subspan(piece.offset / sizeof(float), piece.count);
    }
    if (piece.table != nullptr) *piece.table = {piece.dtype, piece.shape, memory};
    if (piece.matrix != nullptr) {
      piece.matrix->format = *FormatOf(piece.dtype);
      piece.matrix->rows = static_cast<uint32_t>(piece.shape[0]);
      piece.matrix->cols = static_cast<uint32_t>(piece.shape[1]);
      piece.matrix->data = memory;
    }
  }
  return Ok();
}

Result<std::unique_ptr<Trunk>> TrunkLoader::Load() {
  auto trunk = std::make_unique<Trunk>();
  SMOE_TRY(WantAll(trunk.get()));
  SMOE_TRY(CheckNothingIsLeft());
  SMOE_TRY(Read(trunk.get()));
  return trunk;
}

}  // namespace

Result<std::unique_ptr<Trunk>> LoadTrunk(const store::ModelFiles& files, const ArchTraits& traits) {
  if (files.facts.layer_is_sparse.size() != files.config.num_hidden_layers) {
    return Corrupt("{}: {} layers found in the tensors, {} in config.json", files.path,
                   files.facts.layer_is_sparse.size(), files.config.num_hidden_layers);
  }
  return TrunkLoader(files, traits).Load();
}

}  // namespace smoe::model
