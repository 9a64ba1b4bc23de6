// convert/extract_trunk.h: the trunk of a one-file vault as a file of its own.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "convert/progress.h"

namespace smoe::convert {

struct ExtractReport {
  std::string out_path;
  uint64_t bytes = 0;
  uint64_t tensor_count = 0;
};

// Copies the annex's trunk (a safetensors image) to `out_path`, comparing its checksum on the way.
// Errors: kInvalid if the vault has no trunk inside (the message names the file beside it, if there
//         is one), or if `out_path` exists and `force` is off; kCorrupt if the checksum differs or
//         the image is no safetensors: then there is no `out_path`; kExhausted, kIo.
// Memory: 4 MiB, whatever the trunk.
Result<ExtractReport> ExtractTrunk(const std::string& vault_path, const std::string& out_path,
                                   bool force, Progress& progress);

}  // namespace smoe::convert
