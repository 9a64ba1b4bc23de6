// cli/error_figures.h: weight errors as tables for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "convert/expert_error.h"

namespace smoe::cli {

// The errors of all layers, by projection.
convert::ProjErrors SumLayers(const std::vector<convert::LayerErrors>& layers);

// A line a projection: RMSE, largest error and SNR.
std::string ProjErrorsText(const convert::ProjErrors& errors);

// A line a layer: RMSE, largest error and SNR of gate, up and down; a last one for all layers.
std::string LayerErrorsText(const std::vector<convert::LayerErrors>& layers);

// {"layers": [{"layer": 0, "gate": {...}, "up": ..., "down": ...}], "all": {"gate": ...}}
Json LayerErrorsJson(const std::vector<convert::LayerErrors>& layers);

}  // namespace smoe::cli
