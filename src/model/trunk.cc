#include "model/trunk.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "tensor/finite.h"

namespace smoe::model {

namespace {

using checkpoint::TensorInfo;
using tensor::DType;
using tensor::Shape;
using tensor::WeightFormat;

// Part of a name that no family of ours runs: vision towers, multi-token prediction, and buffers
// that old checkpoints stored although they follow from the config.
bool IsKnownExtra(std::string_view name) {
  for (const std::string_view start : {"mtp.", "model.mtp.", "visual.", "model.visual.",
                                       "vision_tower.", "multi_modal_projector."}) {
    if (name.starts_with(start)) return true;
  }
  return name.ends_with("rotary_emb.inv_freq");
}

bool IsRoutedExpert(std::string_view name) {
  return name.find(".experts.") != std::string_view::npos ||
         name.find(".switch_mlp.") != std::string_view::npos;
}

// The N of PREFIXlayers.N.rest; nullopt if the name is not of that form.
std::optional<uint64_t> LayerOf(std::string_view name, std::string_view prefix) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  uint64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return layer;
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
    DType dtype = DType::kF32;  // in memory
    uint64_t offset = 0;        // in memory
    uint64_t count = 0;         // elements
    tensor::WeightView* matrix = nullptr;
    FloatVector* vector = nullptr;
    tensor::TensorView* table = nullptr;
  };

  bool Has(const std::string& name) const { return files_.trunk.Find(name) != nullptr; }
  Result<Piece*> Want(const std::string& name, const Shape& shape, std::optional<DType> convert_to);
  Status WantMatrix(const std::string& name, uint64_t rows, uint64_t cols, tensor::WeightView* to);
  Status WantF32Matrix(const std::string& name, uint64_t rows, uint64_t cols,
                       tensor::WeightView* to);
  Status WantVector(const std::string& name, uint64_t count, FloatVector* to);
  Status WantDense(const std::string& stem, uint64_t width, tensor::ExpertWeights* to);

  Status WantAll(Trunk* trunk);
  Status WantAttention(const std::string& stem, LayerWeights* layer);
  Status WantFeedForward(const std::string& stem, LayerWeights* layer);
  Status CheckNothingIsLeft() const;

  Status Read(Trunk* trunk);
  Status ReadPiece(const Piece& piece, AlignedBuffer* memory,
                   std::vector<std::byte>* staging) const;
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
  piece.dtype = convert_to.value_or(info->dtype);
  piece.offset = total_bytes_;
  piece.count = info->size / tensor::DTypeBytes(info->dtype);
  // Sizes are those of ranges inside real files, so sums and a doubling cannot overflow.
  total_bytes_ =
      RoundUp(total_bytes_ + piece.count * tensor::DTypeBytes(piece.dtype), kCacheLineBytes);
  used_.insert(name);
  pieces_.push_back(std::move(piece));
  return &pieces_.back();
}

Status TrunkLoader::WantMatrix(const std::string& name, uint64_t rows, uint64_t cols,
                               tensor::WeightView* to) {
  SMOE_TRY_ASSIGN(Piece * piece, Want(name, {rows, cols}, std::nullopt));
  piece->matrix = to;
  return Ok();
}

Status TrunkLoader::WantF32Matrix(const std::string& name, uint64_t rows, uint64_t cols,
                                  tensor::WeightView* to) {
  SMOE_TRY_ASSIGN(Piece * piece, Want(name, {rows, cols}, DType::kF32));
  piece->matrix = to;
  return Ok();
}

Status TrunkLoader::WantVector(const std::string& name, uint64_t count, FloatVector* to) {
  SMOE_TRY_ASSIGN(Piece * piece, Want(name, {count}, DType::kF32));
  piece->vector = to;
  return Ok();
}

Status TrunkLoader::WantDense(const std::string& stem, uint64_t width, tensor::ExpertWeights* to) {
  SMOE_TRY(WantMatrix(stem + ".gate_proj.weight", width, config_.hidden_size, &to->gate));
  SMOE_TRY(WantMatrix(stem + ".up_proj.weight", width, config_.hidden_size, &to->up));
  return WantMatrix(stem + ".down_proj.weight", config_.hidden_size, width, &to->down);
}

Status TrunkLoader::WantAttention(const std::string& stem, LayerWeights* layer) {
  const uint64_t hidden = config_.hidden_size;
  const uint64_t q_width = uint64_t{config_.num_attention_heads} * config_.head_dim;
  const uint64_t kv_width = uint64_t{config_.num_key_value_heads} * config_.head_dim;
  const std::string attention = stem + "self_attn.";
  SMOE_TRY(WantMatrix(attention + "q_proj.weight", q_width, hidden, &layer->q));
  SMOE_TRY(WantMatrix(attention + "k_proj.weight", kv_width, hidden, &layer->k));
  SMOE_TRY(WantMatrix(attention + "v_proj.weight", kv_width, hidden, &layer->v));
  SMOE_TRY(WantMatrix(attention + "o_proj.weight", hidden, q_width, &layer->o));
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
  SMOE_TRY(WantF32Matrix(stem + traits_.moe_block + ".gate.weight", config_.num_experts,
                         config_.hidden_size, &layer->router));
  if (traits_.shared_expert == nullptr || config_.shared_expert_intermediate_size == 0) return Ok();
  SMOE_TRY(WantDense(stem + traits_.shared_expert, config_.shared_expert_intermediate_size,
                     &layer->dense));
  if (traits_.shared_expert_gate == nullptr) return Ok();
  return WantF32Matrix(stem + traits_.shared_expert_gate + ".weight", 1, config_.hidden_size,
                       &layer->shared_gate);
}

Status TrunkLoader::WantAll(Trunk* trunk) {
  const std::string& prefix = files_.facts.prefix;
  const uint64_t hidden = config_.hidden_size;
  SMOE_TRY_ASSIGN(Piece * embedding,
                  Want(prefix + "embed_tokens.weight", {config_.vocab_size, hidden}, std::nullopt));
  embedding->table = &trunk->embedding;
  if (files_.facts.head_is_tied) {
    embedding->matrix = &trunk->head;
    used_.insert("lm_head.weight");  // a copy that tied models may carry: never read
  } else {
    SMOE_TRY(WantMatrix("lm_head.weight", config_.vocab_size, hidden, &trunk->head));
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
    const std::optional<uint64_t> layer = LayerOf(name, files_.facts.prefix);
    if (layer && *layer >= config_.num_hidden_layers) continue;
    if (layer && IsRoutedExpert(name)) continue;
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

Status TrunkLoader::Read(Trunk* trunk) {
  SMOE_TRY_ASSIGN(trunk->memory, AlignedBuffer::Create(total_bytes_, "trunk"));
  std::vector<std::byte> staging(kTrunkPieceBytes);
  for (const Piece& piece : pieces_) {
    const MutableBytes memory =
        trunk->memory.bytes().subspan(piece.offset, piece.count * tensor::DTypeBytes(piece.dtype));
    SMOE_TRY(ReadPiece(piece, &trunk->memory, &staging));
    if (piece.vector != nullptr) {
      *piece.vector = trunk->memory.As<float>().subspan(piece.offset / sizeof(float), piece.count);
    }
    if (piece.table != nullptr) *piece.table = {piece.dtype, piece.info->shape, memory};
    if (piece.matrix != nullptr) {
      piece.matrix->format = *FormatOf(piece.dtype);
      piece.matrix->rows = static_cast<uint32_t>(piece.info->shape[0]);
      piece.matrix->cols = static_cast<uint32_t>(piece.info->shape[1]);
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
