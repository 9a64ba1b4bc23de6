#include "model/scratch.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "experts/backend.h"

namespace smoe::model {

Result<Scratch> Scratch::Create(const ScratchShape& shape) {
  struct Part {
    float* Scratch::*member;
    uint64_t rows;
    uint64_t width;
  };
  const uint64_t rows = shape.row_count_max;
  const Part parts[] = {
      {&Scratch::hidden, rows, shape.hidden_size},
      {&Scratch::normed, rows, shape.hidden_size},
      {&Scratch::branch, rows, shape.hidden_size},
      {&Scratch::q, rows, shape.q_width},
      {&Scratch::k, rows, shape.kv_width},
      {&Scratch::v, rows, shape.kv_width},
      {&Scratch::attended, rows, shape.q_width},
      {&Scratch::attention_work, rows, shape.q_width},
      {&Scratch::part_outs, shape.part_count_max, shape.q_width},
      {&Scratch::cosines, rows, shape.rotary_dim / 2},
      {&Scratch::sines, rows, shape.rotary_dim / 2},
      {&Scratch::router, rows, shape.expert_count},
      {&Scratch::weights, rows, shape.top_k},
      {&Scratch::guessed_scores, rows, uint64_t{shape.top_k} + 1},
      {&Scratch::shared, rows, shape.hidden_size},
      {&Scratch::shared_gate, rows, 1},
      {&Scratch::head_in, shape.logit_row_max, shape.hidden_size},
      {&Scratch::logits, shape.logit_row_max, shape.vocab_size},
  };
  // Half of the address space is more than any machine has, and leaves room for the rounding.
  constexpr uint64_t kBytesMax = uint64_t{1} << 62;
  uint64_t total = 0;
  for (const Part& part : parts) {
    const std::optional<uint64_t> floats = CheckedMul(part.rows, part.width);
    const std::optional<uint64_t> bytes =
        floats ? CheckedMul(*floats, sizeof(float)) : std::nullopt;
    if (!bytes || *bytes > kBytesMax - total) {
      return Exhausted("activations: {} rows and {} rows of logits do not fit any memory", rows,
                       shape.logit_row_max);
    }
    total += RoundUp(*bytes, kCacheLineBytes);
  }
  Scratch scratch;
  SMOE_TRY_ASSIGN(scratch.memory, AlignedBuffer::Create(total, "activations"));
  uint64_t offset = 0;
  for (const Part& part : parts) {
    scratch.*part.member = scratch.memory.As<float>().data() + offset / sizeof(float);
    offset += RoundUp(part.rows * part.width * sizeof(float), kCacheLineBytes);
  }
  const size_t quantised_rows = std::max(shape.row_count_max, shape.logit_row_max);
  scratch.quantises = shape.quantised_width != 0;
  if (scratch.quantises) {
    SMOE_TRY_ASSIGN(scratch.quantised,
                    kernels::QuantisedBuffer::Create(quantised_rows, shape.quantised_width,
                                                     "activations in integers"));
  }
  scratch.row_is_finite.resize(quantised_rows);
  scratch.expert_ids.resize(shape.row_count_max * shape.top_k);
  scratch.attention_before.resize(size_t{shape.layer_count} * shape.hidden_size);
  scratch.guess_in.resize(experts::kGuessRowsMax * shape.hidden_size);
  scratch.guessed_ids.resize(shape.row_count_max * (size_t{shape.top_k} + 1));
  scratch.likely_ids.reserve(shape.row_count_max * shape.top_k);
  scratch.row_is_bad.resize(shape.row_count_max);
  scratch.attention_states.resize(shape.row_count_max * shape.attention_heads);
  scratch.part_states.resize(shape.part_count_max * shape.attention_heads);
  scratch.attention_tasks.reserve(shape.row_count_max + shape.part_count_max);
  scratch.split_rows.reserve(shape.row_count_max);
  scratch.rows.reserve(shape.row_count_max);
  scratch.logit_rows.reserve(shape.logit_row_max);
  scratch.is_failed.reserve(shape.row_count_max);
  return scratch;
}

}  // namespace smoe::model
