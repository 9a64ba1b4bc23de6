// convert/trunk.h: everything of a checkpoint that is not a routed expert, as one safetensors
// image, streamed.
//
// The order and the header's bytes are those of the original converter's files: by element type
// (the wider and floating ones first, as the safetensors library orders them), then by name.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "convert/progress.h"

namespace smoe::convert {

struct TrunkPlan {
  std::vector<checkpoint::TensorInfo> sources;  // in the order of the image
  checkpoint::SafetensorsLayout layout;
};

// Names, types and shapes, and the scales of NVFP4 matrices. Biases of experts belong to the trunk:
// a blob has no room for them. Errors: kInvalid from LayOutSafetensors; kCorrupt by tensor: NVFP4
// that could not be loaded.
Result<TrunkPlan> PlanTrunk(const checkpoint::Checkpoint& checkpoint);

// The same of any model's trunk, which may lie among experts: their names tell them.
Result<TrunkPlan> PlanTrunk(const checkpoint::TensorFiles& files);

// Hands the image to `sink` in order, in pieces of at most 4 MiB.
// Errors: of the reads and of the sink.
using TrunkSink = std::function<Status(Bytes piece)>;
Status StreamTrunk(const checkpoint::TensorFiles& files, const TrunkPlan& plan,
                   const TrunkSink& sink, Progress& progress);

}  // namespace smoe::convert
