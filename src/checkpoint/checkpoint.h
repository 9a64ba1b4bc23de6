// checkpoint/checkpoint.h: a Hugging Face folder, opened and cross-checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/expert_layout.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace smoe::checkpoint {

// Caps of the small files of a folder.
inline constexpr uint64_t kConfigBytesMax = uint64_t{16} << 20;
inline constexpr uint64_t kTokenizerBytesMax = uint64_t{256} << 20;

// The small files of the folder, verbatim; absent files are nullopt. A vault's annex carries them.
// chat_template: chat_template.jinja, or the text inside chat_template.json.
struct SideFiles {
  std::string config;
  std::optional<std::string> generation_config;
  std::optional<std::string> tokenizer;
  std::optional<std::string> tokenizer_config;
  std::optional<std::string> chat_template;
};

// Facts about the trunk that the tensors decide and the config is checked against.
struct TrunkFacts {
  std::string prefix;  // of "embed_tokens" and "layers": "model." or "model.language_model."
  std::vector<bool> layer_is_sparse;  // by the experts present, one per hidden layer
  bool has_qk_norm = false;
  bool head_is_tied = false;           // no lm_head of its own is used
  std::vector<std::string> decisions;  // one sentence each, printed by inspect
  std::vector<std::string> warnings;   // contradictions that do not stop us
};

struct Checkpoint {
  std::string path;
  TensorFiles files;
  ModelConfig config;
  ExpertLayout experts;
  TrunkFacts facts;
  SideFiles side_files;
};

// `path`: a folder with config.json and safetensors.
// Errors: as the parts; and kCorrupt where the sparse layers of the config and of the tensors
// differ.
Result<Checkpoint> OpenCheckpoint(const std::string& path);

// Reads the small files of a folder, or of the folder of a bare config.json, which then is the
// config whatever its name. Errors: kInvalid if there is no config or a file exceeds its cap; kIo.
Result<SideFiles> ReadSideFiles(const std::string& path);

// Checks trunk tensors against the config; used for checkpoints, trunk files and annexes alike.
// `sparse_layers`: absolute indices of layers that have routed experts; those beyond the model's
// layers are ignored. Reads no data. That the config may claim other sparse layers is a warning
// here (a vault may be partial) and an error in OpenCheckpoint.
// Errors: kCorrupt naming the tensor or the layer: no embedding, a layer without tensors or beyond
//         the config's count, a head that is neither there nor tied.
Result<TrunkFacts> InspectTrunk(const TensorFiles& trunk, const ModelConfig& config,
                                const std::vector<uint32_t>& sparse_layers);

// "D S S S": one letter per layer.
std::string LayerKindsText(const std::vector<bool>& layer_is_sparse);

}  // namespace smoe::checkpoint
