// store/model_files.h: everything a model needs, found from one MODEL argument.
//
// MODEL is a `.smoe` vault (with annex; or with STEM.scout.safetensors beside it; or with the parts
// named by options), an NVFP4 record store (with the parts its manifest names; or with those named
// by options), or a Hugging Face folder. Each decision that was taken, each assumption and
// each contradiction is kept as a sentence, so that inspect and the log can say it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "store/expert_store.h"

namespace smoe::store {

struct ModelFilesOptions {
  std::string trunk = {};   // --trunk: a .safetensors file or a checkpoint folder; empty: find it
  std::string config = {};  // --config: config.json or a folder with it; empty: find it
  std::string tokenizer = {};  // --tokenizer: tokenizer.json or a folder with it; empty: find it
  bool direct_io = true;       // ask for direct reads of the experts
  bool allow_partial = false;  // a record store that lacks layers: a warning, not an error
};

// Where a stored trunk lies in its file, and what its bytes must give.
struct TrunkChecksum {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t checksum = 0;  // XXH3-64
};

struct ModelFiles {
  std::string path;
  checkpoint::ModelConfig config;
  checkpoint::TrunkFacts facts;
  checkpoint::SideFiles side_files;
  checkpoint::TensorFiles trunk;  // may hold expert tensors too (HF folder): ignored
  // Of the only file of `trunk`, where it is part of a store; other files come without one. Not
  // compared yet: model/trunk.h does while it reads.
  std::optional<TrunkChecksum> trunk_checksum;
  std::unique_ptr<ExpertStore> experts;
  std::vector<std::string> decisions;  // "config: from the annex", "rope_theta 1e6 assumed", ...
  std::vector<std::string> warnings;
};

// kInvalid if there is no such MODEL, kIo if the system will not say: the one message for every
// command that takes one.
Status CheckModelExists(const std::string& path);

// Errors: kInvalid (no such MODEL, a part is missing: which, and the option that names it),
//         kCorrupt, kUnsupported, kIo as the parts; a partial vault is kInvalid with what is
//         missing.
Result<ModelFiles> OpenModelFiles(const std::string& path, const ModelFilesOptions& options);

}  // namespace smoe::store
