// store/records/manifest.h: ExpertIndex, the `manifest.json` of a record store.
//
// Twelve keys are the format's. The keys after them are ours, so that one folder is the whole
// model; readers that do not know them pass over them, and a store without them opens too.
// Source: docs/formats/records.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "store/records/format.h"

namespace smoe::store::records {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kFileTemplate[] = "experts_{:05}.xpr";
inline constexpr char kOrientationTransposed[] = "transposed";
inline constexpr char kNibbleOrderLowFirst[] = "low-first";
inline constexpr char kChecksumKind[] = "xxh3-64";
// A checksum takes about 30 bytes of the text.
inline constexpr uint64_t kManifestBytesMax = uint64_t{64} << 20;
inline constexpr uint32_t kMoeLayersMax = 4096;
inline constexpr uint32_t kExpertsPerLayerMax = 65536;
inline constexpr uint64_t kRecordsMax = uint64_t{1} << 20;
inline constexpr uint32_t kModelLayerMax = 4095;

// A file of the model that lies in the store's folder.
struct StoreFile {
  std::string part;  // "trunk", or the name of a checkpoint's file: "config.json", ...
  std::string name;  // in the folder, without any path
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3-64
};
inline constexpr std::string_view kPartTrunk = "trunk";

struct ExpertIndex {
  static constexpr uint32_t kVersion = 1;

  uint32_t num_moe_layers = 0;
  uint32_t num_experts = 0;
  uint32_t inter = 0;
  uint32_t hidden = 0;
  uint32_t group_size = kNvfp4GroupSize;
  uint32_t sub_align = kSubAlignUsual;
  uint32_t fs_block_size = kFsBlockSizeUsual;
  uint64_t record_stride = 0;
  uint64_t record_raw_bytes = 0;
  std::vector<uint32_t> moe_layer_to_model_layer;  // each model layer at most once

  // Ours. False: the manifest has none of the keys, and transposed is what it means.
  bool says_orientation = false;
  std::vector<uint64_t> record_checksums;  // XXH3-64 of raw_bytes, by ExpertRecordId; empty: none
  Json source;                             // where the weights come from; null: not said
  std::vector<StoreFile> files;            // each part once

  // "experts_00001.xpr". `layer` is dense.
  static std::string FileName(uint32_t layer);
  // The files' geometry.
  ExpertLayout Layout() const { return {num_moe_layers, num_experts, record_stride}; }
  const StoreFile* FindFile(std::string_view part) const;  // nullptr: not in the folder
};

// Sets record_raw_bytes and record_stride of an index whose other numbers are set: for writers.
// Errors: kInvalid, as ExpertRecordSpec::Create and for fs_block_size.
Result<ExpertRecordSpec> DeriveSizes(ExpertIndex* index);

// `what` names the text in messages: the path of the file.
// Errors: kCorrupt naming file, key, found, expected: no JSON object, a key missing, twice, of
//         another type or out of bounds, sizes that are not those of the dims; kUnsupported for an
//         orientation or nibble order that is not the one above.
Result<ExpertIndex> ParseManifest(std::string_view text, std::string_view what);

// The twelve keys of the format, in its order.
Json FormatKeys(const ExpertIndex& index);

// The text of the file: keys in the order of the format, two spaces of indent, ours after them.
std::string ManifestText(const ExpertIndex& index);

}  // namespace smoe::store::records
