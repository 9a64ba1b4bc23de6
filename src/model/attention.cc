// Source: arXiv:2305.13245 (grouped queries); transformers 5.24, Qwen3MoeAttention and its kin.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/stopwatch.h"
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
  kv->Write(forward.kernels, layer_index, step_row.position, k, v);
}

// Keys before this one are outside the window of `position`, which sees itself and window - 1 more.
size_t FirstKey(const checkpoint::ModelConfig& config, uint32_t layer_index, size_t position) {
  const bool slides = config.sliding_window != 0 && layer_index < config.layer_is_sliding.size() &&
                      config.layer_is_sliding[layer_index];
  if (!slides || position < config.sliding_window) return 0;
  return position + 1 - config.sliding_window;
}

// Queries of one job at most: enough to use a part of the keys well while it is in a near cache.
constexpr size_t kQueriesTogether = 64;
// Rows that one thread finishes at least: neighbours write to the same lines of the key pages.
constexpr size_t kFinishGrain = 8;
constexpr size_t kMergeGrain = 4;

size_t GroupSize(const checkpoint::ModelConfig& config) {
  return config.num_attention_heads / config.num_key_value_heads;
}

// Rows [begin, end) of one sequence: part by part if that gives threads work which they would not
// have, and if its results find room; else in one piece. Bits are the same.
void AddTasks(const Forward& forward, uint32_t layer_index, size_t begin, size_t end, bool split,
              size_t* slot) {
  constexpr size_t kPart = kernels::kAttentionPart;
  Scratch& scratch = forward.scratch;
  const size_t row_count = end - begin;
  const size_t first_key =
      FirstKey(forward.config, layer_index, scratch.rows[begin].position) / kPart * kPart;
  const size_t key_count = scratch.rows[end - 1].position + 1;
  const size_t part_count = (key_count - first_key + kPart - 1) / kPart;
  const size_t slots_left = scratch.part_states.size() / forward.config.num_attention_heads - *slot;
  if (!split || part_count == 1 || part_count > slots_left / row_count) {
    scratch.attention_tasks.push_back({begin, row_count, first_key, key_count});
    return;
  }
  for (size_t row = begin; row < end; ++row) {
    scratch.split_rows.push_back({row, *slot + row - begin, row_count, part_count});
  }
  for (size_t key = first_key; key < key_count; key += kPart) {
    scratch.attention_tasks.push_back({begin, row_count, key, key + kPart, true, *slot});
    *slot += row_count;
  }
}

// Cuts the rows into blocks of one sequence each.
void PlanAttention(const Forward& forward, uint32_t layer_index) {
  Scratch& scratch = forward.scratch;
  const size_t row_count = forward.row_count();
  const size_t rows_together = std::max<size_t>(1, kQueriesTogether / GroupSize(forward.config));
  const auto block_end = [&](size_t begin) {
    size_t end = begin + 1;
    while (end < row_count && end - begin < rows_together &&
           scratch.rows[end].sequence == scratch.rows[begin].sequence) {
      ++end;
    }
    return end;
  };
  size_t block_count = 0;
  for (size_t row = 0; row < row_count; row = block_end(row)) ++block_count;
  const bool split = block_count * forward.config.num_key_value_heads <
                     kPiecesPerThread * forward.pool.thread_count();
  scratch.attention_tasks.clear();
  scratch.split_rows.clear();
  size_t slot = 0;
  for (size_t row = 0; row < row_count; row = block_end(row)) {
    AddTasks(forward, layer_index, row, block_end(row), split, &slot);
  }
}

// Query `index` of a task: its rows in order, in each the heads that share the keys.
kernels::AttentionQuery QueryOf(const Forward& forward, uint32_t layer_index,
                                const AttentionTask& task, uint32_t kv_head, size_t index) {
  const checkpoint::ModelConfig& config = forward.config;
  Scratch& scratch = forward.scratch;
  const size_t group = GroupSize(config);
  const size_t row_in_task = index / group;
  const size_t row = task.row_begin + row_in_task;
  const size_t head = kv_head * group + index % group;
  const size_t heads = config.num_attention_heads;
  const size_t position = scratch.rows[row].position;
  kernels::AttentionQuery query;
  query.query = scratch.q + (row * heads + head) * config.head_dim;
  query.first_key = FirstKey(config, layer_index, position);
  query.key_count = position + 1;
  const size_t at = (task.is_part ? task.slot + row_in_task : row) * heads + head;
  query.out = (task.is_part ? scratch.part_outs : scratch.attended) + at * config.head_dim;
  query.state = &(task.is_part ? scratch.part_states : scratch.attention_states)[at];
  return query;
}

void RunTask(const Forward& forward, uint32_t layer_index, const AttentionTask& task,
             uint32_t kv_head) {
  const checkpoint::ModelConfig& config = forward.config;
  const KvSequence& kv = *forward.sequences[forward.scratch.rows[task.row_begin].sequence].kv;
  const size_t query_total = task.row_count * GroupSize(config);
  kernels::AttentionQuery queries[kQueriesTogether];
  kernels::AttentionJob job;
  job.kind = kv.kind();
  job.head_dim = config.head_dim;
  job.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  job.pages = kv.Pages(layer_index).data();
  job.page_offset = kv.HeadOffset(kv_head);
  job.key_begin = task.key_begin;
  job.key_end = task.key_end;
  job.queries = queries;
  // The place of these rows' and heads' own results: nobody else's.
  job.work =
      forward.scratch.attention_work +
      (task.row_begin * config.num_attention_heads + kv_head * query_total) * config.head_dim;
  for (size_t first = 0; first < query_total; first += kQueriesTogether) {
    job.query_count = std::min(kQueriesTogether, query_total - first);
    for (size_t i = 0; i < job.query_count; ++i) {
      queries[i] = QueryOf(forward, layer_index, task, kv_head, first + i);
    }
    forward.kernels.attend(job);
    if (task.is_part) continue;
    for (size_t i = 0; i < job.query_count; ++i) {
      const kernels::AttentionParts whole = {queries[i].state, 0, queries[i].out, 0, 1};
      forward.kernels.merge_attention(whole, config.head_dim, queries[i].out);
    }
  }
}

void MergeHead(const Forward& forward, const SplitRow& split, size_t head) {
  const Scratch& scratch = forward.scratch;
  const size_t heads = forward.config.num_attention_heads;
  const size_t head_dim = forward.config.head_dim;
  const size_t at = split.slot * heads + head;
  forward.kernels.merge_attention({.states = scratch.part_states.data() + at,
                                   .state_stride = split.slot_stride * heads,
                                   .outs = scratch.part_outs + at * head_dim,
                                   .out_stride = split.slot_stride * heads * head_dim,
                                   .count = split.part_count},
                                  head_dim,
                                  scratch.attended + (split.row * heads + head) * head_dim);
}

// What lies between the projections: keys and values into the cache, and the sums over them.
void Attend(const Forward& forward, const LayerWeights& layer, uint32_t layer_index) {
  const Timed timed(forward.profile.of(Phase::kAttend));
  const Scratch& scratch = forward.scratch;
  const auto finish = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) FinishRow(forward, layer, layer_index, row);
  };
  forward.pool.ParallelFor(forward.row_count(), kFinishGrain, std::ref(finish));
  PlanAttention(forward, layer_index);
  // Head by head, not row by row: late rows see more keys, and every thread gets its share of them.
  const size_t task_count = scratch.attention_tasks.size();
  const auto attend = [&](size_t begin, size_t end) {
    for (size_t index = begin; index < end; ++index) {
      RunTask(forward, layer_index, scratch.attention_tasks[index % task_count],
              static_cast<uint32_t>(index / task_count));
    }
  };
  forward.pool.ParallelFor(task_count * forward.config.num_key_value_heads, 1, std::ref(attend));
  const size_t heads = forward.config.num_attention_heads;
  const auto merge = [&](size_t begin, size_t end) {
    for (size_t index = begin; index < end; ++index) {
      MergeHead(forward, scratch.split_rows[index / heads], index % heads);
    }
  };
  forward.pool.ParallelFor(scratch.split_rows.size() * heads, kMergeGrain, std::ref(merge));
}

}  // namespace

void RunAttention(const Forward& forward, const LayerWeights& layer, uint32_t layer_index) {
  const Scratch& scratch = forward.scratch;
  const size_t row_count = forward.row_count();
  const Projection inputs[] = {{&layer.q, layer.q_bias, scratch.q},
                               {&layer.k, layer.k_bias, scratch.k},
                               {&layer.v, layer.v_bias, scratch.v}};
  {
    const Timed timed(forward.profile.of(Phase::kProjections));
    Project(forward, {scratch.normed, row_count, forward.config.hidden_size}, inputs);
  }
  Attend(forward, layer, layer_index);
  const Timed timed(forward.profile.of(Phase::kProjections));
  const Projection output[] = {{&layer.o, layer.o_bias, scratch.branch}};
  Project(forward, {scratch.attended, row_count, layer.o.cols}, output);
}

}  // namespace smoe::model
