// store/vault/validate.h: the rules of the table and the descriptors. Used by OpenVault alone.
#pragma once

#include "base/result.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

// Identity, version, counts and offsets of the header, against the size of the file.
// `start`: the file's first bytes, 64 unless the file is shorter.
// `check_arch`: false leaves out the place of the arch block.
Status CheckHeader(Bytes start, uint64_t file_bytes, bool check_arch);

// End of table and descriptors of a checked header.
uint64_t DescriptorsEnd(const SmoeHeader& header);

// Loads and checks entries and descriptors out of `metadata` (the bytes before the first blob) into
// vault->records, layers, hidden_size, intermediate_size, blobs_end; notes decisions and warnings.
// Requires header, arch, bits, group_size and file_bytes to be set and checked.
Status LoadRecords(Bytes metadata, Vault* vault);

}  // namespace smoe::store::vault
