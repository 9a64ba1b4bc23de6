// model/scratch.h: the memory of a step, taken once.
//
// Sized by the largest step that is allowed; a step uses the first rows of each array. All arrays
// are row-major and start at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/result.h"

namespace smoe::model {

struct ScratchShape {
  size_t row_count_max = 0;
  size_t logit_row_max = 0;
  uint32_t hidden_size = 0;
  uint32_t q_width = 0;   // num_attention_heads * head_dim
  uint32_t kv_width = 0;  // num_key_value_heads * head_dim
  uint32_t rotary_dim = 0;
  uint32_t expert_count = 0;
  uint32_t top_k = 0;
  uint32_t vocab_size = 0;
};

// One row of the step.
struct StepRow {
  uint32_t sequence = 0;  // index into the step's sequences
  uint32_t token = 0;
  size_t position = 0;
};

struct Scratch {
  // Errors: kExhausted with the bytes, or if the sizes do not fit 64 bits.
  static Result<Scratch> Create(const ScratchShape& shape);

  AlignedBuffer memory;
  float* hidden = nullptr;       // [rows][hidden_size], the residual stream
  float* normed = nullptr;       // [rows][hidden_size]
  float* branch = nullptr;       // [rows][hidden_size], what a block adds to the stream
  float* q = nullptr;            // [rows][q_width]
  float* k = nullptr;            // [rows][kv_width]
  float* v = nullptr;            // [rows][kv_width]
  float* attended = nullptr;     // [rows][q_width]
  float* cosines = nullptr;      // [rows][rotary_dim / 2]
  float* sines = nullptr;        // the same
  float* router = nullptr;       // [rows][expert_count], logits, then scores
  float* weights = nullptr;      // [rows][top_k]
  float* shared = nullptr;       // [rows][hidden_size]
  float* shared_gate = nullptr;  // [rows]
  float* head_in = nullptr;      // [logit rows][hidden_size]
  float* logits = nullptr;       // [logit rows][vocab_size]

  std::vector<uint32_t> expert_ids;  // [rows][top_k], rank order
  std::vector<uint8_t> row_is_bad;   // [rows], written by threads, read after the join
  std::vector<StepRow> rows;         // [rows]
  std::vector<size_t> logit_rows;    // [logit rows], the row each belongs to
  std::vector<uint8_t> is_failed;    // [sequences]
};

}  // namespace smoe::model
