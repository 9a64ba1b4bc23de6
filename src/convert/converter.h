// convert/converter.h: from one expert store to another: vault to record store and back, and
// between group sizes and bit widths.
//
//   MODEL --> plan: target, sizes, free space                      (store_target.h)
//     workers: one expert each: read, to f32, quantise, write, one line in the journal
//     trunk:   streamed, as it is or quantised; config, tokenizer, chat template and unknown
//     sections go along
//   metadata last; rename; the journal goes
//
// The promises are the Sculptor's (convert/sculptor.h): a kill leaves only what a run with `resume`
// takes over, and the same bytes come out whatever the threads. Experts that are in the wanted
// format already are moved, not quantised again.
//
// Memory: per worker one expert of each store and one matrix in f32, and one piece of the trunk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/expert_error.h"
#include "convert/progress.h"
#include "convert/store_target.h"
#include "convert/trunk.h"
#include "store/model_files.h"
#include "tensor/quantise.h"
#include "tensor/quantise_nvfp4.h"

namespace smoe::convert {

struct ConvertOptions {
  StoreKind to = StoreKind::kVault;
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;  // of a vault
  uint32_t group_size = 64;                       // of a vault
  tensor::Quantiser vault_quantiser = tensor::Quantiser::kMse;
  tensor::Nvfp4Quantiser record_quantiser = tensor::Nvfp4Quantiser::kMse;
  // Of the trunk's matrices; quantised once, the model's own are lost to the new one.
  checkpoint::TrunkFormats trunk_formats = {};
  std::string original;            // a model with the weights before any quantisation; empty: none
  store::ModelFilesOptions files;  // where parts of MODEL are, if not in or beside it
  bool dry_run = false;            // plan and check, write nothing
  bool resume = false;             // go on with an unfinished conversion, if there is one
  bool force = false;              // replace OUT
  uint32_t threads = 0;            // 0: as convert/workers.h says
  std::string writer = "smoe";     // name and version, for the origin record
};

struct ConvertReport {
  std::string model_path;
  std::string out_path;
  std::string source_format;  // "smoe-q4 group 64"
  std::string target_format;
  uint64_t expert_count = 0;
  uint64_t expert_source_bytes = 0;
  uint64_t trunk_bytes = 0;
  checkpoint::TrunkFormats trunk_formats = {};
  TrunkErrors trunk_errors = {};  // what quantising the trunk has cost
  uint64_t out_bytes = 0;         // planned; exact to what the origin record takes
  uint64_t resumed_expert_count = 0;
  double seconds = 0;
  // What the conversion added: new weights against MODEL's. Empty in a dry run.
  std::vector<LayerErrors> added;
  // MODEL's and the new weights against the original's. Empty without one.
  std::vector<LayerErrors> source_to_original;
  std::vector<LayerErrors> target_to_original;
  std::vector<std::string> decisions;
  std::vector<std::string> warnings;
};

// Errors: kInvalid: MODEL is a checkpoint (shatter and pack are for those) or already what is asked
//           for; OUT exists and force is off, is MODEL or lies in it; another process writes it; an
//           unfinished OUT was begun from another source or with other options; a group size
//           that a vault does not have; an original of another shape.
//         kExhausted: not enough space, or the drive filled up: what is done stays for a resume.
//         kCorrupt, kUnsupported, kIo as the parts. In every case nothing new is under the name
//         OUT.
// Threads: one call at a time per OUT; starts and joins its own workers.
Result<ConvertReport> Convert(const std::string& model_path, const std::string& out_path,
                              const ConvertOptions& options, Progress& progress);

}  // namespace smoe::convert
