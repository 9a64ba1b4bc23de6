#include "experts/read_damage.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/memory.h"

namespace smoe::experts {

std::string ReadDamageText(Bytes wrong, Bytes right) {
  SMOE_CHECK(wrong.size() == right.size());
  uint64_t page_count = 0;
  uint64_t zero_count = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  for (uint64_t at = 0; at < wrong.size(); at += kPageBytes) {
    const uint64_t size = std::min<uint64_t>(kPageBytes, wrong.size() - at);
    const Bytes page = wrong.subspan(at, size);
    if (std::ranges::equal(page, right.subspan(at, size))) continue;
    if (page_count++ == 0) begin = at;
    end = at + size;
    if (std::ranges::all_of(page, [](std::byte byte) { return byte == std::byte{0}; })) {
      ++zero_count;
    }
  }
  if (page_count == 0) return "the bytes were the same";
  return fmt::format("{} of {} pages differed, bytes {} to {}, {} of them read as zeros",
                     page_count, CeilDiv(wrong.size(), kPageBytes), begin, end, zero_count);
}

}  // namespace smoe::experts
