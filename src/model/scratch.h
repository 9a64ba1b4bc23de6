// model/scratch.h: the memory of a step, taken once.
//
// Sized by the largest step that is allowed; a step uses the first rows of each array. All arrays
// are row-major and start at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "kernels/feed_forward.h"
#include "kernels/kernels.h"

namespace smoe::model {

struct ScratchShape {
  size_t row_count_max = 0;
  size_t logit_row_max = 0;
  uint32_t layer_count = 0;
  uint32_t hidden_size = 0;
  uint32_t q_width = 0;   // num_attention_heads * head_dim
  uint32_t kv_width = 0;  // num_key_value_heads * head_dim
  uint32_t attention_heads = 0;
  size_t part_count_max = 0;  // results of attention parts kept at once
  uint32_t rotary_dim = 0;
  uint32_t expert_count = 0;
  uint32_t top_k = 0;
  uint32_t vocab_size = 0;
  // Columns of the widest rows that are quantised; 0: everything is computed in f32.
  uint32_t quantised_width = 0;
};

// One row of the step.
struct StepRow {
  uint32_t sequence = 0;  // index into the step's sequences
  uint32_t token = 0;
  size_t position = 0;
};

// What one thread does of a layer's attention for each key-value head: some rows of one sequence
// over the keys [key_begin, key_end).
struct AttentionTask {
  size_t row_begin = 0;
  size_t row_count = 0;
  size_t key_begin = 0;
  size_t key_end = 0;
  bool is_part = false;  // results go to `slot` and are merged afterwards
  size_t slot = 0;       // the first of row_count
};

// A row whose results lie in parts: part_count slots, slot_stride apart.
struct SplitRow {
  size_t row = 0;
  size_t slot = 0;
  size_t slot_stride = 0;
  size_t part_count = 0;
};

struct Scratch {
  // Errors: kExhausted with the bytes, or if the sizes do not fit 64 bits.
  static Result<Scratch> Create(const ScratchShape& shape);

  AlignedBuffer memory;
  float* hidden = nullptr;          // [rows][hidden_size], the residual stream
  float* normed = nullptr;          // [rows][hidden_size]
  float* branch = nullptr;          // [rows][hidden_size], what a block adds to the stream
  float* q = nullptr;               // [rows][q_width]
  float* k = nullptr;               // [rows][kv_width]
  float* v = nullptr;               // [rows][kv_width]
  float* attended = nullptr;        // [rows][q_width]
  float* attention_work = nullptr;  // [rows][q_width]
  float* part_outs = nullptr;       // [part_count_max][q_width]
  float* cosines = nullptr;         // [rows][rotary_dim / 2]
  float* sines = nullptr;           // the same
  float* router = nullptr;          // [rows][expert_count], logits, then scores
  float* weights = nullptr;         // [rows][top_k]
  float* shared = nullptr;          // [rows][hidden_size]
  float* shared_gate = nullptr;     // [rows]
  float* head_in = nullptr;         // [logit rows][hidden_size]
  float* logits = nullptr;          // [logit rows][vocab_size]

  // Rows of activations in s8, [max(rows, logit rows)][quantised_width]; none with f32 arithmetic.
  kernels::QuantisedBuffer quantised;
  bool quantises = false;

  uint32_t layer_index = 0;          // that is being run, for messages
  std::vector<uint32_t> expert_ids;  // [rows][top_k], rank order
  // Of guesses at what later layers want (model/expert_guess.h).
  std::vector<float> attention_before;  // [layers][hidden_size], of the step before
  std::vector<float> guess_in;          // [kGuessRowsMax][hidden_size]
  std::vector<uint32_t> guessed_ids;    // [rows][top_k + 1], rank order
  float* guessed_scores = nullptr;      // the same
  std::vector<uint32_t> likely_ids;     // of all rows, likeliest first
  std::vector<uint8_t> row_is_bad;      // [rows], written by threads, read after the join
  std::vector<uint8_t> row_is_finite;   // [max(rows, logit rows)], of what was quantised last
  std::vector<StepRow> rows;            // [rows]
  std::vector<kernels::AttentionState> attention_states;  // [rows][attention_heads]
  std::vector<kernels::AttentionState> part_states;       // [part_count_max][attention_heads]
  std::vector<AttentionTask> attention_tasks;             // up to rows + part_count_max
  std::vector<SplitRow> split_rows;                       // up to rows
  std::vector<size_t> logit_rows;                         // [logit rows], the row each belongs to
  std::vector<uint8_t> is_failed;                         // [sequences]
};

}  // namespace smoe::model
