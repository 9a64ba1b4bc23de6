// store/records/record_folder.h: a record store, opened and checked: manifest and files. No record
// is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"
#include "io/file.h"
#include "store/records/format.h"
#include "store/records/manifest.h"

namespace smoe::store::records {

// Every layer file is there, with exactly the bytes that the manifest demands.
struct RecordFolder {
  std::string path;
  ExpertIndex index;
  ExpertRecordSpec spec;
  ExpertLayout layout;
  std::vector<io::File> files;  // one per dense layer, buffered
  std::vector<std::string> decisions;
  std::vector<std::string> warnings;

  std::string LayerPath(uint32_t layer) const;
  uint64_t record_count() const { return uint64_t{layout.num_moe_layers} * layout.num_experts; }
  uint64_t layer_bytes() const { return layout.num_moe_layers * layout.FileBytes(); }
  // "FOLDER/experts_00001.xpr: record 3 (model layer 2, expert 3) at byte 12288"
  std::string RecordName(ExpertKey key) const;
};

// True if `path` is a folder that holds a record store, whole or damaged: layer files, or a
// manifest.json, finished or begun, and no checkpoint.
bool IsRecordFolder(const std::string& path);

// Errors: kCorrupt naming file, field, found, expected; without a manifest, which is written last,
//         the store is unfinished. kUnsupported for another group size than NVFP4's. kIo.
Result<RecordFolder> OpenRecordFolder(const std::string& path);

// Is this the record of `key`, and usable? Identity, the manifest's checksum where it has one, and
// content. Requires record.size() >= folder.spec.raw_bytes.
// Errors: kCorrupt naming file, record, field, found, expected. Threads: any.
Status CheckRecord(const RecordFolder& folder, ExpertKey key, Bytes record);

// The content of a small file of the store, after comparing size and checksum.
// Errors: kCorrupt, kIo; kInvalid if it is larger than `bytes_max`.
Result<std::string> ReadStoreFile(const RecordFolder& folder, const StoreFile& file,
                                  uint64_t bytes_max);

// Everything that is known of the store as one JSON object: manifest, geometry, files, decisions,
// warnings; with `list_experts` the scalars of every record, which reads all headers.
Json Describe(const RecordFolder& folder, bool list_experts);

}  // namespace smoe::store::records
