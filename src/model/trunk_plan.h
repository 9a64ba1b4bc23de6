// model/trunk_plan.h: which tensors a trunk is made of, and where in memory each of them goes.
//
// Names, types and shapes decide everything; no weight is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/linear_weight.h"
#include "model/trunk.h"

namespace smoe::model {

// Elements or codes, and scales, of a matrix in memory. nullopt: more than 64 bits say.
struct PieceBytes {
  uint64_t elements = 0;
  uint64_t scales = 0;
};
std::optional<PieceBytes> BytesOf(tensor::WeightFormat format, uint64_t rows, uint64_t cols);

// One matrix or vector.
struct TrunkPiece {
  std::string name;                 // of the tensor with its elements or codes
  checkpoint::LinearWeight source;  // kFloat for vectors, too
  uint64_t rows = 0;                // 1 for a vector
  uint64_t cols = 0;
  std::optional<checkpoint::TrunkPart> part;                 // nullopt: kept exactly
  tensor::WeightFormat format = tensor::WeightFormat::kF32;  // in memory
  uint64_t offset = 0;                                       // in memory, of elements or codes
  uint64_t bytes = 0;
  uint64_t scales_offset = 0;  // of formats that have scales of their own
  uint64_t scale_bytes = 0;
  // Where the view of it goes.
  tensor::WeightView* matrix = nullptr;
  tensor::WeightView* second_matrix = nullptr;  // the embedding of a tied head
  FloatVector* vector = nullptr;
};

struct TrunkPlan {
  std::vector<TrunkPiece> pieces;
  std::optional<TrunkPiece> left;  // on the drive: the embedding
  uint64_t total_bytes = 0;
};

// `trunk` gets its layers, and is what the pieces point into.
// Errors: as LoadTrunk, for what can be told without reading weights.
Result<TrunkPlan> PlanTrunk(const store::ModelFiles& files, const ArchTraits& traits,
                            const TrunkOptions& options, Trunk* trunk);

}  // namespace smoe::model
