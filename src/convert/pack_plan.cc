#include "convert/pack_plan.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "checkpoint/name_list.h"

namespace smoe::convert {
namespace {

namespace records = store::records;
using checkpoint::NamedTensor;

// In the manifest: a checksum of a record, and everything else without the files' own entries.
constexpr uint64_t kManifestBytesPerRecord = 32;
constexpr uint64_t kManifestBytesBase = uint64_t{16} << 10;

bool IsMoved(const checkpoint::Checkpoint& checkpoint) {
  return checkpoint.experts.encoding() == checkpoint::ExpertEncoding::kNvfp4;
}

NamedTensor FindTensor(const checkpoint::TensorFiles& files, const std::string& name) {
  const auto found = files.tensors().find(name);
  if (found == files.tensors().end()) return {};
  return {&found->first, &found->second};
}

// The layers that are wanted, with their numbers of experts.
Result<std::vector<checkpoint::ExpertLayer>> WantedLayers(const checkpoint::Checkpoint& checkpoint,
                                                          const PackOptions& options,
                                                          PackPlan* plan) {
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> listed, ParseLayerList(options.layers));
  std::vector<checkpoint::ExpertLayer> wanted;
  for (const checkpoint::ExpertLayer& layer : checkpoint.experts.layers()) {
    const bool is_listed = std::binary_search(listed.begin(), listed.end(), layer.layer_index);
    if (layer.is_mtp && !options.include_mtp) continue;
    ++plan->wanted_layer_count;
    if (listed.empty() || is_listed) wanted.push_back(layer);
  }
  for (const uint32_t layer : listed) {
    const bool is_there = std::any_of(wanted.begin(), wanted.end(), [&](const auto& candidate) {
      return candidate.layer_index == layer;
    });
    if (is_there) continue;
    return Invalid("--layers {}: layer {} has no experts that are packed; the model has {}",
                   options.layers, layer,
                   checkpoint::LayerKindsText(checkpoint.facts.layer_is_sparse));
  }
  if (wanted.empty()) return Invalid("{}: no layer with routed experts", checkpoint.path);
  return wanted;
}

Status FillIndex(const checkpoint::Checkpoint& checkpoint,
                 const std::vector<checkpoint::ExpertLayer>& layers, PackPlan* plan) {
  const checkpoint::ExpertLayout& experts = checkpoint.experts;
  records::ExpertIndex& index = plan->index;
  index.num_moe_layers = static_cast<uint32_t>(layers.size());
  index.num_experts = layers.front().expert_count;
  index.inter = experts.intermediate_size();
  index.hidden = experts.hidden_size();
  for (const checkpoint::ExpertLayer& layer : layers) {
    if (layer.expert_count != index.num_experts) {
      return Unsupported("layer {}: {} experts, layer {} has {}; a record store has one number",
                         layer.layer_index, layer.expert_count, layers.front().layer_index,
                         index.num_experts);
    }
    index.moe_layer_to_model_layer.push_back(layer.layer_index);
  }
  const std::pair<const char*, uint32_t> dims[] = {{"expert width", index.inter},
                                                   {"hidden size", index.hidden}};
  for (const auto& [name, value] : dims) {
    if (value % records::kNvfp4GroupSize == 0) continue;
    return Unsupported("{}: {} {}, NVFP4 needs a multiple of {}", checkpoint.path, name, value,
                       records::kNvfp4GroupSize);
  }
  auto spec = records::DeriveSizes(&index);
  if (!spec) return While(checkpoint.path, std::move(spec));
  plan->spec = *spec;
  return Ok();
}

// Looks every expert up, so that what is missing is said before anything is written.
Status CheckSources(const checkpoint::Checkpoint& checkpoint,
                    const std::vector<checkpoint::ExpertLayer>& layers) {
  if (!IsMoved(checkpoint)) return Ok();
  std::optional<checkpoint::LinearWeight> first;
  for (const checkpoint::ExpertLayer& layer : layers) {
    for (uint32_t expert = 0; expert < layer.expert_count; ++expert) {
      for (int proj = 0; proj < checkpoint::kProjCount; ++proj) {
        SMOE_TRY_ASSIGN(const Nvfp4Source source,
                        FindNvfp4Source(checkpoint, layer.layer_index, expert,
                                        static_cast<checkpoint::Proj>(proj)));
        if (!first) first = source.weight;
        if (source.weight.global_is_inverse == first->global_is_inverse) continue;
        return Corrupt("{}: tensor {}: another NVFP4 kind than {}, expected one in all experts",
                       checkpoint.path, *source.weight.codes.name, *first->codes.name);
      }
    }
  }
  return Ok();
}

// The names decide; a config that says otherwise is worth a word.
Status NoteKind(const checkpoint::Checkpoint& checkpoint, PackPlan* plan) {
  if (!plan->moves_bytes) return Ok();
  SMOE_TRY_ASSIGN(const Nvfp4Source source,
                  FindNvfp4Source(checkpoint, plan->index.moe_layer_to_model_layer.front(), 0,
                                  checkpoint::Proj::kGate));
  const char* kind = source.weight.global_is_inverse ? "compressed-tensors" : "modelopt";
  plan->decisions.push_back(
      fmt::format("NVFP4: {} by the tensor names; scale2 is {}", kind,
                  source.weight.global_is_inverse ? "1 / weight_global_scale" : "weight_scale_2"));
  SMOE_TRY_ASSIGN(const Json config, Json::Parse(checkpoint.side_files.config, "config.json"));
  const Json* quantisation = config.Find("quantization_config");
  const Json* method = quantisation == nullptr ? nullptr : quantisation->Find("quant_method");
  const std::string* said = method == nullptr ? nullptr : method->AsString();
  if (said != nullptr && *said != kind) {
    plan->warnings.push_back(fmt::format(
        "config.json: quant_method is {}, the tensors are named as {} does: read as those", *said,
        kind));
  }
  return Ok();
}

uint64_t SourceBytesPerExpert(const checkpoint::Checkpoint& checkpoint, const PackPlan& plan) {
  if (plan.moves_bytes) return plan.spec.payload_bytes();
  const checkpoint::ExpertLayout& layout = checkpoint.experts;
  const auto slice = layout.Slice(layout.layers().front().layer_index, 0, checkpoint::Proj::kGate);
  const checkpoint::TensorInfo* info = checkpoint.files.Find(slice.tensor_name);
  const uint64_t element_bytes = info == nullptr ? 2 : tensor::DTypeBytes(info->dtype);
  return checkpoint::kProjCount * uint64_t{slice.rows} * slice.cols * element_bytes;
}

Json OptionsJson(const PackOptions& options, bool moves_bytes) {
  Json json;
  json.Set("format", "nvfp4 records");
  json.Set("quantiser", moves_bytes ? "none" : QuantiserName(options.quantiser));
  json.Set("layers", options.layers);
  json.Set("trunk_format", checkpoint::TrunkFormatsText(options.trunk_formats));
  json.Set("allow_non_finite", options.allow_non_finite);
  json.Set("include_mtp", options.include_mtp);
  json.Set("writer", options.writer);
  return json;
}

uint64_t OutBytes(const PackPlan& plan) {
  const uint64_t record_count = uint64_t{plan.index.num_moe_layers} * plan.index.num_experts;
  uint64_t bytes = record_count * (plan.index.record_stride + kManifestBytesPerRecord);
  for (const AnnexText& text : plan.texts) bytes += text.content.size();
  return bytes + plan.trunk.layout.total_bytes + kManifestBytesBase;
}

}  // namespace

const char* QuantiserName(tensor::Nvfp4Quantiser quantiser) {
  return quantiser == tensor::Nvfp4Quantiser::kAmax ? "amax" : "mse";
}

Result<std::vector<uint32_t>> ParseLayerList(const std::string& text) {
  const auto refuse = [&] {
    return Invalid("--layers {}: expected numbers of layers and ranges, as in 1-3,7", text);
  };
  std::vector<uint32_t> layers;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](uint32_t* number) {
    const auto parsed = std::from_chars(at, end, *number);
    at = parsed.ptr;
    return parsed.ec == std::errc() && *number <= records::kModelLayerMax;
  };
  while (at != end) {
    uint32_t first = 0;
    if (!read(&first)) return refuse();
    uint32_t last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!read(&last) || last < first) return refuse();
    }
    for (uint32_t layer = first; layer <= last; ++layer) layers.push_back(layer);
    if (at == end) break;
    if (*at != ',' || ++at == end) return refuse();
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

Result<Nvfp4Source> FindNvfp4Source(const checkpoint::Checkpoint& checkpoint, uint32_t layer_index,
                                    uint32_t expert_index, checkpoint::Proj proj) {
  const checkpoint::MatrixSlice slice = checkpoint.experts.Slice(layer_index, expert_index, proj);
  std::string_view stem;
  const checkpoint::TensorInfo* codes = checkpoint.files.Find(slice.tensor_name);
  if (!checkpoint::IsLinearName(slice.tensor_name, &stem) || codes == nullptr ||
      codes->shape.size() != 2) {
    return Unsupported("tensor {}: NVFP4 experts that share a tensor; one tensor each is packed",
                       slice.tensor_name);
  }
  Nvfp4Source source;
  SMOE_TRY_ASSIGN(source.weight, checkpoint::FindLinear(checkpoint.files, stem, checkpoint.config));
  const bool is_inverse = source.weight.global_is_inverse;
  const std::string ours =
      fmt::format("{}.{}", stem, is_inverse ? "input_global_scale" : "input_scale");
  const std::string other =
      fmt::format("{}.{}", stem, is_inverse ? "input_scale" : "input_global_scale");
  if (FindTensor(checkpoint.files, other).info != nullptr) {
    return Corrupt("tensor {}: belongs to the other NVFP4 kind, {} goes with {}", other,
                   slice.tensor_name, ours);
  }
  source.input_scale = FindTensor(checkpoint.files, ours);
  const checkpoint::TensorInfo* scale = source.input_scale.info;
  if (scale == nullptr || (scale->dtype == tensor::DType::kF32 && scale->size == sizeof(float))) {
    return source;
  }
  return Corrupt("tensor {}: {} {}, expected one F32", ours, tensor::DTypeName(scale->dtype),
                 tensor::ShapeText(scale->shape));
}

Result<PackPlan> PlanPack(const checkpoint::Checkpoint& checkpoint, const PackOptions& options) {
  PackPlan plan;
  plan.moves_bytes = IsMoved(checkpoint);
  SMOE_TRY_ASSIGN(const auto layers, WantedLayers(checkpoint, options, &plan));
  SMOE_TRY(FillIndex(checkpoint, layers, &plan));
  SMOE_TRY(CheckSources(checkpoint, layers));
  SMOE_TRY(NoteKind(checkpoint, &plan));
  SMOE_TRY_ASSIGN(plan.trunk, PlanTrunk(checkpoint, options.trunk_formats));
  plan.texts = TextsOf(checkpoint.side_files);
  plan.expert_source_bytes = SourceBytesPerExpert(checkpoint, plan);
  plan.out_bytes = OutBytes(plan);
  SMOE_TRY_ASSIGN(plan.source, SourceJson(checkpoint, false));
  SMOE_TRY_ASSIGN(Json timed_source, SourceJson(checkpoint, true));
  plan.identity.Set("source", std::move(timed_source));
  plan.identity.Set("options", OptionsJson(options, plan.moves_bytes));
  return plan;
}

}  // namespace smoe::convert
