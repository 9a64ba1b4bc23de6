// convert/recover.h: a vault's lost header and table, rebuilt from the checkpoint it was made from.
//
// For a file whose header, or table, or both are all zero while the blobs are there: what a
// conversion that was stopped at the very end leaves, or a damaged first page. Nothing is assumed:
// bits, group size and quantiser are those under which the first blob comes out again from the
// checkpoint, byte for byte, and then every other blob is compared in the same way. Only if all
// are equal is anything written: table first, header last, each on the drive before the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "convert/progress.h"
#include "tensor/quantise.h"

namespace smoe::convert {

struct RecoverOptions {
  bool dry_run = false;  // find out and compare, write nothing
  uint32_t threads = 0;  // 0: as convert/workers.h says
};

struct RecoverReport {
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;
  uint32_t group_size = 0;
  tensor::Quantiser quantiser = tensor::Quantiser::kMse;
  uint64_t expert_count = 0;  // each compared
  bool table_was_lost = false;
  bool has_annex = false;
  std::vector<std::string> warnings;

  Json ToJson() const;
};

// Errors: kInvalid if the vault opens as it is (nothing to recover), or if header and table are
//           there but wrong (nothing is overwritten);
//         kCorrupt if no combination gives the first blob, or if experts differ: how many and
//           which comes first. The file is then as it was. A vault made of a part of a checkpoint
//           can be recovered only while its table is there.
//         of the checkpoint; kIo.
Result<RecoverReport> Recover(const std::string& checkpoint_path, const std::string& vault_path,
                              const RecoverOptions& options, Progress& progress);

}  // namespace smoe::convert
