// model/row_cost.h: what the trunk costs one token row, in bytes read and weights multiplied.
#pragma once

#include <cstdint>

#include "model/trunk.h"

namespace smoe::model {

struct RowCost {
  // Everything but embedding and head: what each step reads once, however many rows it has.
  uint64_t layer_bytes = 0;
  uint64_t head_bytes = 0;  // read once by a step that wants logits
  // Weights that one row is multiplied with: two operations each.
  uint64_t layer_weights = 0;
  uint64_t head_weights = 0;
  const char* format = "";       // of the attention's matrices
  const char* head_format = "";  // of the output head
};

RowCost CostOfRow(const Trunk& trunk);

}  // namespace smoe::model
