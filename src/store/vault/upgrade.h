// store/vault/upgrade.h: version 1 to version 2, in place.
//
// The arch block goes into the gap before the first blob; no blob moves. Order on the drive: block,
// reserved_ext, version, each synced before the next, so that a stop at any point leaves a valid
// file of version 1. A re-stamp of version 2 sets the version back to 1 first.
// Source: docs/formats/vault.md, "Upgrade".
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "store/vault/format.h"

namespace smoe::store::vault {

struct UpgradeOptions {
  std::string source =
      {};              // a config.json, or a folder with it (its tensors are asked too, if there)
  bool force = false;  // write the block of a version 2 vault anew
};

struct UpgradeReport {
  SmoeArchBlock arch = {};
  uint64_t arch_offset = 0;
  std::vector<std::string> decisions;
};

// Errors: kInvalid if the vault is of version 2 (without force) or the config is of another model;
//         kUnsupported if the gap is too small, or if the vault has an annex (its own config.json
//         says more than the block could); kCorrupt, kIo. The file is untouched then, but for kIo.
Result<UpgradeReport> UpgradeVault(const std::string& path, const UpgradeOptions& options);

}  // namespace smoe::store::vault
