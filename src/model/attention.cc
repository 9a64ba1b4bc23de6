// Source: arXiv:2305.13245 (grouped queries); transformers 5.24, Qwen3MoeAttention and its kin.
#include <algorithm>
#include <cmath>
#include <functional>

#include "model/forward.h"

namespace smoe::model {

namespace {

void NormHeads(const Forward& forward, FloatVector weight, float* heads, size_t width) {
  if (weight.empty()) return;
  for (size_t first = 0; first < width; first += weight.size()) {
    forward.kernels.rms_norm(heads + first, weight.data(), forward.eps(), weight.size(),
                             heads + first);
  }
}

void Clip(float limit, float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -limit, limit);
}

// Norms, clamps and rotates the queries and keys of one row; stores key and value in the cache.
void FinishRow(const Forward& forward, const LayerWeights& layer, uint32_t layer_index,
               size_t row) {
  const checkpoint::ModelConfig& config = forward.config;
  const size_t head_dim = config.head_dim;
  const size_t q_width = config.num_attention_heads * head_dim;
  const size_t kv_width = config.num_key_value_heads * head_dim;
  float* const q = forward.scratch.q + row * q_width;
  float* const k = forward.scratch.k + row * kv_width;
  float* const v = forward.scratch.v + row * kv_width;
  NormHeads(forward, layer.q_norm, q, q_width);
  NormHeads(forward, layer.k_norm, k, kv_width);
  if (config.clip_qkv > 0) {
    const auto limit = static_cast<float>(config.clip_qkv);
    Clip(limit, q, q_width);
    Clip(limit, k, kv_width);
    Clip(limit, v, kv_width);
  }
  const size_t half = forward.rope.rotary_dim() / 2;
  const float* const cosines = forward.scratch.cosines + row * half;
  const float* const sines = forward.scratch.sines + row * half;
  for (size_t at = 0; at < q_width; at += head_dim) forward.rope.Apply(cosines, sines, q + at);
  for (size_t at = 0; at < kv_width; at += head_dim) forward.rope.Apply(cosines, sines, k + at);
  const StepRow& step_row = forward.scratch.rows[row];
  KvSequence* const kv = forward.sequences[step_row.sequence].kv;
  std::copy_n(k, kv_width, kv->Key(layer_index, step_row.position));
  std::copy_n(v, kv_width, kv->Value(layer_index, step_row.position));
}

// Keys before this one are outside the window of `position`, which sees itself and window - 1 more.
size_t FirstKey(const checkpoint::ModelConfig& config, uint32_t layer_index, size_t position) {
  const bool slides = config.sliding_window != 0 && layer_index < config.layer_is_sliding.size() &&
                      config.layer_is_sliding[layer_index];
  if (!slides || position < config.sliding_window) return 0;
  return position + 1 - config.sliding_window;
}

void AttendHead(const Forward& forward, uint32_t layer_index, size_t row, uint32_t head) {
  const checkpoint::ModelConfig& config = forward.config;
  const StepRow& step_row = forward.scratch.rows[row];
  const KvSequence& kv = *forward.sequences[step_row.sequence].kv;
  const uint32_t kv_head = head / (config.num_attention_heads / config.num_key_value_heads);
  const size_t at = (row * config.num_attention_heads + head) * config.head_dim;
  kernels::AttentionJob job;
  job.query = forward.scratch.q + at;
  job.key_pages = kv.KeyPages(layer_index, kv_head).data();
  job.value_pages = kv.ValuePages(layer_index, kv_head).data();
  job.page_tokens = kKvPageTokens;
  job.kv_stride = size_t{config.num_key_value_heads} * config.head_dim;
  job.first_key = FirstKey(config, layer_index, step_row.position);
  job.key_count = step_row.position + 1;
  job.head_dim = config.head_dim;
  job.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  job.out = forward.scratch.attended + at;
  forward.kernels.attend(job);
}

}  // namespace

void RunAttention(const Forward& forward, const LayerWeights& layer, uint32_t layer_index) {
  const Scratch& scratch = forward.scratch;
  const size_t row_count = forward.row_count();
  const Projection inputs[] = {{&layer.q, layer.q_bias, scratch.q},
                               {&layer.k, layer.k_bias, scratch.k},
                               {&layer.v, layer.v_bias, scratch.v}};
  Project(forward, {scratch.normed, row_count, forward.config.hidden_size}, inputs);
  const auto finish = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) FinishRow(forward, layer, layer_index, row);
  };
  forward.pool.ParallelFor(row_count, 1, std::ref(finish));
  // Head by head, not row by row: late rows see more keys, and every thread gets its share of them.
  const auto attend = [&](size_t begin, size_t end) {
    for (size_t index = begin; index < end; ++index) {
      AttendHead(forward, layer_index, index % row_count, static_cast<uint32_t>(index / row_count));
    }
  };
  forward.pool.ParallelFor(row_count * forward.config.num_attention_heads, 1, std::ref(attend));
  const Projection output[] = {{&layer.o, layer.o_bias, scratch.branch}};
  Project(forward, {scratch.attended, row_count, layer.o.cols}, output);
}

}  // namespace smoe::model
