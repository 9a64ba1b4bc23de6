// model/trunk.h: every weight of a model but the routed experts, in memory.
//
// One anonymous buffer holds all of it, locked where that is allowed, and never read again:
// matrices in the format that was asked for (checkpoint/trunk_format.h), norms and biases in f32,
// routers and gates of shared experts exactly as they are stored. Each starts at a multiple of 64
// bytes. Matrices are converted while they are read, a few rows at a time on every thread of the
// pool: no matrix is ever in memory in f32 as well.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/trunk_format.h"
#include "model/arch/arch_traits.h"
#include "model/embedding_rows.h"
#include "store/model_files.h"
#include "tensor/quantise.h"
#include "tensor/weights.h"

namespace smoe::model {

using FloatVector = std::span<const float>;  // empty: the model has none

struct TrunkOptions {
  checkpoint::TrunkFormats formats = {};  // as the files have it
  // The embedding stays on the drive (model/embedding_rows.h), unless it is the head as well, or
  // quantised in the file.
  bool leaves_embedding = false;
  // What was read leaves the page cache behind the reads, so that where memory is limited the trunk
  // is not in it twice.
  bool drops_page_cache = false;
};

struct LayerWeights {
  FloatVector input_norm;  // [hidden_size], before attention
  tensor::WeightView q;    // [num_attention_heads * head_dim][hidden_size]
  tensor::WeightView k;    // [num_key_value_heads * head_dim][hidden_size]
  tensor::WeightView v;    // the same
  tensor::WeightView o;    // [hidden_size][num_attention_heads * head_dim]
  FloatVector q_bias, k_bias, v_bias, o_bias;
  FloatVector q_norm, k_norm;  // [head_dim], or the whole projection
  FloatVector post_norm;       // [hidden_size], before the feed-forward part
  bool is_sparse = false;
  tensor::WeightView router;  // f32, f16 or bf16 [num_experts][hidden_size]; sparse layers only
  // [width][hidden_size] twice and [hidden_size][width]: the layer's own network, or the shared
  // expert if it is sparse. Without rows: there is none.
  tensor::ExpertWeights dense;
  tensor::WeightView shared_gate;  // the same kinds, [1][hidden_size]
  bool has_dense() const { return dense.gate.rows != 0; }
};

// What became of the matrices of one part.
struct TrunkPartReport {
  uint64_t matrix_count = 0;
  uint64_t bytes = 0;                         // in memory
  std::vector<tensor::WeightFormat> formats;  // each once, in the order of the first matrix
  // Against the weights of the file, of the matrices that were converted; nothing: all are as the
  // file has them.
  tensor::QuantisationError error;
};

struct TrunkReport {
  checkpoint::TrunkFormats asked;
  uint64_t bytes = 0;             // in memory, but for rows of an embedding that stays on the drive
  bool leaves_embedding = false;  // it does
  // Empty: it is locked, and never paged out whatever the system is short of.
  std::string why_not_locked;
  std::array<TrunkPartReport, checkpoint::kTrunkPartCount> parts;

  // "embedding int8", "attention int8 (error 0.63 %)", ...: parts that the model has.
  std::string Text() const;
};

struct Trunk {
  AlignedBuffer memory;
  tensor::WeightView embedding;  // [vocab_size][hidden_size]; no rows: embedding_rows has them
  std::unique_ptr<EmbeddingRows> embedding_rows;
  tensor::WeightView head;  // the same shape; the embedding itself if tied
  FloatVector final_norm;   // [hidden_size]
  std::vector<LayerWeights> layers;
  TrunkReport report;
};

// Routed experts, layers beyond num_hidden_layers and other parts that are never run (vision,
// multi-token prediction) are passed over.
// A trunk with a checksum is compared with it meanwhile (model/trunk_check.h).
// Errors: kCorrupt for a missing tensor, a wrong shape, a NaN or infinity, a checksum that differs;
//         kUnsupported for a dtype we do not compute with, or a tensor that the family does not
//         use, or a weight that the format cannot hold; all by name. Of several the first in the
//         trunk, whatever the threads. kExhausted with the bytes of the trunk.
Result<std::unique_ptr<Trunk>> LoadTrunk(const store::ModelFiles& files, const ArchTraits& traits,
                                         const TrunkOptions& options, ThreadPool& pool);

// What LoadTrunk would take, and what of it the embedding if that is not left on the drive: 0 where
// it cannot be. Reads names and shapes only. Errors: as LoadTrunk for those.
struct TrunkSize {
  uint64_t bytes = 0;
  uint64_t embedding_bytes = 0;
};
Result<TrunkSize> MeasureTrunk(const store::ModelFiles& files, const ArchTraits& traits,
                               const checkpoint::TrunkFormats& formats);

}  // namespace smoe::model
