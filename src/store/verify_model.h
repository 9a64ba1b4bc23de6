// store/verify_model.h: is everything of a model there, and whole?
#pragma once

#include <string>

#include "base/result.h"
#include "store/model_files.h"
#include "store/vault/verify.h"

namespace smoe::store {

struct VerifyModelOptions {
  ModelFilesOptions files;
  vault::VerifyOptions blobs;
  // A vault without a trunk is a problem: half of the model, and header fields that only the trunk
  // can contradict, would go unchecked. True: check the vault alone.
  bool vault_only = false;
};

// A vault: structure, every expert and annex section, then the trunk against config and header, and
// its tensors for NaN. A record store: the same of its manifest, records and files; one that names
// no trunk is checked alone, with a warning. A checkpoint folder: structure, then every float
// tensor. Errors: those of opening the file. Everything found later is a problem in the report.
Result<vault::VerifyReport> VerifyModel(const std::string& path, const VerifyModelOptions& options);

}  // namespace smoe::store
