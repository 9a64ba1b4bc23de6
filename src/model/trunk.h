// model/trunk.h: every weight of a model but the routed experts, in memory.
//
// One anonymous buffer holds all of it, so that it is never read from a file again: matrices in
// their own dtype, norms, biases and the router in f32. Each starts at a multiple of 64 bytes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "model/arch/arch_traits.h"
#include "store/model_files.h"
#include "tensor/tensor.h"
#include "tensor/weights.h"

namespace smoe::model {

using FloatVector = std::span<const float>;  // empty: the model has none

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
  tensor::WeightView router;  // f32 [num_experts][hidden_size]; sparse layers only
  // [width][hidden_size] twice and [hidden_size][width]: the layer's own network, or the shared
  // expert if it is sparse. Without rows: there is none.
  tensor::ExpertWeights dense;
  tensor::WeightView shared_gate;  // f32 [1][hidden_size]
  bool has_dense() const { return dense.gate.rows != 0; }
};

struct Trunk {
  AlignedBuffer memory;
  tensor::TensorView embedding;  // [vocab_size, hidden_size]
  tensor::WeightView head;       // the same shape; the embedding itself if tied
  FloatVector final_norm;        // [hidden_size]
  std::vector<LayerWeights> layers;
};

// Reads the trunk in pieces of kTrunkPieceBytes at most. Routed experts, layers beyond
// num_hidden_layers and other parts that are never run (vision, multi-token prediction) are passed
// over.
// Errors: kCorrupt for a missing tensor, a wrong shape, a NaN or infinity; kUnsupported for a dtype
//         we do not compute with, or a tensor that the family does not use; all by name.
//         kExhausted with the bytes of the trunk.
Result<std::unique_ptr<Trunk>> LoadTrunk(const store::ModelFiles& files, const ArchTraits& traits);

inline constexpr uint64_t kTrunkPieceBytes = uint64_t{4} << 20;

}  // namespace smoe::model
