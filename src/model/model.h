// model/model.h: the forward pass of a batch of sequences through all layers.
//
// A step takes rows of several sequences, some in prefill (a chunk each), some in decode (one row
// each), and runs them together. A row's numbers depend only on its own sequence: the same bits
// alone or in a batch, whole or in chunks, on one thread or many.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/trunk_format.h"
#include "experts/backend.h"
#include "kernels/kernels.h"
#include "model/kv_cache.h"
#include "model/row_cost.h"
#include "model/step_profile.h"
#include "model/trunk.h"
#include "store/model_files.h"

namespace smoe::model {

// The rows of one sequence in a step: tokens at positions [first_position, + tokens.size()).
struct SequenceRows {
  KvSequence* kv = nullptr;  // holds exactly first_position tokens; grows by tokens.size()
  std::span<const uint32_t> tokens;
  // Logits wanted: for the last row, for all rows, or none (a chunk that is not the last).
  enum class Logits : uint8_t { kNone, kLast, kAll } logits = Logits::kLast;
};

// What a caller may watch; every pointer may be null. Rows are those of the step, in order.
struct StepTaps {
  struct Layer {
    std::vector<uint32_t> router_ids;   // [rows][top_k], ascending ids; empty for dense layers
    std::vector<float> router_weights;  // [rows][top_k], in the order of the ids
    std::vector<float> hidden;          // [rows][hidden_size], residual stream after the layer
  };
  bool want_router = false;
  bool want_hidden = false;
  std::vector<float> hidden_embed;  // [rows][hidden_size]
  std::vector<float> hidden_norm;   // [rows][hidden_size], after the final norm
  std::vector<Layer> layers;
};

// A sequence that cannot go on; the others are unharmed. Its KV must not be used again.
struct SequenceFailure {
  size_t sequence = 0;  // index into the step's sequences
  Error error;
};

struct StepResult {
  // [wanted rows][vocab_size], in the order of sequences and rows; rows of failed sequences are
  // unspecified. Valid until the next step.
  std::span<const float> logits;
  std::vector<SequenceFailure> failures;
  // StopWhen said so: no logits, and every sequence holds the tokens that it held before.
  bool is_stopped = false;
};

class Model {
 public:
  struct Options {
    size_t row_count_max = 0;  // rows in one step, all sequences together
    size_t logit_row_max = 0;  // rows with logits in one step
    // Results of attention parts (kernels::kAttentionPart keys each) that are kept at once, so that
    // one long sequence is spread over all threads. A sequence for which they do not suffice has
    // the same bits, but only a thread for each key-value head.
    size_t attention_part_max = 256;
    // kInt8: matrices of the trunk in a quantised format are computed in integers.
    experts::Arithmetic arithmetic = experts::Arithmetic::kF32;
    TrunkOptions trunk = {};
  };

  // Loads the trunk into anonymous memory, on all threads of the pool. Borrows pool, kernels and
  // backend; `files` is not needed afterwards. Errors: kUnsupported for a family, rope type,
  // activation or tensor that this build does not
  //         compute (a bias or norm tensor that is present and would not be used is one);
  //         kCorrupt for a missing tensor, a wrong shape or a NaN, by name.
  static Result<std::unique_ptr<Model>> Load(const store::ModelFiles& files, ThreadPool& pool,
                                             const kernels::KernelTable& kernels,
                                             experts::ExpertBackend& backend,
                                             const Options& options);
  virtual ~Model() = default;

  // What the trunk will take in memory. Errors: as Load, for what names and shapes can tell.
  static Result<TrunkSize> MeasureTrunk(const store::ModelFiles& files,
                                        const checkpoint::TrunkFormats& formats);

  virtual const checkpoint::ModelConfig& config() const = 0;
  virtual KvShape kv_shape() const = 0;
  virtual const TrunkReport& trunk_report() const = 0;
  virtual Bytes trunk_memory() const = 0;  // to see which pages it got
  virtual RowCost row_cost() const = 0;
  virtual const StepProfile& profile() const = 0;  // of all steps so far

  // Told after each layer of a step how many are done, and of how many; empty: nobody.
  using LayerSink = std::function<void(uint32_t done_count, uint32_t layer_count)>;
  virtual void OnLayer(LayerSink sink) = 0;

  // Asked after each layer of a step, on the thread that steps: true ends the step there. Empty:
  // nobody.
  using StopQuestion = std::function<bool()>;
  virtual void StopWhen(StopQuestion question) = 0;

  // Gives the memory of the rows of earlier steps back to the system, the backend's too, for as
  // long as no step wants it again. What Step returned is gone.
  virtual void ForgetActivations() = 0;

  // One forward pass. Requires rows and logit rows within the limits; every token < vocab_size.
  // A NaN or infinity in router or logits is a failure of that sequence, naming the layer.
  // Errors: kExhausted if the KV cache has no page left; others only if the whole step is lost.
  // Cost: no allocation but what `taps` asks for.
  virtual Result<StepResult> Step(std::span<const SequenceRows> sequences, StepTaps* taps) = 0;

 protected:
  Model() = default;
};

}  // namespace smoe::model
