// convert/synth_trunk.h: the trunk of a synthetic model, streamed as a safetensors image.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors_writer.h"
#include "convert/progress.h"
#include "convert/synth_recipe.h"
#include "convert/synth_shape.h"
#include "convert/trunk.h"

namespace smoe::convert {

struct SynthTensor {
  checkpoint::TensorSpec spec;  // [rows][cols] or [cols], bf16
  double deviation = 0;         // 0: every element is `fill`
  double fill = 0;
  // The first kConstantChannels columns by row; empty: random as the others.
  std::vector<float> constants;
};

struct SynthTrunk {
  std::vector<SynthTensor> tensors;  // in the order of the image
  checkpoint::SafetensorsLayout layout;
};

// Names, types and shapes are those of a published checkpoint of the family.
// Errors: kInvalid from LayOutSafetensors.
Result<SynthTrunk> PlanSynthTrunk(const checkpoint::ModelConfig& config, const SynthRecipe& recipe,
                                  uint64_t seed);

// Hands the image to `sink` in order, in pieces of at most 4 MiB or 8 rows. A tensor's bytes depend
// on seed, name and shape alone. Errors: of the sink.
Status StreamSynthTrunk(const SynthTrunk& trunk, uint64_t seed, const TrunkSink& sink,
                        Progress& progress);

}  // namespace smoe::convert
