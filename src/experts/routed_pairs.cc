#include "experts/routed_pairs.h"

#include <algorithm>

#include "base/check.h"
#include "experts/backend.h"

namespace smoe::experts {

Result<RoutedPairs> RoutedPairs::Create(uint64_t row_count_max, uint64_t top_k_max,
                                        uint64_t expert_count_max) {
  const char* const purpose = "expert routing";
  if (row_count_max > UINT32_MAX || top_k_max > UINT32_MAX) {
    return Exhausted("{}: {} rows of {} experts asked, more than a machine can address", purpose,
                     row_count_max, top_k_max);
  }
  RoutedPairs pairs;
  const auto take = [&](AlignedBuffer* buffer, uint64_t item_bytes) -> Status {
    SMOE_TRY_ASSIGN(*buffer,
                    AlignedBuffer::CreateTable(row_count_max, top_k_max, item_bytes, purpose));
    return Ok();
  };
  SMOE_TRY(take(&pairs.row_of_, sizeof(uint32_t)));
  SMOE_TRY(take(&pairs.position_of_, sizeof(uint32_t)));
  SMOE_TRY(take(&pairs.is_usable_, 1));
  SMOE_TRY_ASSIGN(pairs.begin_,
                  AlignedBuffer::CreateTable(expert_count_max + 1, 1, sizeof(uint32_t), purpose));
  return pairs;
}

void RoutedPairs::Sort(const RoutedRows& rows, uint32_t expert_count,
                       std::span<const uint8_t> row_is_usable,
                       std::vector<store::ExpertId>* wanted) {
  const std::span<uint32_t> begin = begin_.As<uint32_t>().first(size_t{expert_count} + 1);
  const size_t top_k = rows.top_k;
  std::fill(begin.begin(), begin.end(), 0U);
  for (size_t pair = 0; pair < rows.row_count * top_k; ++pair) {
    SMOE_CHECK(rows.expert_ids[pair] < expert_count);
    if (row_is_usable[pair / top_k] != 0) ++begin[rows.expert_ids[pair] + 1];
  }
  wanted->clear();
  for (uint32_t expert = 0; expert < expert_count; ++expert) {
    if (begin[expert + 1] != 0) wanted->push_back({rows.layer_index, expert});
    begin[expert + 1] += begin[expert];
  }
  const std::span<uint32_t> row_of = row_of_.As<uint32_t>();
  const std::span<uint32_t> position_of = position_of_.As<uint32_t>();
  const std::span<uint8_t> is_usable = is_usable_.As<uint8_t>();
  for (size_t pair = 0; pair < rows.row_count * top_k; ++pair) {
    if (row_is_usable[pair / top_k] == 0) continue;
    const uint32_t position = begin[rows.expert_ids[pair]]++;
    row_of[position] = static_cast<uint32_t>(pair / top_k);
    position_of[pair] = position;
    is_usable[position] = 0;
  }
  // Placing the pairs has moved every begin to the next expert's.
  for (uint32_t expert = expert_count; expert > 0; --expert) begin[expert] = begin[expert - 1];
  begin[0] = 0;
}

}  // namespace smoe::experts
