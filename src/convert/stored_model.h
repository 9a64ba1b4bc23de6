// convert/stored_model.h: a model that a conversion between stores reads: its experts, and all that
// goes along with them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "io/file.h"
#include "store/model_files.h"

namespace smoe::convert {

// A small file or annex section that is copied as it is.
struct ModelPart {
  std::string name;  // "config.json"
  std::string content;
};

// Where the store keeps its trunk, and what it says of the bytes.
struct StoredTrunk {
  io::File file;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t checksum = 0;  // XXH3-64
};

struct StoredModel {
  store::ModelFiles files;
  std::optional<StoredTrunk> trunk;  // none: the trunk lies beside the store, without a checksum
  bool is_records = false;
  bool has_input_scales = false;  // records that carry scales of activations
  std::vector<ModelPart> parts;  // side files, then what the store holds besides and we do not know
  Json origin;                   // what the store says of its own making; null: nothing
  Json source;                   // its files with sizes, sampled hashes and times: for a resume
  std::vector<std::string> inputs;  // every file that is read
};

// Errors: kInvalid for a checkpoint folder, naming the commands for those; as OpenModelFiles;
//         kCorrupt for a damaged section.
Result<StoredModel> OpenStoredModel(const std::string& path,
                                    const store::ModelFilesOptions& options);

// Compares the trunk with the store's checksum: a copy gets one of its own, which would vouch for
// what was damaged before. Errors: kCorrupt; kIo.
// Cost: reads the trunk once.
Status CheckStoredTrunk(const StoredModel& model);

}  // namespace smoe::convert
