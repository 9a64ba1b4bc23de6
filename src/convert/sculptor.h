// convert/sculptor.h: from a Hugging Face checkpoint to a `.smoe` vault.
//
//   checkpoint --> plan: every size and offset known, free space checked, nothing written yet
//     workers: one expert each: read a piece, to f32, quantise, write the blob at its place,
//              one line in OUT.journal                          (parallel; any order, same bytes)
//     trunk:   streamed in pieces into the annex, or into STEM.scout.safetensors (split)
//   metadata, header last; optional validation; fsync; rename; the journal goes
//
// Until the rename the file is OUT.partial, locked against a second writer. A kill at any point
// leaves OUT.partial and OUT.journal; a run with `resume` takes over every expert whose bytes still
// have the checksum in the journal, and ends with the bytes of an uninterrupted run.
//
// Memory: per worker one blob and one piece of 64 Ki weights (one matrix in f32 where a layout is
// not contiguous), and one piece of the trunk: bounded by the expert, whatever the checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/expert_layout.h"
#include "checkpoint/model_config.h"
#include "convert/progress.h"
#include "convert/trunk.h"
#include "tensor/quantise.h"

namespace smoe::convert {

struct ShatterOptions {
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;
  uint32_t group_size = 64;
  tensor::Quantiser quantiser = tensor::Quantiser::kMse;
  // Of the trunk's matrices; quantised once, the checkpoint's own are lost to this model.
  checkpoint::TrunkFormats trunk_formats = {};
  bool split = false;  // the original's pair: no annex, the trunk in STEM.scout.safetensors
  // The first layers with experts, and the first experts of each; absent: all. A part of the
  // checkpoint gives a vault that says it is partial.
  std::optional<uint32_t> max_layers;
  std::optional<uint32_t> max_experts;
  bool dry_run = false;           // plan and check, write nothing
  bool resume = false;            // go on with OUT.partial, if there is one
  bool force = false;             // replace OUT
  bool validate = false;          // afterwards, compare every blob with a fresh quantisation
  bool measure_error = false;     // fills ShatterReport::errors; about doubles the work
  bool allow_non_finite = false;  // NaN and infinity become 0 and are counted
  // A tokenizer or chat template that cannot be used is a warning instead of an error: the vault
  // then takes and gives ids.
  bool allow_broken_text = false;
  std::optional<bool> include_mtp;  // experts of multi-token-prediction layers; absent: as the
                                    // original, which writes them, with its quantiser; else no
  uint32_t threads = 0;             // 0: as convert/workers.h says
  std::string writer = "smoe";      // name and version, for the origin record
};

struct ShatterReport {
  std::string checkpoint_path;
  std::string out_path;
  std::string scout_path;  // split only
  std::string model_type;
  std::string naming;  // of the experts in the checkpoint
  checkpoint::Family family = checkpoint::Family::kUnknown;
  uint32_t layer_count = 0;              // with experts in the vault
  uint64_t expert_count = 0;             // in the vault
  uint64_t checkpoint_expert_count = 0;  // in the checkpoint, multi-token prediction left out
  bool is_partial = false;
  uint64_t expert_source_bytes = 0;  // of the experts written, as they lie in the checkpoint
  uint64_t trunk_bytes = 0;
  checkpoint::TrunkFormats trunk_formats = {};
  TrunkErrors trunk_errors = {};  // what quantising the trunk has cost
  uint64_t out_bytes = 0;         // exact, or in a dry run an upper bound within 64 KiB
  uint64_t scout_bytes = 0;
  uint64_t resumed_expert_count = 0;    // taken over from an interrupted run
  uint64_t validated_expert_count = 0;  // with validate
  uint64_t non_finite_count = 0;        // weights that became 0
  double seconds = 0;
  // By projection, with measure_error.
  std::optional<std::array<tensor::QuantisationError, checkpoint::kProjCount>> errors;
  std::vector<std::string> decisions;
  std::vector<std::string> warnings;  // "the engine does not run FAMILY yet", contradictions

  Json ToJson() const;
};

// Errors: kInvalid: OUT exists and force is off; another process writes it; OUT.partial was begun
//           from another source or with other options (which, then and now); bad options.
//         kExhausted: not enough space ("needs X, has Y"), or the drive filled up on the way:
//           OUT.partial stays for a resume.
//         kCorrupt: NaN or infinity in the source (tensor and index), damaged checkpoint.
//         kCorrupt, kUnsupported: a tokenizer or chat template that this build cannot use (file,
//           line and column).
//         kUnsupported: weights beyond f16's range, experts that are quantised already.
//         kIo. In every case nothing new is under the name OUT.
// Threads: one call at a time per OUT; starts and joins its own workers.
Result<ShatterReport> Shatter(const std::string& checkpoint_path, const std::string& out_path,
                              const ShatterOptions& options, Progress& progress);

}  // namespace smoe::convert
