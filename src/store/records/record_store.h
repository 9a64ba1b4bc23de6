// store/records/record_store.h: the experts of a record store behind ExpertStore.
//
// A slot holds one record, so that a direct read lands in place. Where the stride is no multiple of
// a page (other fs_block_size), reads are buffered.
#pragma once

#include <memory>

#include "base/result.h"
#include "store/expert_store.h"
#include "store/records/record_folder.h"

namespace smoe::store::records {

struct RecordStoreOptions {
  bool direct_io =
      true;  // ask for O_DIRECT; where a real read is refused, buffered, with a log line
  // Layers from here on are multi-token prediction and are left out.
  uint32_t num_hidden_layers = UINT32_MAX;
};

// Errors: kInvalid if no layer is left to run; kIo.
Result<std::unique_ptr<ExpertStore>> OpenRecordStore(RecordFolder folder,
                                                     const RecordStoreOptions& options);

}  // namespace smoe::store::records
