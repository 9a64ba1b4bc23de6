// convert/expert_packer.h: one expert, from the checkpoint to the bytes of its record.
#pragma once

#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "convert/journal.h"
#include "store/records/record.h"
#include "tensor/quantise_nvfp4.h"

namespace smoe::convert {

struct PackRules {
  tensor::Nvfp4Quantiser quantiser = tensor::Nvfp4Quantiser::kMse;
  bool allow_non_finite = false;
};

// Threads: one at a time; each worker has its own.
class ExpertPacker {
 public:
  // All borrowed.
  ExpertPacker(const checkpoint::Checkpoint& checkpoint,
               const store::records::ExpertRecordSpec& spec, const PackRules& rules);

  // Fills `record`, raw_bytes or longer, and the errors and non-finite count of `done`.
  // Errors: kCorrupt naming tensor, index, found, expected; of the reads.
  Status Run(store::records::ExpertKey key, uint32_t layer_index, MutableBytes record,
             ExpertDone* done);

 private:
  Status Move(uint32_t layer_index, uint32_t expert_index, size_t proj_index);
  Status Quantise(uint32_t layer_index, uint32_t expert_index, size_t proj_index, ExpertDone* done);
  // Makes NaN and infinity 0, where that is allowed.
  void MendWeights(ExpertDone* done);

  const checkpoint::Checkpoint& checkpoint_;
  const store::records::ExpertRecordSpec& spec_;
  const PackRules rules_;
  // The parts of one expert, in the checkpoint's order.
  std::vector<std::byte> packed_[store::records::kProjCount];
  std::vector<std::byte> scales_[store::records::kProjCount];
  store::records::ExpertParts parts_;
  std::vector<float> weights_;
};

}  // namespace smoe::convert
