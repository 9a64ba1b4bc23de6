// convert/shatter_plan.h: everything that is decided before the first byte of a vault is written.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "convert/sculptor.h"
#include "convert/source.h"
#include "convert/trunk.h"
#include "store/vault/writer.h"

namespace smoe::convert {

struct ShatterPlan {
  store::vault::VaultPlan vault;
  TrunkPlan trunk;
  std::vector<AnnexText> texts;      // empty with split
  std::string scout_path;            // split only
  bool include_mtp = false;          // as decided
  uint64_t expert_source_bytes = 0;  // of one expert in the checkpoint
  uint64_t out_bytes = 0;  // without the origin section an exact figure, else an upper bound
  Json source;             // files with sizes and hashes: what the origin section says
  Json identity;           // source, its times and the options: what a resume must repeat
};

// What header and arch block say of a model: sets vocab_size, ffn_dim, arch and both sizes.
// Errors: as BuildArchBlock.
Status DescribeModel(const checkpoint::ModelConfig& config, const checkpoint::TrunkFacts& facts,
                     uint32_t hidden_size, uint32_t intermediate_size,
                     store::vault::VaultSpec* spec);

// The spec of a vault of this checkpoint: header and arch block as docs/formats/vault.md has them.
// Used by the Sculptor and by recovery.
// Errors: kUnsupported for experts that are quantised already, kInvalid for limits of 0.
Result<store::vault::VaultSpec> MakeVaultSpec(const checkpoint::Checkpoint& checkpoint,
                                              const ShatterOptions& options, bool include_mtp);

// `checkpoint` is borrowed by the plan. Reads samples of the source files for their hashes.
Result<ShatterPlan> PlanShatter(const checkpoint::Checkpoint& checkpoint,
                                const std::string& out_path, const ShatterOptions& options);

// The origin section: writer, source, quantiser and its settings, and errors where measured.
Json OriginOf(const ShatterPlan& plan, const ShatterOptions& options, const ShatterReport& report);

// Error figures by projection, as {"gate": {"rmse": ..., "error_max": ..., "snr_db": ...}, ...}.
Json ErrorsJson(const std::array<tensor::QuantisationError, checkpoint::kProjCount>& errors);

const char* QuantiserName(tensor::Quantiser quantiser);  // "mse", "reference"

}  // namespace smoe::convert
