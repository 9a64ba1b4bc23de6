// cli/sampling_options.h: sampling flags, and the defaults that the model brings along.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/arguments.h"
#include "engine/sampler.h"

namespace smoe::cli {

struct SamplingOptions {
  std::optional<double> temperature;
  std::optional<uint32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  uint64_t seed = 0;
};

void DefineSamplingOptions(Arguments& arguments, SamplingOptions* options);

// The flags; where one is absent, the model's generation_config.json (if it says do_sample);
// where that is silent, off.
// Errors: kCorrupt for a generation_config that is no JSON; kInvalid for a value out of range.
Result<engine::SamplerOptions> ChooseSampling(const SamplingOptions& options,
                                              const std::optional<std::string>& generation_config);

}  // namespace smoe::cli
