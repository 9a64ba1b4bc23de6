// checkpoint/expert_names.h: what the name of a tensor says about routed experts.
//
// Names alone, no shapes. The namings that published checkpoints use:
//   S.experts.E.{gate_proj,up_proj,down_proj}.weight   most families
//   S.experts.E.{w1,w3,w2}.weight                      mixtral, minimax_m2 (S = block_sparse_moe)
//   S.experts.{gate_up_proj,down_proj}[.weight]        transformers 5, gpt_oss, llama4
//   S.switch_mlp.{gate_proj,up_proj,down_proj}.weight  MLX; also below S.experts
//   S.input_linear.weight, S.output_linear.weight      granitemoe (S = block_sparse_moe)
// S begins with PREFIXlayers.N. or mtp.layers.N.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/model_config.h"

namespace smoe::checkpoint {

// kStacked: all experts of a layer in one tensor per part, gate and up together or apart.
enum class ExpertNaming : uint8_t { kGateProj, kW123, kStacked, kLinear, kUnknown };

// Which projection a tensor holds; kGateUp: both of them in one tensor.
enum class ExpertPart : uint8_t { kGate = 0, kUp = 1, kDown = 2, kGateUp = 3, kUnknown };
inline constexpr size_t kExpertPartCount = 4;

struct LayerName {
  std::string_view prefix;  // before "layers.", as in "model."
  uint32_t layer_index = 0;
  bool is_mtp_module = false;  // below "mtp.": layer_index counts from the end of the model
  std::string_view rest;       // after "layers.N."
};

// nullopt: not of any layer. Layer numbers beyond kLayerCountMax are no layer numbers.
std::optional<LayerName> ParseLayerName(std::string_view name);

struct ExpertName {
  LayerName layer;
  ExpertNaming naming = ExpertNaming::kUnknown;
  std::string_view stem;           // "model.layers.3.mlp.experts": what all of them share
  std::optional<uint32_t> expert;  // only where each expert has its own tensors
  ExpertPart part = ExpertPart::kUnknown;
  std::string_view suffix;  // after the projection: ".weight", "", "_blocks", ".weight_scale_inv"
};

// nullopt: not a tensor of routed experts. Shared experts and routers are none.
std::optional<ExpertName> ParseExpertName(std::string_view name);

// The word for a part: "gate_proj", "w1", "input_linear". Requires a part the naming has.
std::string_view PartWord(ExpertNaming naming, ExpertPart part);

}  // namespace smoe::checkpoint
