// experts/routed_pairs.h: the (row, rank) pairs of one batch, sorted by expert.
//
// A pair's position is its place in that order: the pairs of one expert are neighbours, rows and
// ranks in their order. Outputs are kept by position until each row adds up its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "store/expert_store.h"

namespace smoe::experts {

struct RoutedRows;

class RoutedPairs {
 public:
  // Errors: kExhausted naming the size.
  static Result<RoutedPairs> Create(uint64_t row_count_max, uint64_t top_k_max,
                                    uint64_t expert_count_max);

  // Sorts the pairs of those rows that have row_is_usable set, and fills `wanted` with their
  // experts, each once, in their order. Every such pair is marked as not usable yet.
  // Requires: ids below expert_count; all of it within the maxima; room in `wanted`.
  // Cost:     a counting sort; no allocation.
  void Sort(const RoutedRows& rows, uint32_t expert_count, std::span<const uint8_t> row_is_usable,
            std::vector<store::ExpertId>* wanted);

  // Of one expert: its first position, the rows of its pairs, and whether their outputs are good.
  size_t first(uint32_t expert) const { return begin_.As<uint32_t>()[expert]; }
  size_t count(uint32_t expert) const { return first(expert + 1) - first(expert); }
  std::span<const uint32_t> rows(uint32_t expert) const {
    return row_of_.As<uint32_t>().subspan(first(expert), count(expert));
  }
  std::span<uint8_t> usable(uint32_t expert) {
    return is_usable_.As<uint8_t>().subspan(first(expert), count(expert));
  }

  // Of the pair row * top_k + rank. Requires its row to be among those that were sorted.
  size_t position(size_t pair) const { return position_of_.As<uint32_t>()[pair]; }
  bool is_usable(size_t pair) const { return is_usable_.As<uint8_t>()[position(pair)] != 0; }

 private:
  AlignedBuffer begin_;        // u32 by expert, one more than experts
  AlignedBuffer row_of_;       // u32 by position
  AlignedBuffer position_of_;  // u32 by pair
  AlignedBuffer is_usable_;    // u8 by position
};

}  // namespace smoe::experts
