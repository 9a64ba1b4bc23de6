// store/records/verify.h: reads a whole record store and says everything that is wrong with it.
#pragma once

#include "base/result.h"
#include "store/records/record_folder.h"
#include "store/vault/verify.h"

namespace smoe::store::records {

// Every record (identity, checksum, scales, padding), then every file that the manifest names
// (checksum). Padding that is not zero is a warning.
// Problems of the content go to the report; the Result fails only for kExhausted, and kInvalid for
// the number of threads.
// Cost: one pass over all files, direct reads where possible; one record per thread.
Status VerifyRecords(const RecordFolder& folder, const vault::VerifyOptions& options,
                     vault::VerifyReport* report);

}  // namespace smoe::store::records
