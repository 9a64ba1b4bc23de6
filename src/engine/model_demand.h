// engine/model_demand.h: what a model will take, from its config and the engine's options.
#pragma once

#include "checkpoint/model_config.h"
#include "checkpoint/trunk_format.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "experts/local_backend.h"
#include "kernels/kernels.h"
#include "store/model_files.h"

namespace smoe::engine {

// Defaults that follow from the arithmetic.
checkpoint::TrunkFormats ChooseTrunkFormats(const EngineOptions& options);
kernels::KvKind ChooseKvKind(const EngineOptions& options);

// Rows of one step: every request decodes, or one of them brings a chunk.
size_t RowCountMax(const EngineOptions& options, size_t chunk_tokens);
size_t LogitRowMax(const EngineOptions& options, size_t chunk_tokens);
experts::LocalBackendOptions BackendOptions(const checkpoint::ModelConfig& config,
                                            const EngineOptions& options, size_t chunk_tokens);

// All of a demand but the sizes of trunk and experts.
BudgetDemand DemandOf(const checkpoint::ModelConfig& config, const EngineOptions& options);

// All of it. Errors: as Model::MeasureTrunk.
Result<BudgetDemand> DemandOfFiles(const store::ModelFiles& files, const EngineOptions& options);

// What a trunk of this shape takes in memory, and what of it each token reads, where there is no
// file yet: one whose matrices are bf16 in the file, with an output head of its own unless tied.
struct ShapeTrunk {
  uint64_t bytes = 0;
  uint64_t token_read_bytes = 0;  // all but an embedding that is not the head as well
  uint64_t embedding_bytes = 0;   // what leaving that on the drive saves
};
// Requires a family with plain attention, as the presets of smoe synth.
ShapeTrunk TrunkOfShape(const checkpoint::ModelConfig& config,
                        const checkpoint::TrunkFormats& formats);

}  // namespace smoe::engine
