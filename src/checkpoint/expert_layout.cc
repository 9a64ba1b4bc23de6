#include "checkpoint/expert_layout.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "checkpoint/name_list.h"

namespace smoe::checkpoint {

namespace {

using tensor::DType;
using tensor::Shape;

// Suffixes of tensors that hold the elements; all others hold scales, biases and the like.
constexpr std::string_view kElementSuffixes[] = {"", ".weight", "_blocks", ".weight_packed"};

// All tensors of one layer that share a naming and a stem.
struct Group {
  ExpertNaming naming = ExpertNaming::kUnknown;
  bool is_mtp = false;
  std::string stem;
  std::optional<std::string> element_suffix;
  bool has_biases = false;
  // By expert, or a single entry where all experts share a tensor.
  std::vector<std::array<const TensorInfo*, kExpertPartCount>> parts;
  std::string first_name;

  bool is_per_expert() const {
    return naming == ExpertNaming::kGateProj || naming == ExpertNaming::kW123;
  }
  const TensorInfo* part(size_t index, ExpertPart part_kind) const {
    return parts[index][static_cast<size_t>(part_kind)];
  }
  const std::string& suffix() const { return *element_suffix; }
  std::string TensorName(size_t expert, ExpertPart part_kind) const {
    const std::string_view word = PartWord(naming, part_kind);
    return is_per_expert() ? fmt::format("{}.{}.{}{}", stem, expert, word, suffix())
                           : fmt::format("{}.{}{}", stem, word, suffix());
  }
};

// Suffixes of scales and biases, which belong to the elements.
constexpr std::string_view kCompanionSuffixes[] = {"_scales",
                                                   "_bias",
                                                   ".bias",
                                                   ".weight_scale_inv",
                                                   ".weight_scale",
                                                   ".weight_scale_2",
                                                   ".weight_global_scale",
                                                   ".input_scale",
                                                   ".input_global_scale"};

template <size_t kCount>
bool IsOneOf(const std::string_view (&list)[kCount], std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

bool HoldsElements(std::string_view suffix) { return IsOneOf(kElementSuffixes, suffix); }
bool IsKnownSuffix(std::string_view suffix) {
  return HoldsElements(suffix) || IsOneOf(kCompanionSuffixes, suffix);
}

// [rows][cols] of a two-dimensional tensor in elements, nibbles counted.
struct Extent {
  uint64_t rows = 0;
  uint64_t cols = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

}  // namespace

class ExpertLayoutBuilder {
 public:
  ExpertLayoutBuilder(const TensorFiles& files, const ModelConfig& config)
      : files_(files), config_(config) {
    layout_.fp8_block_rows_ = config.fp8_block_rows;
    layout_.fp8_block_cols_ = config.fp8_block_cols;
  }

  Result<ExpertLayout> Build() {
    for (const auto& [name, info] : files_.tensors()) SMOE_TRY(Collect(name, info));
    if (layers_.empty()) return NothingFound();
    for (const auto& [layer_index, groups] : layers_) SMOE_TRY(FinishLayer(layer_index, groups));
    return std::move(layout_);
  }

 private:
  Status Collect(const std::string& name, const TensorInfo& info) {
    const auto parsed = ParseExpertName(name);
    if (!parsed) return Ok();
    uint32_t layer_index = parsed->layer.layer_index;
    if (parsed->layer.is_mtp_module) layer_index += config_.num_hidden_layers;
    Group* group = FindGroup(layer_index, *parsed, name);
    if (parsed->part == ExpertPart::kUnknown || !IsKnownSuffix(parsed->suffix)) {
      layout_.unknown_tensors_.push_back(name);
      return Ok();
    }
    if (parsed->suffix == "_bias" || parsed->suffix == ".bias") group->has_biases = true;
    if (!HoldsElements(parsed->suffix)) return Ok();
    const size_t index = parsed->expert.value_or(0);
    if (group->parts.size() <= index) group->parts.resize(index + 1);
    if (!group->element_suffix) group->element_suffix = parsed->suffix;
    const TensorInfo*& place = group->parts[index][static_cast<size_t>(parsed->part)];
    if (place != nullptr || *group->element_suffix != parsed->suffix) {
      return Corrupt("tensor {}: layer {} has the same experts as {}: expected one of the two",
                     name, layer_index, group->first_name);
    }
    place = &info;
    return Ok();
  }

  Group* FindGroup(uint32_t layer_index, const ExpertName& name, const std::string& tensor) {
    std::vector<Group>& groups = layers_[layer_index];
    // Parts we cannot name join the others below their stem.
    for (Group& group : groups) {
      const bool fits = group.naming == name.naming || name.naming == ExpertNaming::kUnknown ||
                        group.naming == ExpertNaming::kUnknown;
      if (group.stem != name.stem || !fits) continue;
      if (group.naming == ExpertNaming::kUnknown) group.naming = name.naming;
      return &group;
    }
    Group group;
    group.naming = name.naming;
    group.stem = name.stem;
    group.first_name = tensor;
    group.is_mtp = name.layer.is_mtp_module || layer_index >= config_.num_hidden_layers;
    groups.push_back(std::move(group));
    return &groups.back();
  }

  Unexpected NothingFound() const {
    std::vector<std::string> names;
    for (const auto& [name, info] : files_.tensors()) {
      if (name.find("mlp") == std::string::npos && name.find("moe") == std::string::npos) continue;
      names.push_back(name);
      if (names.size() == kNamesListedMax) break;
    }
    return Unsupported(
        "no routed experts among {} tensors{}{}; known are experts.E.gate_proj, experts.E.w1, "
        "experts.gate_up_proj, switch_mlp.gate_proj, input_linear",
        files_.tensors().size(), names.empty() ? "" : ", as in ", ListNames(names));
  }

  Status FinishLayer(uint32_t layer_index, const std::vector<Group>& groups) {
    if (groups.size() > 1) {
      return Corrupt("layer {}: experts are there twice, as {} and as {}: expected one of the two",
                     layer_index, groups[0].first_name, groups[1].first_name);
    }
    const Group& group = groups[0];
    if (!group.element_suffix || group.naming == ExpertNaming::kUnknown) {
      return Unsupported("tensor {}: no expert naming that is known here", group.first_name);
    }
    ExpertLayout::Source source{.naming = group.naming,
                                .stem = group.stem,
                                .suffix = group.suffix(),
                                .is_split = true,
                                .is_transposed = false,
                                .is_interleaved = false};
    uint32_t expert_count = 0;
    SMOE_TRY(group.is_per_expert() ? FinishPerExpert(group, &expert_count)
                                   : FinishStacked(group, &source, &expert_count));
    if (config_.num_experts != 0 && expert_count != config_.num_experts) {
      return Corrupt("layer {}: {} experts in the tensors ({}), the config says {}", layer_index,
                     expert_count, group.first_name, config_.num_experts);
    }
    if (layout_.naming_.empty()) layout_.naming_ = Label(group, source);
    layout_.has_biases_ = layout_.has_biases_ || group.has_biases;
    layout_.layers_.push_back(
        {.layer_index = layer_index, .expert_count = expert_count, .is_mtp = group.is_mtp});
    layout_.sources_.push_back(std::move(source));
    return Ok();
  }

  static std::string Label(const Group& group, const ExpertLayout::Source& source) {
    if (group.naming == ExpertNaming::kGateProj) return "per-expert gate_proj/up_proj/down_proj";
    if (group.naming == ExpertNaming::kW123) return "per-expert w1/w3/w2";
    if (source.is_split) {
      return fmt::format("stacked gate_proj/up_proj/down_proj [E,{}]",
                         source.is_transposed ? "H,I" : "I,H");
    }
    return fmt::format("stacked {} [E,{}]{}", PartWord(group.naming, ExpertPart::kGateUp),
                       source.is_transposed ? "H,2I" : "2I,H",
                       source.is_interleaved ? ", gate and up interleaved" : "");
  }

  // Rows and columns of a tensor's last two dimensions, and the encoding its type implies.
  Result<Extent> ExtentOf(const std::string& name, const TensorInfo& info, std::string_view suffix,
                          size_t rank) {
    Shape shape = info.shape;
    ExpertEncoding encoding = ExpertEncoding::kFloat;
    if (suffix == "_blocks") {
      // [..., rows, cols / 32, 16] bytes of two elements each.
      if (info.dtype != DType::kU8 || shape.size() != rank + 1 || shape.back() != 16) {
        return Corrupt("tensor {}: {} {}, expected U8 [..., rows, blocks, 16]", name,
                       tensor::DTypeName(info.dtype), tensor::ShapeText(shape));
      }
      shape.pop_back();
      shape.back() *= 32;
      encoding = ExpertEncoding::kMxfp4;
      SMOE_TRY(CheckMxfp4Scales(name, shape));
    } else if (suffix == ".weight_packed" || IsNvfp4(name, info)) {
      if (!shape.empty()) shape.back() *= 2;
      encoding = ExpertEncoding::kNvfp4;
    } else if (info.dtype == DType::kF8E4M3) {
      encoding = ExpertEncoding::kFp8Block;
    } else if (!tensor::IsFloat(info.dtype)) {
      return Unsupported(
          "tensor {}: elements of type {}, experts are read from floats, FP8 with "
          "scales, MXFP4 and NVFP4",
          name, tensor::DTypeName(info.dtype));
    }
    if (shape.size() != rank) {
      return Corrupt("tensor {}: shape {}, expected {} dimensions", name,
                     tensor::ShapeText(info.shape), rank);
    }
    const Extent extent{shape[rank - 2], shape[rank - 1]};
    if (encoding == ExpertEncoding::kFp8Block) SMOE_TRY(CheckFp8Scales(name, extent, rank));
    SMOE_TRY(MergeEncoding(name, encoding));
    return extent;
  }

  bool HasSibling(const std::string& name, const char* ending) const {
    return files_.Find(name + ending) != nullptr;
  }

  // One scale that is missing does not make it another encoding: who reads it will say so.
  bool IsNvfp4(const std::string& name, const TensorInfo& info) const {
    return info.dtype == DType::kU8 &&
           (HasSibling(name, "_scale_2") || HasSibling(name, "_scale") ||
            HasSibling(name, "_global_scale"));
  }

  Status MergeEncoding(const std::string& name, ExpertEncoding encoding) {
    if (!has_encoding_) {
      has_encoding_ = true;
      layout_.encoding_ = encoding;
    }
    if (layout_.encoding_ == encoding) return Ok();
    const auto is_plain = [](ExpertEncoding e) {
      return e == ExpertEncoding::kFloat || e == ExpertEncoding::kFp8Block;
    };
    if (!is_plain(layout_.encoding_) || !is_plain(encoding)) {
      return Unsupported("tensor {}: another encoding than the experts before it", name);
    }
    layout_.encoding_ = ExpertEncoding::kFp8Block;
    return Ok();
  }

  Status CheckMxfp4Scales(const std::string& name, const Shape& elements) const {
    constexpr std::string_view kBlocks = "_blocks";
    const std::string scales_name = name.substr(0, name.size() - kBlocks.size()) + "_scales";
    const TensorInfo* scales = files_.Find(scales_name);
    if (scales == nullptr) return Corrupt("tensor {}: missing, {} needs it", scales_name, name);
    Shape wanted = elements;
    wanted.back() /= 32;
    if (tensor::DTypeBytes(scales->dtype) != 1 || scales->shape != wanted) {
      return Corrupt("tensor {}: {} {}, expected U8 {}", scales_name,
                     tensor::DTypeName(scales->dtype), tensor::ShapeText(scales->shape),
                     tensor::ShapeText(wanted));
    }
    return Ok();
  }

  Status CheckFp8Scales(const std::string& name, const Extent& extent, size_t rank) const {
    const std::string scales_name = name + "_scale_inv";
    const TensorInfo* scales = files_.Find(scales_name);
    if (scales == nullptr) return Corrupt("tensor {}: missing, {} needs it", scales_name, name);
    if (rank != 2) return Unsupported("tensor {}: FP8 experts in one tensor", name);
    const Shape wanted = {CeilDiv(extent.rows, config_.fp8_block_rows),
                          CeilDiv(extent.cols, config_.fp8_block_cols)};
    if (!tensor::IsFloat(scales->dtype) || scales->shape != wanted) {
      return Corrupt("tensor {}: {} {}, expected F32 {} for blocks of {} x {}", scales_name,
                     tensor::DTypeName(scales->dtype), tensor::ShapeText(scales->shape),
                     tensor::ShapeText(wanted), config_.fp8_block_rows, config_.fp8_block_cols);
    }
    return Ok();
  }

  Status FinishPerExpert(const Group& group, uint32_t* expert_count) {
    for (size_t expert = 0; expert < group.parts.size(); ++expert) {
      for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
        const std::string name = group.TensorName(expert, part);
        const TensorInfo* info = group.part(expert, part);
        if (info == nullptr) {
          return Corrupt("tensor {}: missing, other experts of the layer are there", name);
        }
        SMOE_TRY_ASSIGN(const Extent extent, ExtentOf(name, *info, group.suffix(), 2));
        SMOE_TRY(MergeSizes(name,
                            part == ExpertPart::kDown ? Extent{extent.cols, extent.rows} : extent));
      }
    }
    *expert_count = static_cast<uint32_t>(group.parts.size());
    // Fewer than the config says: name the first that is missing.
    if (config_.num_experts > *expert_count) {
      return Corrupt("tensor {}: missing, the config says {} experts and {} are there",
                     group.TensorName(*expert_count, ExpertPart::kGate), config_.num_experts,
                     *expert_count);
    }
    return Ok();
  }

  // `extent`: of one gate or up, [I][H]; all experts must agree with the first and the config.
  Status MergeSizes(const std::string& name, const Extent& extent) {
    if (layout_.hidden_size_ == 0) {
      if (extent.cols != config_.hidden_size) {
        return Corrupt("tensor {}: hidden size {}, the config says {}", name, extent.cols,
                       config_.hidden_size);
      }
      const bool is_known = config_.family != Family::kUnknown;
      if (is_known ? extent.rows != config_.moe_intermediate_size
                   : extent.rows == 0 || extent.rows > kIntermediateSizeMax) {
        return Corrupt("tensor {}: expert width {}, the config says {}", name, extent.rows,
                       config_.moe_intermediate_size);
      }
      layout_.hidden_size_ = config_.hidden_size;
      layout_.intermediate_size_ = static_cast<uint32_t>(extent.rows);
    }
    if (extent == Extent{layout_.intermediate_size_, layout_.hidden_size_}) return Ok();
    return Corrupt("tensor {}: {} x {} for width x hidden, other experts have {} x {}", name,
                   extent.rows, extent.cols, layout_.intermediate_size_, layout_.hidden_size_);
  }

  Status FinishStacked(const Group& group, ExpertLayout::Source* source, uint32_t* expert_count) {
    const TensorInfo* both = group.part(0, ExpertPart::kGateUp);
    const bool is_apart =
        group.part(0, ExpertPart::kGate) != nullptr || group.part(0, ExpertPart::kUp) != nullptr;
    source->is_split = is_apart;
    if (both != nullptr && is_apart) {
      return Corrupt("{}: gate and up are there together and apart: expected one of the two",
                     group.stem);
    }
    const ExpertPart gate_part = source->is_split ? ExpertPart::kGate : ExpertPart::kGateUp;
    std::vector<ExpertPart> wanted = {gate_part, ExpertPart::kDown};
    if (source->is_split) wanted.push_back(ExpertPart::kUp);
    std::vector<Extent> extents;
    uint64_t count = 0;
    for (const ExpertPart part : wanted) {
      const std::string name = group.TensorName(0, part);
      const TensorInfo* info = group.part(0, part);
      if (info == nullptr)
        return Corrupt("tensor {}: missing, {} is there", name, group.first_name);
      SMOE_TRY_ASSIGN(const Extent extent, ExtentOf(name, *info, group.suffix(), 3));
      extents.push_back(extent);
      if (count != 0 && info->shape[0] != count) {
        return Corrupt("tensor {}: {} experts, {} has {}", name, info->shape[0], group.first_name,
                       count);
      }
      count = info->shape[0];
    }
    if (count == 0 || count > kExpertCountMax) {
      return Corrupt("tensor {}: {} experts, expected 1 to {}", group.TensorName(0, gate_part),
                     count, kExpertCountMax);
    }
    *expert_count = static_cast<uint32_t>(count);
    source->is_interleaved = !source->is_split && (config_.family == Family::kGptOss ||
                                                   layout_.encoding_ == ExpertEncoding::kMxfp4);
    SMOE_TRY(OrientStacked(group, extents[0], extents[1], source));
    if (source->is_split)
      return MergeSizes(group.TensorName(0, ExpertPart::kUp),
                        Oriented(extents[2], source->is_transposed));
    return Ok();
  }

  static Extent Oriented(const Extent& extent, bool is_transposed) {
    return is_transposed ? Extent{extent.cols, extent.rows} : extent;
  }

  // Decides [out][in] or [in][out] from gate (or gate and up together) and down.
  Status OrientStacked(const Group& group, const Extent& gate, const Extent& down,
                       ExpertLayout::Source* source) {
    const uint64_t hidden = config_.hidden_size;
    const bool gate_plain = gate.cols == hidden && down.rows == hidden;
    const bool gate_turned = gate.rows == hidden && down.cols == hidden;
    // Square in both: the shapes cannot tell, the family can.
    source->is_transposed = gate_turned && (!gate_plain || StoresTransposed());
    if (layout_.encoding_ == ExpertEncoding::kMxfp4) source->is_transposed = false;
    const ExpertPart part = source->is_split ? ExpertPart::kGate : ExpertPart::kGateUp;
    Extent single = Oriented(gate, source->is_transposed);
    if (!source->is_split) {
      if (single.rows % 2 != 0) {
        return Corrupt("tensor {}: {} rows for gate and up together, expected an even number",
                       group.TensorName(0, part), single.rows);
      }
      single.rows /= 2;
    }
    SMOE_TRY(MergeSizes(group.TensorName(0, part), single));
    const Extent turned = Oriented(down, source->is_transposed);
    return MergeSizes(group.TensorName(0, ExpertPart::kDown), {turned.cols, turned.rows});
  }

  // Source: transformers 5.24 modeling_gpt_oss.py and modeling_llama4.py, the experts' parameters.
  bool StoresTransposed() const {
    return config_.family == Family::kGptOss || config_.model_type.starts_with("llama4");
  }

  const TensorFiles& files_;
  const ModelConfig& config_;
  std::map<uint32_t, std::vector<Group>> layers_;
  bool has_encoding_ = false;
  ExpertLayout layout_;
};

const char* ProjName(Proj proj) {
  constexpr const char* kNames[] = {"gate", "up", "down"};
  return kNames[static_cast<size_t>(proj)];
}

Result<ExpertLayout> ExpertLayout::Detect(const TensorFiles& files, const ModelConfig& config) {
  return ExpertLayoutBuilder(files, config).Build();
}

MatrixSlice ExpertLayout::Slice(uint32_t layer_index, uint32_t expert_index, Proj proj) const {
  const auto layer =
      std::lower_bound(layers_.begin(), layers_.end(), layer_index,
                       [](const ExpertLayer& a, uint32_t index) { return a.layer_index < index; });
  SMOE_CHECK(layer != layers_.end() && layer->layer_index == layer_index);
  SMOE_CHECK(expert_index < layer->expert_count);
  const Source& source = sources_[static_cast<size_t>(layer - layers_.begin())];

  const bool is_down = proj == Proj::kDown;
  MatrixSlice slice;
  slice.rows = is_down ? hidden_size_ : intermediate_size_;
  slice.cols = is_down ? intermediate_size_ : hidden_size_;
  slice.row_stride = slice.cols;
  slice.col_stride = 1;
  if (source.naming == ExpertNaming::kGateProj || source.naming == ExpertNaming::kW123) {
    slice.tensor_name =
        fmt::format("{}.{}.{}{}", source.stem, expert_index,
                    PartWord(source.naming, static_cast<ExpertPart>(proj)), source.suffix);
    return slice;
  }
  const bool is_shared = !is_down && !source.is_split;  // gate and up in one matrix
  const ExpertPart part = is_shared ? ExpertPart::kGateUp : static_cast<ExpertPart>(proj);
  slice.tensor_name =
      fmt::format("{}.{}{}", source.stem, PartWord(source.naming, part), source.suffix);
  // Of the whole matrix of one expert, as if it were [out][in].
  const uint64_t matrix_rows = uint64_t{slice.rows} * (is_shared ? 2 : 1);
  slice.first = uint64_t{expert_index} * matrix_rows * slice.cols;
  const uint64_t row_step = source.is_transposed ? 1 : slice.cols;
  slice.col_stride = source.is_transposed ? matrix_rows : 1;
  slice.row_stride = row_step;
  if (is_shared && source.is_interleaved) slice.row_stride = 2 * row_step;
  if (is_shared && proj == Proj::kUp) {
    slice.first += row_step * (source.is_interleaved ? 1 : slice.rows);
  }
  return slice;
}

bool ExpertLayout::IsExpertTensor(std::string_view name) const {
  return ParseExpertName(name).has_value();
}

}  // namespace smoe::checkpoint
