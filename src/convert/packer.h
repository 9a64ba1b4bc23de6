// convert/packer.h: from a Hugging Face checkpoint to a folder with an NVFP4 expert-record store.
//
//   checkpoint --> plan: every tensor looked up, every size known, free space checked
//     workers: one expert each: read, NVFP4 moved as it is or quantised, transposed into its
//              record, written at its place, one line in OUT_DIR/pack.journal
//     trunk:   streamed into OUT_DIR/trunk.safetensors; config, tokenizer, chat template beside it
//   the manifest last; the journal goes
//
// A layer's file has its final name only when it is whole (store/records/writer.h). A kill at any
// point leaves an unfinished store; a run with `resume` takes over every record whose bytes still
// have the checksum in the journal, and ends with the bytes of an uninterrupted run.
//
// NVFP4 codes and scales are never requantised; NVFP4 tensors that are no experts go into the trunk
// as they are.
//
// Memory: per worker two records (source and result), or a record and one matrix in f32 where it
// quantises, and one piece of the trunk.
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
#include "tensor/quantise_nvfp4.h"

namespace smoe::convert {

inline constexpr char kPackJournalName[] = "pack.journal";
inline constexpr char kTrunkName[] = "trunk.safetensors";

struct PackOptions {
  tensor::Nvfp4Quantiser quantiser = tensor::Nvfp4Quantiser::kMse;  // idle where bytes are moved
  // Layers of the model, as "1-3,7"; empty: all with experts. A part of them gives a store that
  // says so and cannot be run.
  std::string layers;
  // Of the trunk's matrices; quantised once, the checkpoint's own are lost to this model.
  checkpoint::TrunkFormats trunk_formats = {};
  bool dry_run = false;            // plan and check, write nothing
  bool resume = false;             // go on with an unfinished store, if there is one
  bool force = false;              // replace what is in OUT_DIR
  bool allow_non_finite = false;   // NaN and infinity become 0 and are counted
  bool allow_broken_text = false;  // as ShatterOptions
  bool include_mtp = false;        // experts of multi-token-prediction layers too
  uint32_t threads = 0;            // 0: as convert/workers.h says
  std::string writer = "smoe";     // name and version, for the source record
};

struct PackReport {
  std::string checkpoint_path;
  std::string out_path;
  std::string model_type;
  std::string naming;        // of the experts in the checkpoint
  bool moves_bytes = false;  // the experts were NVFP4 already
  std::string quantiser;     // where they were not
  uint32_t layer_count = 0;
  uint64_t expert_count = 0;
  uint32_t inter = 0;
  uint32_t hidden = 0;
  uint64_t record_stride = 0;
  bool is_partial = false;
  uint64_t expert_source_bytes = 0;  // of the experts written, as they lie in the checkpoint
  uint64_t trunk_bytes = 0;
  checkpoint::TrunkFormats trunk_formats = {};
  TrunkErrors trunk_errors = {};  // what quantising the trunk has cost
  uint64_t out_bytes = 0;         // exact, or in a dry run an estimate within the manifest's size
  uint64_t resumed_expert_count = 0;
  uint64_t non_finite_count = 0;  // weights that became 0
  double seconds = 0;
  // By projection, where weights were quantised.
  std::optional<std::array<tensor::QuantisationError, checkpoint::kProjCount>> errors;
  std::vector<std::string> decisions;
  std::vector<std::string> warnings;

  Json ToJson() const;
};

// Errors: kInvalid: OUT_DIR has files of these names and force is off; another process writes it;
//           the unfinished store was begun from another source or with other options; bad options.
//         kExhausted: not enough space ("needs X, has Y"), or the drive filled up on the way: what
//           is done stays for a resume.
//         kCorrupt: NaN or negative block scales, a scale that is missing, 0 or not finite, NaN or
//           infinite weights, names of both NVFP4 kinds: tensor and index are named.
//         kUnsupported: dims that are no multiples of 16; a tokenizer or template this build
//           cannot use. kIo.
//         In every case OUT_DIR has no manifest that it did not have before.
// Threads: one call at a time per OUT_DIR; starts and joins its own workers.
Result<PackReport> Pack(const std::string& checkpoint_path, const std::string& out_path,
                        const PackOptions& options, Progress& progress);

}  // namespace smoe::convert
