// convert/expert_error.h: how far the experts of one store lie from those of another, weight by
// weight.
//
// Both are dequantised through their own views, so any two formats compare: a checkpoint with its
// vault, a vault with a record store, two vaults with each other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/expert_layout.h"
#include "convert/progress.h"
#include "store/expert_store.h"
#include "tensor/quantise.h"

namespace smoe::convert {

using ProjErrors = std::array<tensor::QuantisationError, checkpoint::kProjCount>;

struct LayerErrors {
  uint32_t layer_index = 0;
  ProjErrors projs;  // gate, up, down

  tensor::QuantisationError Sum() const;
};

// |b - a| and a^2, summed over all weights of one matrix, in double.
// Requires spans of one size.
tensor::QuantisationError MatrixError(std::span<const float> a, std::span<const float> b);

// Errors: kInvalid naming the first field in which two stores differ: hidden size, width of an
//         expert, layers, experts of a layer.
Status CheckSameShape(const store::ExpertStore& a, const store::ExpertStore& b);

// Figures of single experts, in the order of `ids`, added up by layer.
std::vector<LayerErrors> SumByLayer(const std::vector<store::ExpertId>& ids,
                                    const std::vector<ProjErrors>& errors);

// One entry a layer; `a` is the original: SNR is its power over that of the difference.
// Errors:   as CheckSameShape; kCorrupt, kIo of the reads
// Cost:     each expert of both is read once; each of `thread_count` workers (0: as
//           convert/workers.h says) has one slot of both stores and two matrices in f32
// The sums are added in the order of the experts: the figures do not depend on the threads.
Result<std::vector<LayerErrors>> CompareExperts(const store::ExpertStore& a,
                                                const store::ExpertStore& b, uint32_t thread_count,
                                                Progress& progress);

}  // namespace smoe::convert
