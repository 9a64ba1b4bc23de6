// convert/stored_model.h: a model that a conversion between stores reads: its experts, and all that
// goes along with them.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "store/model_files.h"

namespace smoe::convert {

// A small file or annex section that is copied as it is.
struct ModelPart {
  std::string name;  // "config.json"
  std::string content;
};

struct StoredModel {
  store::ModelFiles files;
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

}  // namespace smoe::convert
