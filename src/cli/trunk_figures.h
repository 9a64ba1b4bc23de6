// cli/trunk_figures.h: what became of a trunk's matrices, for scripts.
#pragma once

#include "base/json.h"
#include "model/trunk.h"

namespace smoe::cli {

// {"format": "int8", "bytes": ..., "parts": {"head": {"formats": ["int8"], "matrices": 1, "bytes":
// ..., "relative_rmse": 0.006}, ...}}; relative_rmse is null where the file's own bits are kept.
Json TrunkJson(const model::TrunkReport& report);

}  // namespace smoe::cli
