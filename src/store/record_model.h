// store/record_model.h: a record store as a model: its experts, and trunk, config and tokenizer.
#pragma once

#include <string>

#include "base/result.h"
#include "store/model_files.h"

namespace smoe::store {

// The parts come from the files that the manifest names; a store made by others names none and
// needs --trunk, and a config from --config, from the trunk's folder, or beside the manifest.
// Errors: as OpenModelFiles.
Result<ModelFiles> OpenRecordModel(const std::string& path, const ModelFilesOptions& options);

}  // namespace smoe::store
