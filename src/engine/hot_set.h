// engine/hot_set.h: what a run knew about a model's experts, as a file for the next one.
//
//   hot-5d0c0a1b2c3d4e5f.json: {"version": 1, "worths": [310, 0, 12, ...]}
//
// The name has the model's fingerprint (store/model_fingerprint.h). A worth is the share of its
// layer's tokens that chose the expert, in millionths, by ordinal (experts/eviction.h,
// LastingWorth).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/model_files.h"

namespace smoe::engine {

inline constexpr int kHotSetVersion = 1;
inline constexpr size_t kHotSetsMax = 32;
// Of a file: a million experts of seven digits.
inline constexpr uint64_t kHotSetBytesMax = uint64_t{16} << 20;

// The file for the model in the user's cache folder.
// Errors: kInvalid without such a folder (io/user_cache.h); as store::ModelFingerprint.
Result<std::string> HotSetPath(const store::ModelFiles& files);

// Worths by ordinal, 0..1 each.
// Errors: as io::ReadWholeFile; kCorrupt naming file, field, expected and found: not of this
//         version, of another number of experts, worths that are none.
Result<std::vector<double>> ReadHotSet(const std::string& path, uint32_t expert_count);

// Of the hot sets in the same folder only the kHotSetsMax youngest stay.
// Errors: as io::WriteUserCacheFile.
Status WriteHotSet(const std::string& path, const std::vector<double>& worths);

}  // namespace smoe::engine
