// convert/pack_plan.h: everything that is decided before the first byte of a record store is
// written.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear_weight.h"
#include "convert/packer.h"
#include "convert/source.h"
#include "convert/trunk.h"
#include "store/records/writer.h"

namespace smoe::convert {

struct PackPlan {
  store::records::ExpertIndex index;  // dims, alignments, layers
  store::records::ExpertRecordSpec spec;
  TrunkPlan trunk;
  std::vector<AnnexText> texts;
  bool moves_bytes = false;          // the experts are NVFP4 already
  uint64_t wanted_layer_count = 0;   // with experts in the checkpoint, as far as they are wanted
  uint64_t expert_source_bytes = 0;  // of one expert in the checkpoint
  uint64_t out_bytes = 0;            // all files, the manifest estimated
  std::vector<std::string> decisions;
  std::vector<std::string> warnings;
  Json source;    // what the manifest says
  Json identity;  // source, its times and the options: what a resume must repeat
};

// One projection of an expert that is NVFP4 already.
struct Nvfp4Source {
  checkpoint::LinearWeight weight;
  checkpoint::NamedTensor input_scale;  // absent: {}
};

// Names, types and shapes; no data is read.
// Errors: kCorrupt by tensor: scales missing or of another shape, names of both NVFP4 kinds.
Result<Nvfp4Source> FindNvfp4Source(const checkpoint::Checkpoint& checkpoint, uint32_t layer_index,
                                    uint32_t expert_index, checkpoint::Proj proj);

// `checkpoint` is borrowed by the plan. Looks at the tensors of every expert, and at samples of the
// source files for their hashes.
// Errors: kInvalid for layers that have no experts; kUnsupported for dims that are no multiples of
//         16, layers with different numbers of experts, NVFP4 experts in one tensor; kCorrupt.
Result<PackPlan> PlanPack(const checkpoint::Checkpoint& checkpoint, const PackOptions& options);

// "1-3,7" as {1, 2, 3, 7}. kInvalid for anything else, naming it.
Result<std::vector<uint32_t>> ParseLayerList(const std::string& text);

const char* QuantiserName(tensor::Nvfp4Quantiser quantiser);  // "mse", "amax"

}  // namespace smoe::convert
