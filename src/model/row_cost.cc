#include "model/row_cost.h"

namespace smoe::model {

namespace {

uint64_t BytesOf(const tensor::WeightView& matrix) {
  return matrix.data.size() + matrix.scales.size();
}

uint64_t WeightsOf(const tensor::WeightView& matrix) { return uint64_t{matrix.rows} * matrix.cols; }

}  // namespace

RowCost CostOfRow(const Trunk& trunk) {
  RowCost cost;
  for (const LayerWeights& layer : trunk.layers) {
    for (const tensor::WeightView* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.router, &layer.dense.gate, &layer.dense.up,
          &layer.dense.down, &layer.shared_gate}) {
      cost.layer_bytes += BytesOf(*matrix);
      cost.layer_weights += WeightsOf(*matrix);
    }
    for (const FloatVector* vector :
         {&layer.input_norm, &layer.post_norm, &layer.q_norm, &layer.k_norm, &layer.q_bias,
          &layer.k_bias, &layer.v_bias, &layer.o_bias}) {
      cost.layer_bytes += vector->size_bytes();
    }
  }
  cost.head_bytes = BytesOf(trunk.head) + trunk.final_norm.size_bytes();
  cost.head_weights = WeightsOf(trunk.head);
  cost.head_format = tensor::WeightFormatName(trunk.head.format);
  if (!trunk.layers.empty()) cost.format = tensor::WeightFormatName(trunk.layers.front().q.format);
  return cost;
}

}  // namespace smoe::model
