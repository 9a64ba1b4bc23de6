// convert/synthesizer.h: a model of a published shape with random weights, written straight as a
// vault or a record store.
//
//   SHAPE --> sizes, free space, recipe     (synth_shape.h, synth_recipe.h)
//     workers: one expert each: random codes, scales, written at its place
//     trunk:   streamed; config.json beside it; no tokenizer
//   metadata last; rename
//
// For measuring speed and streaming: activations keep their size through all layers, logits are
// finite, and routing is skewed and persistent like a trained model's. What it says means nothing.
// The bytes depend on shape, cuts, format, skew and seed; not on threads.
//
// A kill leaves at most a .partial name, or a folder without a manifest. There is no resume.
// Memory: per worker one expert (two for a record store), and 4 MiB of the trunk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "convert/progress.h"
#include "convert/store_target.h"
#include "convert/synth_recipe.h"

namespace smoe::convert {

struct SynthOptions {
  StoreKind to = StoreKind::kVault;
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;  // of a vault
  uint32_t group_size = 64;                       // of a vault
  std::optional<uint32_t> layers;                 // of the shape's; all
  std::optional<uint32_t> vocab;                  // likewise
  std::optional<double> routing_gini;             // as FindSkew
  uint64_t seed = 1;
  bool dry_run = false;         // plan and check, write nothing
  bool force = false;           // replace OUT
  uint32_t threads = 0;         // 0: as convert/workers.h says
  std::string writer = "smoe";  // name and version, for the origin record
};

struct SynthReport {
  std::string shape;
  std::string out_path;
  std::string format;  // "smoe-q4 group 64"
  std::string model_type;
  uint32_t layer_count = 0;
  uint32_t experts_per_layer = 0;
  uint32_t experts_per_token = 0;
  uint32_t vocab_size = 0;
  uint64_t expert_bytes = 0;
  uint64_t trunk_bytes = 0;
  uint64_t out_bytes = 0;  // planned; exact to what the origin record takes
  RoutingSkew skew;        // expected
  uint64_t seed = 0;
  double seconds = 0;

  Json ToJson() const;
};

// Errors: as FindSynthShape and FindSkew; kInvalid: OUT exists and force is off, or is the shape's
//         config, a group size that no vault has; kExhausted: not enough space, or the drive filled
//         up; kUnsupported for what an arch block cannot hold; kIo. In every case nothing new is
//         under the name OUT.
// Threads: one call at a time per OUT; starts and joins its own workers.
Result<SynthReport> Synthesize(const std::string& shape, const std::string& out_path,
                               const SynthOptions& options, Progress& progress);

}  // namespace smoe::convert
