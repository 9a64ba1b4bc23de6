// kernels/attention_pages.h: attention over one page of keys, then of values, for the queries of a
// tile: scores, weights, sums. For attention_tiles.h alone.
//
// Keys lie in lanes in the first sweep, elements of the head in the second; neither adds across
// lanes. While a page is in use, the next is fetched line by line: alone, the processor stops at
// every 4 KiB. Where kFetchesBetween, a few lines of each are left for the time between the sweeps,
// so that memory does not stand still then.
//
// V has: Vector, 16 floats; Register, kLanes floats, for the two loops that take all the time: g++
// keeps no struct of registers out of memory there. kQueries, queries whose sums the registers
// hold; Wide(queries), registers that each of them takes at once; kFetchesBetween; and the
// operations used below.
#pragma once

#include "kernels/attention_merge.h"

namespace smoe::kernels {

// One part for up to kAttentionTile queries.
struct AttentionTile {
  size_t query_count;
  size_t begin[kAttentionTile];  // keys seen in this part, from the beginning of the sequence
  size_t end[kAttentionTile];
  const float* query[kAttentionTile];
  float* out[kAttentionTile];
  float max[kAttentionTile];
  float sum[kAttentionTile];
  size_t page_begin;  // pages that any of them sees
  size_t page_end;
  size_t page_total;  // that exist
};

using AttentionWeights = float[kAttentionTile][kAttentionPart];

template <class V>
size_t Lesser(size_t a, size_t b) {
  return a < b ? a : b;
}

// Elements of keys and values. Those of kInt8 are codes until they are multiplied with their scale;
// the other kinds have none, and Scaled gives back what it gets.
template <class V, KvKind kKind>
struct KvElements {
  static constexpr bool kScaled = kKind == KvKind::kInt8;
  static constexpr size_t kBytes = kScaled ? 1 : kKind == KvKind::kF16 ? 2 : 4;
  static constexpr size_t kScaleBytes = 2;

  static typename V::Register Load(const uint8_t* at) {
    if constexpr (kScaled) return V::LoadInt8(at);
    if constexpr (kKind == KvKind::kF16) return V::LoadF16(at);
    return V::LoadF32(at);
  }
  // The first `count`; nothing behind them is read.
  static typename V::Register LoadFirst(const uint8_t* at, size_t count) {
    alignas(64) uint8_t copy[V::kLanes * kBytes] = {};
    for (size_t i = 0; i < count * kBytes; ++i) copy[i] = at[i];
    return Load(copy);
  }

  static size_t GroupCount(size_t head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }
  static size_t ScalesBytes(size_t head_dim) {  // of a page of keys, or of values
    return kScaled ? kAttentionPage * GroupCount(head_dim) * kScaleBytes : 0;
  }
  // `scales`: those of the page.
  static typename V::Register KeyScales(const uint8_t* scales, size_t group, size_t key) {
    if constexpr (!kScaled) return V::SetRegister(1);
    return V::LoadBf16(scales + (group * kAttentionPage + key) * kScaleBytes);
  }
  static typename V::Register ValueScale(const uint8_t* scales, size_t head_dim, size_t key,
                                         size_t index) {
    if constexpr (!kScaled) return V::SetRegister(1);
    const size_t at = key * GroupCount(head_dim) + index / kKvGroup;
    uint16_t high;
    __builtin_memcpy(&high, scales + at * kScaleBytes, sizeof(high));
    const uint32_t bits = static_cast<uint32_t>(high) << 16;
    float scale;
    __builtin_memcpy(&scale, &bits, sizeof(scale));
    return V::SetRegister(scale);
  }
  static typename V::Register Scaled(typename V::Register codes, typename V::Register scale) {
    if constexpr (kScaled) return V::Mul(codes, scale);
    return codes;
  }
};

// Fetches the 64-byte lines of `bytes` bytes.
template <class V>
[[gnu::always_inline]] inline void Fetch(const uint8_t* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) V::Prefetch(at + i);
}

// What is fetched while something else is in use: the bytes before `first` lie behind at[0], the
// others behind at[1]. Numbers, as at[1] may lie before its page. A prefetch cannot fault.
struct AttentionAhead {
  uintptr_t at[2];
  size_t first;
};

template <class V>
[[gnu::always_inline]] inline void FetchAhead(const AttentionAhead& ahead, size_t offset,
                                              size_t bytes) {
  uintptr_t base = ahead.at[0];
  if (V::kFetchesBetween && offset >= ahead.first) base = ahead.at[1];
  Fetch<V>(reinterpret_cast<const uint8_t*>(base + offset), bytes);
}

// Rows of keys or values, `bytes` of each, that share a line of what is fetched meanwhile.
template <class V>
constexpr size_t RowsOfALine(size_t bytes) {
  return bytes < 64 ? 64 / bytes : 1;
}

// sums[q] += factors[q] * row, for kQ queries.
template <class V, size_t kQ, size_t kW, class FactorOf>
[[gnu::always_inline]] inline void AddRow(const typename V::Register (&row)[kW],
                                          const FactorOf& factor_of,
                                          typename V::Register (&sums)[kQ][kW]) {
  for (size_t q = 0; q < kQ; ++q) {
    const auto factor = V::SetRegister(factor_of(q));
    for (size_t w = 0; w < kW; ++w) sums[q][w] = V::Fma(factor, row[w], sums[q][w]);
  }
}

// ---- Scores ----

// scores[q][key in page] for kQ queries.
template <class V, KvKind kKind, size_t kQ>
void ScorePage(const uint8_t* keys, const AttentionAhead& next, const float* const* query,
               size_t head_dim, float scale, float (*scores)[kAttentionPart]) {
  using Elements = KvElements<V, kKind>;
  constexpr size_t kW = V::Wide(kQ);
  constexpr size_t kStep = V::kLanes * kW;
  constexpr size_t kStepBytes = kStep * Elements::kBytes;
  constexpr size_t kRowBytes = kAttentionPage * Elements::kBytes;
  constexpr size_t kUnrolled = RowsOfALine<V>(kStepBytes);
  constexpr size_t kRun = Elements::kScaled ? kKvGroup : SIZE_MAX;  // rows that share scales
  const uint8_t* const scales = keys + kRowBytes * head_dim;
  size_t ahead = 0;
  for (size_t first = 0; first < kAttentionPage; first += kStep) {
    typename V::Register sums[kQ][kW];
    for (size_t q = 0; q < kQ; ++q) {
      for (size_t w = 0; w < kW; ++w) sums[q][w] = V::SetRegister(0);
    }
    const uint8_t* at = keys + first * Elements::kBytes;
    size_t i = 0;
    for (size_t run = 0; run < head_dim; run = i) {
      typename V::Register scale_of[kW];
      for (size_t w = 0; w < kW; ++w) {
        scale_of[w] = Elements::KeyScales(scales, run / kKvGroup, first + w * V::kLanes);
      }
      const auto add_row = [&]() __attribute__((always_inline)) {
        typename V::Register key[kW];
        for (size_t w = 0; w < kW; ++w) {
          key[w] = Elements::Load(at + w * V::kLanes * Elements::kBytes);
          key[w] = Elements::Scaled(key[w], scale_of[w]);
        }
        AddRow<V, kQ, kW>(
            key, [&](size_t q) { return query[q][i]; }, sums);
        at += kRowBytes;
        ++i;
      };
      const size_t run_end = run + Lesser<V>(kRun, head_dim - run);
      while (i + kUnrolled <= run_end) {
        FetchAhead<V>(next, ahead, kUnrolled * kStepBytes);
        ahead += kUnrolled * kStepBytes;
        for (size_t row = 0; row < kUnrolled; ++row) add_row();
      }
      while (i < run_end) add_row();
    }
    for (size_t q = 0; q < kQ; ++q) {
      for (size_t w = 0; w < kW; ++w) {
        V::Store(scores[q] + first + w * V::kLanes, V::Mul(sums[q][w], V::SetRegister(scale)));
      }
    }
  }
}

// Scores of keys that a query does not see become -infinity: never the maximum, and weight 0.
template <class V>
void HideKeys(const AttentionTile& tile, size_t page, float (*scores)[kAttentionPart]) {
  const size_t first = page * kAttentionPage;
  for (size_t q = 0; q < tile.query_count; ++q) {
    if (tile.begin[q] <= first && tile.end[q] >= first + kAttentionPage) continue;
    for (size_t i = 0; i < kAttentionPage; ++i) {
      const size_t key = first + i;
      if (key < tile.begin[q] || key >= tile.end[q]) scores[q][i] = -__builtin_inff();
    }
  }
}

template <class V, KvKind kKind>
void ScoreTilePage(const AttentionTile& tile, const uint8_t* keys, const AttentionAhead& next,
                   size_t head_dim, float scale, float (*scores)[kAttentionPart]) {
  size_t q = 0;
  while (q < tile.query_count) {
    const size_t left = tile.query_count - q;
    const float* const* query = tile.query + q;
    if (V::kQueries >= 8 && left > 4) {
      ScorePage<V, kKind, V::kQueries>(keys, next, query, head_dim, scale, scores + q);
      q += V::kQueries;
    } else if (left > 2) {
      ScorePage<V, kKind, 4>(keys, next, query, head_dim, scale, scores + q);
      q += 4;
    } else if (left == 2) {
      ScorePage<V, kKind, 2>(keys, next, query, head_dim, scale, scores + q);
      q += 2;
    } else {
      ScorePage<V, kKind, 1>(keys, next, query, head_dim, scale, scores + q);
      q += 1;
    }
  }
}

// Scores of one query become weights. Of `next`, bytes [ahead, ahead_end) are fetched, a line for
// each vector.
template <class V>
void WeighRow(float max, size_t vector_begin, size_t vector_end, const AttentionAhead& next,
              size_t ahead, size_t ahead_end, float* weights, float* sum_out) {
  const auto shift = V::Set(max);
  auto sum = V::Set(0);
  for (size_t i = vector_begin; i < vector_end; i += kSumLanes) {
    if (ahead < ahead_end) FetchAhead<V>(next, ahead, 64);
    ahead += 64;
    const auto weight = Exp<V>(V::Sub(V::LoadFloats(weights + i), shift));
    V::Store(weights + i, weight);
    sum = V::Add(sum, weight);
  }
  *sum_out = V::SumLanes(sum);
}

// Scores become weights. All maxima first: each is a chain of operations, and they do not wait for
// each other.
template <class V>
void WeighKeys(AttentionTile* tile, size_t vector_begin, size_t vector_end,
               const AttentionAhead& next, size_t ahead_end, float (*weights)[kAttentionPart]) {
  for (size_t q = 0; q < tile->query_count; ++q) {
    const float* const row = weights[q];
    auto max = V::Set(-__builtin_inff());
    // Of a NaN and a number the second operand is returned: the number.
    for (size_t i = vector_begin; i < vector_end; i += kSumLanes) {
      max = V::Max(V::LoadFloats(row + i), max);
    }
    tile->max[q] = V::MaxLanes(max);
  }
  for (size_t q = 0; q < tile->query_count; ++q) {
    const size_t ahead = q * (vector_end - vector_begin) / kSumLanes * 64;
    WeighRow<V>(tile->max[q], vector_begin, vector_end, next, ahead, ahead_end, weights[q],
                &tile->sum[q]);
  }
}

// ---- Values ----

// out += weights of keys [begin, end) of the page times their values, elements from `first` on.
template <class V, KvKind kKind, size_t kQ, size_t kW>
void AddValues(const uint8_t* values, const AttentionAhead& next, size_t begin, size_t end,
               size_t head_dim, size_t first, const float (*weights)[kAttentionPart],
               float* const* out) {
  using Elements = KvElements<V, kKind>;
  constexpr size_t kStepBytes = kW * V::kLanes * Elements::kBytes;
  constexpr size_t kUnrolled = RowsOfALine<V>(kStepBytes);
  static_assert(kKvGroup % (kW * V::kLanes) == 0);  // one scale for all that is loaded at once
  typename V::Register sums[kQ][kW];
  for (size_t q = 0; q < kQ; ++q) {
    for (size_t w = 0; w < kW; ++w) sums[q][w] = V::LoadRegister(out[q] + first + w * V::kLanes);
  }
  const uint8_t* const scales = values + kAttentionPage * head_dim * Elements::kBytes;
  const uint8_t* at = values + (begin * head_dim + first) * Elements::kBytes;
  size_t ahead = first * kAttentionPage * Elements::kBytes + begin * kStepBytes;
  size_t key = begin;
  const auto add_row = [&]() __attribute__((always_inline)) {
    const auto scale = Elements::ValueScale(scales, head_dim, key, first);
    typename V::Register value[kW];
    for (size_t w = 0; w < kW; ++w) {
      value[w] = Elements::Scaled(Elements::Load(at + w * V::kLanes * Elements::kBytes), scale);
    }
    AddRow<V, kQ, kW>(
        value, [&](size_t q) { return weights[q][key]; }, sums);
    at += head_dim * Elements::kBytes;
    ++key;
  };
  while (key + kUnrolled <= end) {
    FetchAhead<V>(next, ahead, kUnrolled * kStepBytes);
    ahead += kUnrolled * kStepBytes;
    for (size_t row = 0; row < kUnrolled; ++row) add_row();
  }
  while (key < end) add_row();
  for (size_t q = 0; q < kQ; ++q) {
    for (size_t w = 0; w < kW; ++w) V::Store(out[q] + first + w * V::kLanes, sums[q][w]);
  }
}

// The same for the elements behind the last whole register.
template <class V, KvKind kKind>
void AddValuesTail(const uint8_t* values, size_t begin, size_t end, size_t head_dim, size_t first,
                   const float* weights, float* out) {
  using Elements = KvElements<V, kKind>;
  const size_t count = head_dim - first;
  alignas(64) float copy[V::kLanes] = {};
  for (size_t i = 0; i < count; ++i) copy[i] = out[first + i];
  auto sum = V::LoadRegister(copy);
  const uint8_t* const scales = values + kAttentionPage * head_dim * Elements::kBytes;
  for (size_t key = begin; key < end; ++key) {
    const uint8_t* at = values + (key * head_dim + first) * Elements::kBytes;
    const auto scale = Elements::ValueScale(scales, head_dim, key, first);
    const auto value = Elements::Scaled(Elements::LoadFirst(at, count), scale);
    sum = V::Fma(V::SetRegister(weights[key]), value, sum);
  }
  V::Store(copy, sum);
  for (size_t i = 0; i < count; ++i) out[first + i] = copy[i];
}

// All elements, for kQ queries that see the same keys [begin, end) of the page.
template <class V, KvKind kKind, size_t kQ>
void AddPage(const uint8_t* values, const AttentionAhead& next, size_t begin, size_t end,
             size_t head_dim, const float (*weights)[kAttentionPart], float* const* out) {
  constexpr size_t kW = V::Wide(kQ);
  size_t first = 0;
  for (; first + V::kLanes * kW <= head_dim; first += V::kLanes * kW) {
    AddValues<V, kKind, kQ, kW>(values, next, begin, end, head_dim, first, weights, out);
  }
  for (; first + V::kLanes <= head_dim; first += V::kLanes) {
    AddValues<V, kKind, kQ, 1>(values, next, begin, end, head_dim, first, weights, out);
  }
  if (first == head_dim) return;
  for (size_t q = 0; q < kQ; ++q) {
    AddValuesTail<V, kKind>(values, begin, end, head_dim, first, weights[q], out[q]);
  }
}

template <class V, KvKind kKind>
void AddPageForAll(size_t query_count, const uint8_t* values, const AttentionAhead& next,
                   size_t begin, size_t end, size_t head_dim,
                   const float (*weights)[kAttentionPart], float* const* out) {
  size_t q = 0;
  if constexpr (V::kQueries >= 8) {
    for (; q + 8 <= query_count; q += 8) {
      AddPage<V, kKind, 8>(values, next, begin, end, head_dim, weights + q, out + q);
    }
  }
  for (; q + 4 <= query_count; q += 4) {
    AddPage<V, kKind, 4>(values, next, begin, end, head_dim, weights + q, out + q);
  }
  for (; q + 2 <= query_count; q += 2) {
    AddPage<V, kKind, 2>(values, next, begin, end, head_dim, weights + q, out + q);
  }
  for (; q < query_count; ++q) {
    AddPage<V, kKind, 1>(values, next, begin, end, head_dim, weights + q, out + q);
  }
}

// Queries together where all see a key; before and behind that each alone, so that a value never
// meets a query that does not see it: a weight of 0 would not do for infinities and signs of zero.
template <class V, KvKind kKind>
void AddTilePage(const AttentionTile& tile, size_t page, const uint8_t* values,
                 const AttentionAhead& next, size_t head_dim,
                 const float (*weights)[kAttentionPart]) {
  const size_t first = page * kAttentionPage;
  size_t begin[kAttentionTile];
  size_t end[kAttentionTile];
  size_t common_begin = 0;
  size_t common_end = kAttentionPage;
  for (size_t q = 0; q < tile.query_count; ++q) {
    end[q] = tile.end[q] > first ? Lesser<V>(tile.end[q] - first, kAttentionPage) : 0;
    begin[q] = tile.begin[q] > first ? Lesser<V>(tile.begin[q] - first, end[q]) : 0;
    common_begin = common_begin < begin[q] ? begin[q] : common_begin;
    common_end = Lesser<V>(common_end, end[q]);
  }
  if (common_end < common_begin) common_end = common_begin;
  for (size_t q = 0; q < tile.query_count; ++q) {
    const size_t stop = Lesser<V>(common_begin, end[q]);
    if (begin[q] >= stop) continue;
    AddPage<V, kKind, 1>(values, next, begin[q], stop, head_dim, weights + q, tile.out + q);
  }
  if (common_begin < common_end) {
    AddPageForAll<V, kKind>(tile.query_count, values, next, common_begin, common_end, head_dim,
                            weights, tile.out);
  }
  for (size_t q = 0; q < tile.query_count; ++q) {
    const size_t start = common_end < begin[q] ? begin[q] : common_end;
    if (start >= end[q]) continue;
    AddPage<V, kKind, 1>(values, next, start, end[q], head_dim, weights + q, tile.out + q);
  }
}

}  // namespace smoe::kernels
