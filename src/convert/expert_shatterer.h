// convert/expert_shatterer.h: one expert, from the checkpoint to the bytes of its blob.
#pragma once

#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "convert/journal.h"
#include "store/vault/writer.h"
#include "tensor/quantise.h"

namespace smoe::convert {

struct ShatterRules {
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;
  uint32_t group_size = 64;
  tensor::Quantiser quantiser = tensor::Quantiser::kMse;
  bool allow_non_finite = false;
  bool measure_error = false;
};

// Threads: one at a time; each worker has its own. Memory: a piece, or one matrix in f32 where the
// checkpoint's layout is not contiguous floats.
class ExpertShatterer {
 public:
  // All borrowed. `tensors`: the layout of a blob, gate, up, down.
  ExpertShatterer(
      const checkpoint::Checkpoint& checkpoint,
      std::span<const store::vault::TensorPlace, store::vault::kTensorsPerExpert> tensors,
      const ShatterRules& rules)
      : checkpoint_(checkpoint), tensors_(tensors), rules_(rules) {}

  // Fills `blob` (all of it) and the errors and non-finite count of `done`.
  // Errors: kCorrupt for NaN or infinity, kUnsupported beyond f16's range, each naming tensor,
  //         index and value; of the reads.
  Status Run(store::ExpertId id, MutableBytes blob, ExpertDone* done);

 private:
  struct Target {
    MutableBytes packed;
    MutableBytes scales;
    uint64_t first = 0;  // weight of the matrix that they begin with
  };
  Status RunContiguous(const checkpoint::MatrixSlice& slice, MutableBytes packed,
                       MutableBytes scales, checkpoint::Proj proj, ExpertDone* done);
  Status Quantise(std::span<float> weights, const checkpoint::MatrixSlice& slice,
                  const Target& target, checkpoint::Proj proj, ExpertDone* done);
  // Makes NaN and infinity 0, if that is allowed, and names what cannot be mended.
  Status MendWeights(std::span<float> weights, const checkpoint::MatrixSlice& slice, uint64_t first,
                     ExpertDone* done) const;

  const checkpoint::Checkpoint& checkpoint_;
  std::span<const store::vault::TensorPlace, store::vault::kTensorsPerExpert> tensors_;
  ShatterRules rules_;
  std::vector<std::byte> source_;
  std::vector<float> weights_;
};

}  // namespace smoe::convert
