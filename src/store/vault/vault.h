// store/vault/vault.h: a `.smoe` file, opened and checked: header, table, descriptors, arch block,
// annex. No expert is read.
//
// Everything in here has been validated: every range lies in the file, no blobs or parts overlap,
// sizes are those that shapes, bits and group size demand. What real files are known to get wrong
// without harm is accepted and kept as a sentence in `decisions` or `warnings`.
// Source: docs/formats/vault.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "io/file.h"
#include "store/expert_store.h"
#include "store/vault/annex.h"
#include "store/vault/format.h"
#include "tensor/quantise.h"

namespace smoe::store::vault {

// Experts a table may name; the largest published models have about 25,000.
inline constexpr uint32_t kExpertsMax = uint32_t{1} << 20;
// Bytes between the end of the descriptors and data_offset.
inline constexpr uint64_t kGapBytesMax = uint64_t{1} << 20;
// Layer ids of a file without an arch block; with one, num_hidden_layers decides.
inline constexpr uint32_t kLayerIdMax = 4095;
// Multi-token-prediction layers beyond num_hidden_layers whose experts may be in the table.
inline constexpr uint32_t kMtpLayersMax = 16;

struct ExpertRecord {
  ExpertId id;
  uint64_t byte_offset = 0;
  uint64_t raw_size = 0;
  uint64_t padded_size = 0;
  uint64_t num_groups = 0;
  TensorPlace tensors[kTensorsPerExpert];  // gate, up, down
};

// The experts of one layer: records [first_record, first_record + expert_count).
struct VaultLayer {
  uint32_t layer_index = 0;
  uint32_t first_record = 0;
  uint32_t expert_count = 0;
};

struct Vault {
  std::string path;
  io::File file;  // buffered
  uint64_t file_bytes = 0;
  SmoeHeader header = {};
  std::optional<SmoeArchBlock> arch;  // version 2
  std::vector<ExpertRecord> records;  // by layer, then expert
  std::vector<VaultLayer> layers;     // ascending; multi-token prediction included
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;
  uint32_t group_size = 0;
  uint32_t hidden_size = 0;        // of the descriptors
  uint32_t intermediate_size = 0;  // of the descriptors: rows of gate
  uint64_t blobs_end = 0;
  std::optional<Annex> annex;
  // What the topology of the header has and the table has not; empty if the vault is complete.
  std::string missing;
  std::vector<std::string> decisions;
  std::vector<std::string> warnings;

  bool is_partial() const { return !missing.empty(); }
  // nullptr: not in the table. O(log records).
  const ExpertRecord* Find(ExpertId id) const;
};

struct OpenVaultOptions {
  // Takes a version 2 file for one of version 1, whatever its arch block holds: for upgrades that
  // write the block anew.
  bool ignore_arch = false;
};

// Errors: kCorrupt naming the file, the field, what was expected and what was found; an unfinished
//         conversion says so. kIo.
// Cost: reads everything before the first blob, and the annex's directory and checksums.
Result<Vault> OpenVault(const std::string& path, const OpenVaultOptions& options = {});

// Everything that is known without reading an expert, as one JSON object: file, header, arch,
// experts (totals; each one if `list_experts`), annex, decisions, warnings.
Json Describe(const Vault& vault, bool list_experts);

}  // namespace smoe::store::vault
