// engine/hot_set.h: what a run knew about a model's experts, as a file for the next one.
//
//   {"version": 1, "model": "5d0c...", "worths": [310, 0, 12, ...]}
//
// A worth is the share of its layer's tokens that chose the expert, in millionths, by ordinal
// (experts/eviction.h, LastingWorth).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/expert_store.h"

namespace smoe::engine {

inline constexpr int kHotSetVersion = 1;
inline constexpr size_t kHotSetsMax = 32;
// Of a file: a million experts of seven digits.
inline constexpr uint64_t kHotSetBytesMax = uint64_t{16} << 20;

// Tells models apart, and states of one: where the experts lie in their files, in what format, and
// the files' sizes and ages. Not their names: a model that was moved is the same.
std::string ModelFingerprint(const store::ExpertStore& store);

// The file for the model in the user's cache folder; "" without one (io/user_cache.h).
std::string HotSetPath(const store::ExpertStore& store);

// Worths by ordinal, 0..1 each.
// Errors: as io::ReadWholeFile; kCorrupt naming file, field, expected and found: not of this
//         version, of another model, of another number of experts.
Result<std::vector<double>> ReadHotSet(const std::string& path, const std::string& fingerprint,
                                       uint32_t expert_count);

// Of the hot sets in the same folder only the kHotSetsMax youngest stay.
// Errors: as io::WriteUserCacheFile.
Status WriteHotSet(const std::string& path, const std::string& fingerprint,
                   const std::vector<double>& worths);

}  // namespace smoe::engine
