// The definition of attention, as the table says it in words.
#include "kernels/scalar.h"
#include "tensor/dtype.h"

namespace smoe::kernels {

namespace {

const std::byte* HeadOf(const AttentionJob& job, size_t key) {
  return job.pages[key / kAttentionPage] + job.page_offset;
}

float Score(const AttentionJob& job, const float* query, size_t key) {
  const std::byte* head = HeadOf(job, key);
  float sum = 0;
  for (size_t i = 0; i < job.head_dim; ++i) {
    sum = Fma(query[i], KvKeyAt(job.kind, head, job.head_dim, key % kAttentionPage, i), sum);
  }
  return sum * job.scale;
}

// Keys [begin, end) of one part, at least one.
AttentionState AttendPart(const AttentionJob& job, const float* query, size_t begin, size_t end,
                          float* out) {
  float weights[kAttentionPart] = {};
  for (size_t key = begin; key < end; ++key) weights[key - begin] = Score(job, query, key);
  const float max = MaxOf(weights, end - begin, -kInfinity);
  float lanes[kSumLanes] = {};
  for (size_t i = 0; i < job.head_dim; ++i) out[i] = 0;
  for (size_t key = begin; key < end; ++key) {
    const float weight = Exp(weights[key - begin] - max);
    lanes[key % kSumLanes] += weight;
    const std::byte* head = HeadOf(job, key);
    for (size_t i = 0; i < job.head_dim; ++i) {
      const float value = KvValueAt(job.kind, head, job.head_dim, key % kAttentionPage, i);
      out[i] = Fma(weight, value, out[i]);
    }
  }
  return {max, SumLanes(lanes)};
}

void MergePart(const AttentionState& part, const float* part_out, size_t head_dim,
               AttentionState* state, float* out) {
  const float max = part.max > state->max ? part.max : state->max;
  const float old_factor = Exp(state->max - max);
  const float part_factor = Exp(part.max - max);
  state->max = max;
  state->sum = Fma(state->sum, old_factor, part.sum * part_factor);
  for (size_t i = 0; i < head_dim; ++i) out[i] = Fma(out[i], old_factor, part_out[i] * part_factor);
}

void AttendQuery(const AttentionJob& job, const AttentionQuery& query) {
  *query.state = {-kInfinity, 0};
  const size_t last = query.key_count < job.key_end ? query.key_count : job.key_end;
  size_t begin = query.first_key > job.key_begin ? query.first_key : job.key_begin;
  while (begin < last) {
    const size_t part_end = (begin / kAttentionPart + 1) * kAttentionPart;
    const size_t end = part_end < last ? part_end : last;
    if (query.state->sum == 0) {
      *query.state = AttendPart(job, query.query, begin, end, query.out);
    } else {
      const AttentionState part = AttendPart(job, query.query, begin, end, job.work);
      MergePart(part, job.work, job.head_dim, query.state, query.out);
    }
    begin = end;
  }
}

}  // namespace

void ToF16Scalar(const float* x, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = tensor::F16FromF32(x[i]);
}

void AttendScalar(const AttentionJob& job) {
  for (size_t i = 0; i < job.query_count; ++i) AttendQuery(job, job.queries[i]);
}

void MergeAttentionScalar(const AttentionParts& parts, size_t head_dim, float* out) {
  AttentionState state = {-kInfinity, 0};
  for (size_t part = 0; part < parts.count; ++part) {
    const AttentionState& next = parts.states[part * parts.state_stride];
    const float* values = parts.outs + part * parts.out_stride;
    if (next.sum == 0) continue;
    if (state.sum == 0) {
      state = next;
      for (size_t i = 0; i < head_dim; ++i) out[i] = values[i];
    } else {
      MergePart(next, values, head_dim, &state, out);
    }
  }
  if (state.sum == 0) {
    for (size_t i = 0; i < head_dim; ++i) out[i] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  for (size_t i = 0; i < head_dim; ++i) out[i] /= state.sum;
}

}  // namespace smoe::kernels
