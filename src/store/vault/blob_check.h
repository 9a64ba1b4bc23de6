// store/vault/blob_check.h: is this blob the expert that the vault promised?
#pragma once

#include "base/bytes.h"
#include "base/result.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

// Index of the first f16 that is NaN, infinite or negative; `scales.size() / 2` if there is none.
// Threads: any. Cost: 8 bytes a step, no branch per scale.
uint64_t FindBadScale(Bytes scales);

// Compares the annex's checksum, if there is one, and looks at every scale: a NaN in one of them
// would make every later logit NaN, without a word.
// Requires blob.size() >= record.raw_size; `record` is one of vault.records.
// Errors: kCorrupt naming file, expert, projection, offset, expected and found.
Status CheckBlob(const Vault& vault, const ExpertRecord& record, Bytes blob);

}  // namespace smoe::store::vault
