// experts/trace.h: which experts a router chose, token by token, as a file.
//
//   # smoe trace 1
//   # experts 128 top_k 8 expert_bytes 2506752 model qwen3-30b.smoe
//   0 5 17 30 64 81 99 101 120        <- layer, then the experts it chose, ascending
//   1 0 3 ...                         <- layers ascend; a smaller one begins the next token
//
// Text, so that other programs and people read it too. Only layers with routed experts have lines.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace smoe::experts {

struct Trace {
  uint32_t expert_count = 0;  // in each layer
  uint32_t top_k = 0;
  uint64_t expert_bytes = 0;         // of one read
  std::string model;                 // what it was recorded from; one line
  std::vector<uint32_t> layers;      // the layers of every token, ascending
  std::vector<uint32_t> expert_ids;  // [token][layer of `layers`][top_k]
  size_t token_count() const {
    return layers.empty() ? 0 : expert_ids.size() / (layers.size() * top_k);
  }
};

// A trace file is read whole: 8 million lines of 8 experts.
inline constexpr uint64_t kTraceBytesMax = uint64_t{256} << 20;
// Experts of all layers together: as many as a vault may hold. What replays a trace takes memory
// for each of them, chosen or not.
inline constexpr uint32_t kTraceExpertsMax = uint32_t{1} << 20;
// Of one expert, as in a vault: sums over all reads of a trace fit 64 bits.
inline constexpr uint64_t kTraceExpertBytesMax = uint64_t{1} << 40;

// The first two lines, of a trace that is about to be written.
std::string TraceHeader(const Trace& trace);
// One line; `ids` ascending.
void AppendTraceLine(uint32_t layer, std::span<const uint32_t> ids, std::string* out);

// Errors: kCorrupt naming the line, what was expected there and what was found: a header that is
//         not one, an id beyond experts, ids that do not ascend, more experts than
//         kTraceExpertsMax, a token with other layers than the first, a last token or
//         line that is not whole.
Result<Trace> ParseTrace(std::string_view text);

}  // namespace smoe::experts
