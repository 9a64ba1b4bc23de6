// kernels/attention_tiles.h: attention for instruction sets whose registers hold 16 floats, alone
// or in pairs. For kernels_*_attention.cc only.
//
// Everything is a template over V, the file's own vector operations (attention_pages.h has what V
// needs). V lies in the file's anonymous namespace, so what is made from the templates is the
// file's own too, and no code that was compiled with extra flags can be taken for that of another
// file.
//
// A part goes by in two sweeps, page by page: scores of all its keys, then its values.
#pragma once

#include "kernels/attention_pages.h"

namespace smoe::kernels {

// The halves of a part's pages in the order of their use, keys first and then values; behind them
// the keys of the next part, whoever computes it.
template <class V, KvKind kKind>
struct PartHalves {
  using Elements = KvElements<V, kKind>;
  const AttentionJob& job;
  const AttentionTile& tile;
  const size_t page_count = tile.page_end - tile.page_begin;
  const size_t codes_bytes = kAttentionPage * job.head_dim * Elements::kBytes;
  const size_t half_bytes = codes_bytes + Elements::ScalesBytes(job.head_dim);

  const uint8_t* At(size_t half) const {
    const bool is_values = half >= page_count && half < 2 * page_count;
    const size_t page = tile.page_begin + half - (half >= page_count ? page_count : 0);
    return reinterpret_cast<const uint8_t*>(job.pages[Lesser<V>(page, tile.page_total - 1)]) +
           job.page_offset + (is_values ? half_bytes : 0);
  }
  // `position`: of the first byte, codes alone being counted.
  AttentionAhead Ahead(size_t position) const {
    const size_t half = position / codes_bytes;
    const size_t offset = position % codes_bytes;
    const size_t first = codes_bytes - offset;
    return {{reinterpret_cast<uintptr_t>(At(half)) + offset,
             reinterpret_cast<uintptr_t>(At(half + 1)) - first},
            first};
  }
  // Bytes of each half that are left for the time between the sweeps: a line for each vector of
  // weights, and not more than one half in all. int8 waits for its arithmetic, not for memory.
  size_t LeftBytes() const {
    if constexpr (Elements::kScaled || !V::kFetchesBetween) return 0;
    constexpr size_t kHalvesMax = 2 * kAttentionPart / kAttentionPage;
    return Lesser<V>(tile.query_count, codes_bytes / 64 / kHalvesMax) * 64;
  }
  void FetchScales(size_t half) const {
    if constexpr (Elements::kScaled) Fetch<V>(At(half) + codes_bytes, half_bytes - codes_bytes);
  }
};

template <class V, KvKind kKind>
void AttendPart(const AttentionJob& job, size_t part_begin, AttentionTile* tile) {
  alignas(64) AttentionWeights weights;
  const PartHalves<V, kKind> halves = {job, *tile};
  const size_t page_count = halves.page_count;
  const size_t left_bytes = halves.LeftBytes();
  size_t ahead = halves.codes_bytes;
  for (size_t q = 0; q < tile->query_count; ++q) {
    for (size_t i = 0; i < job.head_dim; ++i) tile->out[q][i] = 0;
  }
  for (size_t i = 0; i < page_count; ++i) {
    const size_t page = tile->page_begin + i;
    halves.FetchScales(i + 1);
    auto* const scores =
        reinterpret_cast<float(*)[kAttentionPart]>(&weights[0][page * kAttentionPage - part_begin]);
    ScoreTilePage<V, kKind>(*tile, halves.At(i), halves.Ahead(ahead), job.head_dim, job.scale,
                            scores);
    HideKeys<V>(*tile, page, scores);
    ahead += halves.codes_bytes - left_bytes;
  }
  WeighKeys<V>(tile, tile->page_begin * kAttentionPage - part_begin,
               tile->page_end * kAttentionPage - part_begin, halves.Ahead(ahead),
               2 * page_count * left_bytes, weights);
  ahead += 2 * page_count * left_bytes;
  for (size_t i = 0; i < page_count; ++i) {
    const size_t page = tile->page_begin + i;
    const size_t half = page_count + i;
    halves.FetchScales(half + 1);
    const auto* const rows = reinterpret_cast<const float(*)[kAttentionPart]>(
        &weights[0][page * kAttentionPage - part_begin]);
    AddTilePage<V, kKind>(*tile, page, halves.At(half), halves.Ahead(ahead), job.head_dim, rows);
    ahead += halves.codes_bytes - left_bytes;
  }
}

// The queries of `queries` that see keys of the part, and what they see.
template <class V>
void FillTile(const AttentionJob& job, const AttentionQuery* queries, size_t count,
              size_t part_begin, AttentionTile* tile, const AttentionQuery** owners) {
  const size_t part_end = Lesser<V>(part_begin + kAttentionPart, job.key_end);
  tile->query_count = 0;
  tile->page_begin = part_end;
  tile->page_end = 0;
  tile->page_total = 0;
  for (size_t i = 0; i < count; ++i) {
    const AttentionQuery& query = queries[i];
    const size_t begin = query.first_key > part_begin ? query.first_key : part_begin;
    const size_t end = Lesser<V>(query.key_count, part_end);
    const size_t page_total = (query.key_count + kAttentionPage - 1) / kAttentionPage;
    if (page_total > tile->page_total) tile->page_total = page_total;
    if (begin >= end) continue;
    const size_t at = tile->query_count++;
    tile->begin[at] = begin;
    tile->end[at] = end;
    tile->query[at] = query.query;
    tile->out[at] = query.state->sum == 0 ? query.out : job.work + at * job.head_dim;
    owners[at] = &query;
    const size_t page_begin = begin / kAttentionPage;
    const size_t page_end = (end + kAttentionPage - 1) / kAttentionPage;
    if (page_begin < tile->page_begin) tile->page_begin = page_begin;
    if (page_end > tile->page_end) tile->page_end = page_end;
  }
  // Kernels take 2, 4 or 8 queries: the last one stands in for those that are missing.
  for (size_t at = tile->query_count; at > 0 && at < kAttentionTile; ++at) {
    tile->query[at] = tile->query[at - 1];
  }
}

template <class V, KvKind kKind>
void AttendKind(const AttentionJob& job) {
  size_t key_end = 0;
  for (size_t i = 0; i < job.query_count; ++i) {
    *job.queries[i].state = {-__builtin_inff(), 0};
    if (job.queries[i].key_count > key_end) key_end = job.queries[i].key_count;
  }
  key_end = Lesser<V>(key_end, job.key_end);
  // Parts outside, so that all queries find the part in a near cache.
  for (size_t part = job.key_begin; part < key_end; part += kAttentionPart) {
    for (size_t first = 0; first < job.query_count; first += kAttentionTile) {
      const size_t count = Lesser<V>(kAttentionTile, job.query_count - first);
      AttentionTile tile;
      const AttentionQuery* owners[kAttentionTile];
      FillTile<V>(job, job.queries + first, count, part, &tile, owners);
      if (tile.query_count == 0) continue;
      AttendPart<V, kKind>(job, part, &tile);
      for (size_t q = 0; q < tile.query_count; ++q) {
        const AttentionState state = {tile.max[q], tile.sum[q]};
        if (owners[q]->state->sum == 0) {
          *owners[q]->state = state;
        } else {
          MergePart<V>(state, tile.out[q], job.head_dim, owners[q]->state, owners[q]->out);
        }
      }
    }
  }
}

template <class V>
void AttendWith(const AttentionJob& job) {
  if (job.kind == KvKind::kF16) return AttendKind<V, KvKind::kF16>(job);
  if (job.kind == KvKind::kInt8) return AttendKind<V, KvKind::kInt8>(job);
  AttendKind<V, KvKind::kF32>(job);
}

}  // namespace smoe::kernels
