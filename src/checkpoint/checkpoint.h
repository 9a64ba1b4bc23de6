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

// The small files of the folder, verbatim; absent files are nullopt. A vault's annex carries them.
struct SideFiles {
  std::string config;
  std::optional<std::string> generation_config;
  std::optional<std::string> tokenizer;
  std::optional<std::string> tokenizer_config;
  std::optional<std::string> chat_template;
};

// Facts about the trunk that the tensors decide and the config is checked against.
struct TrunkFacts {
  std::string prefix;                 // "model." or "model.language_model."
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

// Reads the small files of a folder (or the folder of a bare config.json).
Result<SideFiles> ReadSideFiles(const std::string& folder);

// Checks trunk tensors against the config; used for checkpoints, trunk files and annexes alike.
// `sparse_layers`: absolute indices of layers that have routed experts.
Result<TrunkFacts> InspectTrunk(const TensorFiles& trunk, const ModelConfig& config,
                                const std::vector<uint32_t>& sparse_layers);

}  // namespace smoe::checkpoint
