// kernels/attention_merge.h: exponentials, and the merging of parts, for attention_pages.h and
// attention_tiles.h alone. attention_pages.h says what V is.
#pragma once

#include "kernels/internal.h"

namespace smoe::kernels {

template <class V>
typename V::Vector Exp(typename V::Vector x) {
  // Of a NaN and a number these two return the second operand: the NaN.
  x = V::Min(V::Set(kExpMax), x);
  x = V::Max(V::Set(kExpMin), x);
  const auto round = V::Set(kExpRound);
  const auto n = V::Sub(V::Fma(x, V::Set(kExpLog2E), round), round);
  auto r = V::Fma(n, V::Set(-kExpLn2High), x);
  r = V::Fma(n, V::Set(-kExpLn2Low), r);
  auto power = V::Set(kExpTerms[0]);
  for (int term = 1; term < 8; ++term) power = V::Fma(power, r, V::Set(kExpTerms[term]));
  return V::TimesPowerOfTwo(power, n);
}

template <class V>
float ExpOf(float x) {
  return V::First(Exp<V>(V::Set(x)));
}

template <class V>
void MergePart(const AttentionState& part, const float* part_out, size_t head_dim,
               AttentionState* state, float* out) {
  const float max = part.max > state->max ? part.max : state->max;
  const float old_factor = ExpOf<V>(state->max - max);
  const float part_factor = ExpOf<V>(part.max - max);
  state->max = max;
  state->sum = __builtin_fmaf(state->sum, old_factor, part.sum * part_factor);
  size_t i = 0;
  for (; i + kSumLanes <= head_dim; i += kSumLanes) {
    const auto scaled = V::Mul(V::LoadFloats(part_out + i), V::Set(part_factor));
    V::Store(out + i, V::Fma(V::LoadFloats(out + i), V::Set(old_factor), scaled));
  }
  for (; i < head_dim; ++i) out[i] = __builtin_fmaf(out[i], old_factor, part_out[i] * part_factor);
}

// Parts that are merged together: their exponentials fill a vector.
struct MergedParts {
  size_t count;
  const float* outs[kSumLanes];
  float sums[kSumLanes];
  float old_factors[kSumLanes];  // differences of maxima at first
  float part_factors[kSumLanes];
};

// The arithmetic of MergePart, part after part.
template <class V>
void MergeTogether(MergedParts* parts, size_t head_dim, float* sum, float* out) {
  V::Store(parts->old_factors, Exp<V>(V::LoadFloats(parts->old_factors)));
  V::Store(parts->part_factors, Exp<V>(V::LoadFloats(parts->part_factors)));
  for (size_t p = 0; p < parts->count; ++p) {
    *sum = __builtin_fmaf(*sum, parts->old_factors[p], parts->sums[p] * parts->part_factors[p]);
  }
  size_t i = 0;
  for (; i + kSumLanes <= head_dim; i += kSumLanes) {
    auto merged = V::LoadFloats(out + i);
    for (size_t p = 0; p < parts->count; ++p) {
      const auto scaled = V::Mul(V::LoadFloats(parts->outs[p] + i), V::Set(parts->part_factors[p]));
      merged = V::Fma(merged, V::Set(parts->old_factors[p]), scaled);
    }
    V::Store(out + i, merged);
  }
  for (; i < head_dim; ++i) {
    for (size_t p = 0; p < parts->count; ++p) {
      const float scaled = parts->outs[p][i] * parts->part_factors[p];
      out[i] = __builtin_fmaf(out[i], parts->old_factors[p], scaled);
    }
  }
}

template <class V>
void MergeAttentionWith(const AttentionParts& parts, size_t head_dim, float* out) {
  AttentionState state = {-__builtin_inff(), 0};
  size_t part = 0;
  while (part < parts.count) {
    MergedParts merged = {};
    for (; part < parts.count && merged.count < kSumLanes; ++part) {
      const AttentionState& next = parts.states[part * parts.state_stride];
      const float* values = parts.outs + part * parts.out_stride;
      if (next.sum == 0) continue;
      if (state.sum == 0) {
        state = next;
        for (size_t i = 0; i < head_dim; ++i) out[i] = values[i];
        continue;
      }
      // A sum of weights of which the largest is 1 stays above zero: only the first part is copied.
      const float max = next.max > state.max ? next.max : state.max;
      merged.outs[merged.count] = values;
      merged.sums[merged.count] = next.sum;
      merged.old_factors[merged.count] = state.max - max;
      merged.part_factors[merged.count++] = next.max - max;
      state.max = max;
    }
    if (merged.count > 0) MergeTogether<V>(&merged, head_dim, &state.sum, out);
  }
  if (state.sum == 0) {
    for (size_t i = 0; i < head_dim; ++i) out[i] = __builtin_nanf("");
    return;
  }
  size_t i = 0;
  for (; i + kSumLanes <= head_dim; i += kSumLanes) {
    V::Store(out + i, V::Div(V::LoadFloats(out + i), V::Set(state.sum)));
  }
  for (; i < head_dim; ++i) out[i] /= state.sum;
}

}  // namespace smoe::kernels
