// store/records/writer.h: writes a record store; whatever bears its final name is whole.
//
//   writer = RecordWriter::Create(folder, index, options)   locked against a second writer
//   WriteRecord(key, record) from any thread, any order; or RestoreRecord after an interruption
//   AddFile, or BeginFile / AppendFile / EndFile: trunk, config, tokenizer, ...
//   Finish()                                                the manifest, last
//
//   experts_00000.xpr.partial --last record is there--> synced --> experts_00000.xpr
//
// Until Finish the folder has no manifest.json, and every reader calls the store unfinished.
// A finished store that is replaced stays whole until then: the new one is written into
// FOLDER.partial, which takes FOLDER's place in one step (io/replace_folder.h).
// What was begun is removed when the writer goes, unless KeepPartial() was called.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "io/atomic_file.h"
#include "store/records/format.h"
#include "store/records/manifest.h"

namespace smoe::store::records {

struct RecordWriterOptions {
  bool overwrite = false;  // may a store, or files of the same names, lie there already?
  bool resume = false;     // keep the layers of an interrupted run for RestoreRecord
};

class RecordWriter {
 public:
  // `folder` is made if it is absent. `index`: dims, alignments and moe_layer_to_model_layer are
  // set; sizes, checksums, files and orientation are filled in here. The source may be set later.
  // Errors: kInvalid: numbers that no manifest may have (field, found, expected); a store, or one
  //           that is unfinished, lies there and neither option is on; another process writes it;
  //           the path is a file; where it would be replaced: FOLDER.partial has what is of no
  //           unfinished store, or FOLDER is one that io::CheckReplaceableFolder refuses. kIo.
  static Result<std::unique_ptr<RecordWriter>> Create(const std::string& folder, ExpertIndex index,
                                                      const RecordWriterOptions& options);
  // What Create would refuse in the folder, and `names` of other files to write, without a trace:
  // for dry runs, and before long preparations.
  static Status CheckPlace(const std::string& folder, const std::vector<std::string>& names,
                           const RecordWriterOptions& options);
  // Where a writer works until Finish: `folder`, or FOLDER.partial if it replaces a finished store.
  static std::string WorkFolder(const std::string& folder, bool overwrite);
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Bytes of layer files, all of them.
  uint64_t layer_bytes() const { return index_.num_moe_layers * layout_.FileBytes(); }
  const ExpertRecordSpec& spec() const { return spec_; }
  const ExpertLayout& layout() const { return layout_; }
  const ExpertIndex& index() const { return index_; }

  // `record`: spec().raw_bytes from PackRecord, or layout().record_stride with the zeros behind it,
  // which at the start of a page is written past the page cache where the file system allows it:
  // that waits for the drive, so have a thread more than cores.
  // Each record once. The last one of a layer waits for the drive and gives the file its name.
  // Threads: any. Few files are open at once if layers are written in order.
  // Errors: kExhausted (the drive is full), kIo.
  Status WriteRecord(ExpertKey key, Bytes record);

  // True if the folder has this record from an interrupted run, with this checksum: then it counts
  // as written. `scratch` has spec().raw_bytes. Threads: any.
  Result<bool> RestoreRecord(ExpertKey key, uint64_t checksum, MutableBytes scratch);

  // XXH3-64 of raw_bytes. Requires the record to be written.
  uint64_t record_checksum(ExpertKey key) const { return index_.record_checksums[IdOf(key)]; }

  // A file that the manifest names. `part`: as in StoreFile, each once; `name`: without any path.
  // Threads: one at a time, beside WriteRecord.
  Status AddFile(std::string_view part, std::string_view name, Bytes content);
  // The same in pieces, `size` bytes in all.
  Status BeginFile(std::string_view part, std::string_view name, uint64_t size);
  Status AppendFile(Bytes piece);
  Status EndFile();

  void set_source(Json source) { index_.source = std::move(source); }
  // From now on a failure leaves what is done for a resume.
  void KeepPartial() { keep_partial_ = true; }
  // Requires every record and no open file. The store is complete when this returns.
  // Errors: kIo; kUnsupported, naming both, for a new store that is complete and stays in
  //         FOLDER.partial, because it cannot take the place of the older one.
  Status Finish();

 private:
  struct Layer {
    std::mutex mutex;
    std::optional<io::AtomicFile> file;  // open from the first to the last record
    io::File direct;                     // not open where the file system has no direct writes
    std::atomic<uint32_t> missing_count{0};
  };
  RecordWriter(std::string folder, ExpertIndex index, const ExpertRecordSpec& spec,
               const RecordWriterOptions& options);
  Status OpenFolder();
  Status RemoveLeftFiles() const;
  Status ReclaimLayers();
  Status TakePlace() const;
  // The layer, its file open.
  Result<Layer*> OpenLayer(uint32_t layer_index);
  Status CountRecord(ExpertKey key, uint64_t checksum);
  void Discard();
  std::string PathOf(std::string_view name) const;
  uint64_t IdOf(ExpertKey key) const { return ExpertRecordId::Of(key, index_.num_experts).value; }

  const std::string folder_;
  const std::string work_folder_;
  ExpertIndex index_;
  const ExpertRecordSpec spec_;
  const ExpertLayout layout_;
  const RecordWriterOptions options_;
  std::deque<Layer> layers_;
  std::vector<uint8_t> written_;  // a byte each, so that threads never share one
  std::optional<io::AtomicFile> manifest_;
  std::optional<io::AtomicFile> open_file_;
  std::optional<ChecksumStream> open_checksum_;
  uint64_t open_position_ = 0;
  bool made_folder_ = false;
  bool is_begun_ = false;  // the folder is ours to write
  bool keep_partial_ = false;
};

}  // namespace smoe::store::records
