// engine/engine.h: an opened model with its threads, queue, cache and KV, and the requests on it.
//
// Requests are submitted and then advanced together, one Step() at a time: every running request
// gives its next chunk of prompt or its next token to one forward pass of the whole batch.
//
// Finished requests leave their keys and values, as long as no running one needs the room: a
// request computes only what follows the longest beginning that any of them has (model/kv_cache.h).
//
// Threads: one owner calls everything. Memory is taken in Open; none per token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/huge_pages.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/trunk_format.h"
#include "engine/memory_guard.h"
#include "engine/read_setup.h"
#include "engine/sampler.h"
#include "experts/backend.h"
#include "experts/prefetch_controller.h"
#include "io/read_queue.h"
#include "kernels/kernels.h"
#include "model/kv_file.h"
#include "model/model.h"
#include "store/model_files.h"

namespace smoe::engine {

struct EngineOptions {
  size_t thread_count = 0;  // --threads; 0: the physical cores we may use
  // --memory; for the whole process. Absent: what cgroups and MemAvailable leave.
  std::optional<uint64_t> memory_bytes;
  size_t chunk_tokens = 0;    // --chunk; prompt tokens of one request per step; 0: engine/budget.h
  size_t batch_max = 8;       // requests running at once
  size_t context_tokens = 0;  // KV room over all requests; 0: see engine/budget.h
  std::optional<uint64_t> cache_bytes;    // --cache SIZE
  std::optional<uint32_t> cache_experts;  // --cache-experts N; both: kInvalid
  io::ReadBackend io = io::ReadBackend::kAuto;
  experts::Arithmetic arithmetic = experts::Arithmetic::kInt8;
  // --kv; absent: f16 with int8 arithmetic, f32 with f32. See docs/quality.md.
  std::optional<kernels::KvKind> kv;
  // --trunk-format; absent: int8 with int8 arithmetic, as the files have it with f32.
  std::optional<checkpoint::TrunkFormats> trunk_formats;
  experts::PrefetchMode prefetch = experts::PrefetchMode::kAuto;  // --prefetch
  std::string isa;                                                // SMOE_ISA; empty: the best
  // Where the last run's hot set lies and this one's will: engine/warm_start.h. "": neither.
  std::string hot_set_path;
  bool guard = true;      // watch the system and shrink the cache: engine/memory_guard.h
  bool evaluate = false;  // room for logits at every position, for Evaluate
  // Tests put their own queue here, for instance the fake one.
  std::function<Result<std::unique_ptr<io::ReadQueue>>()> make_queue;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kFailed };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct Request {
  std::vector<uint32_t> prompt;  // at least one token
  size_t token_count_max = 0;    // generated at most
  SamplerOptions sampling;
  std::vector<uint32_t> stop_ids;  // not delivered; end the request
  // Taken one by one in place of the tokens that were drawn, while there are any: whoever measures
  // goes along tokens that he knows. Requires ids inside the vocabulary (checked).
  std::vector<uint32_t> continuation;
  // Asked before each step, and after its layers where all others in it are cancelled, on the
  // thread that steps; said once, true is as Cancel. Empty: nobody.
  std::function<bool()> is_cancelled;
  // Begins with the keys and values that any earlier request left for the same first tokens, and
  // leaves its own. The answer has the same bits either way; off for whoever measures.
  bool shares_prefix = true;
};

// What a step did for one request.
struct TokenEvent {
  uint64_t request_id = 0;
  std::optional<uint32_t> token;         // a new token (never a stop id)
  std::optional<FinishReason> finished;  // the request is over
  std::optional<Error> error;            // with kFailed
};

// Where the time of steps went, and how well the threads were used.
struct StepTimes {
  uint64_t wall_ns = 0;  // whole steps, with what the engine itself does
  model::StepProfile profile;
  uint64_t wait_ns = 0;  // for the drive, inside the profile's experts
  ThreadPool::Use pool;
  StepTimes& operator+=(const StepTimes& other);
  StepTimes Since(const StepTimes& before) const;  // what was counted in between
};

// Pages of keys and values, kKvPageTokens tokens each.
struct KvUse {
  uint64_t page_count = 0;
  uint64_t running_count = 0;    // of requests that run
  uint64_t kept_count = 0;       // of finished ones, for requests that begin alike
  uint64_t forgotten_count = 0;  // were kept, and went to others since the start
};

struct EngineStats {
  uint64_t step_count = 0;
  uint64_t prompt_token_count = 0;  // computed in prefill
  uint64_t reused_token_count = 0;  // of prompts, found as another request left them
  uint64_t generated_token_count = 0;
  StepTimes prefill;  // steps that held prompt rows
  StepTimes decode;   // the other steps
  uint64_t decode_step_count = 0;
  KvUse kv;
  experts::CacheStats cache;
  uint64_t expert_compute_ns = 0;
  GuardStats guard;  // all 0 without one
};

// What one token costs, by arithmetic: what must be read from memory when every expert is there,
// and what must be computed.
struct TokenCost {
  uint64_t trunk_bytes = 0;            // all layers, without embedding and head
  uint64_t head_bytes = 0;             // of steps that want logits, as decoding does
  uint64_t expert_bytes = 0;           // top_k of each layer, as they are stored
  uint64_t kv_bytes_per_position = 0;  // of every earlier position
  uint64_t operations = 0;             // two for each weight of layers and experts
  uint64_t head_operations = 0;
  uint64_t operations_per_position = 0;  // of attention: scores and weighted sums

  uint64_t DecodeBytes(double positions) const {
    return trunk_bytes + head_bytes + expert_bytes +
           static_cast<uint64_t>(positions * static_cast<double>(kv_bytes_per_position));
  }
};

// What Open chose, in numbers and names.
struct EngineSetup {
  std::string model_path;
  std::string expert_format;  // "smoe-q4 group 64"
  std::string trunk_format;   // "bf16"; "int8, head bf16" where they differ
  std::string kernels;        // "avx2"
  std::string reads;          // "uring, depth 64, whole, direct, verified"
  ReadSetup read_setup;       // the same, and how it was found
  const char* arithmetic = "";
  const char* kv = "";  // how keys and values are kept
  size_t thread_count = 0;
  size_t chunk_tokens = 0;
  uint32_t slot_count = 0;
  uint32_t expert_count = 0;
  uint64_t trunk_bytes = 0;
  TokenCost token_cost;
  bool is_resident() const { return slot_count == expert_count; }
};

class Engine {
 public:
  // Chooses kernels, queue, cache size and KV room; each choice is a sentence in choices().
  // Default cache: all experts if they fit in what is free (cgroup and MemAvailable, less a
  // reserve), else what fits; never less than top_k + 1 slots.
  // Errors: kExhausted with the smallest size that would work; others as the parts.
  static Result<std::unique_ptr<Engine>> Open(store::ModelFiles files,
                                              const EngineOptions& options);
  virtual ~Engine() = default;

  // Errors: kInvalid for an empty prompt, an id outside the vocabulary (which, and the size), a
  //         prompt that does not fit the context (both numbers); kExhausted if batch_max run.
  virtual Result<uint64_t> Submit(Request request) = 0;
  // The request ends with the step that is under way, or the next. A step whose requests are all
  // cancelled ends after the layer that it is at; where others are in it, it goes on for them.
  // May be called inside of Step, from what OnLayer was given.
  virtual void Cancel(uint64_t request_id) = 0;
  virtual bool idle() const = 0;  // nothing running

  // Advances every running request by one chunk or one token. The span is valid until the next
  // call. Errors: only if the engine cannot go on.
  virtual Result<std::span<const TokenEvent>> Step() = 0;

  // Logits at every position of `tokens` in chunks, given to `sink` chunk by chunk with taps.
  // For the commands logits and perplexity. Requires idle().
  using LogitSink = std::function<Status(size_t first_position, std::span<const float> logits,
                                         const model::StepTaps& taps)>;
  virtual Status Evaluate(std::span<const uint32_t> tokens, model::StepTaps want,
                          const LogitSink& sink) = 0;

  // Reads experts into the cache, in the order of the file, until all are there or it is full.
  // Requires idle(). Errors: as reading them.
  using LoadSink = std::function<void(uint64_t loaded_count, uint64_t wanted_count)>;
  virtual Status LoadExperts(const LoadSink& sink) = 0;

  // For whoever waits for the next request: lets the reads of a warm start go on, which otherwise
  // do so inside of steps only. False: there are none, ask again after the next request; true: call
  // again in a millisecond or two. Memory is watched meanwhile. Requires idle(). Errors: only if
  // the queue itself is broken, or the system does not say how much memory is free.
  virtual Result<bool> ReadWhileIdle() = 0;

  // A file of keys and values, model/kv_file.h. Restore reads one: requests that begin with its
  // tokens then compute only what follows. Save writes what is kept of `tokens`, which is all of
  // them after the request that had them, with a note for whoever restores it.
  // Errors: as model::LoadKvFile and SaveKvFile; kExhausted if nothing of the tokens is kept.
  // Cost: both read or write all keys and values; the first call also takes the model's
  //       fingerprint.
  virtual Result<model::KvFileContent> RestoreTokens(const std::string& path) = 0;
  virtual Status SaveTokens(const std::string& path, std::span<const uint32_t> tokens,
                            std::string_view note) = 0;
  // Told inside of Step, after each layer: a chunk of a prompt may take a minute. stats() may be
  // asked then. Empty: nobody.
  virtual void OnLayer(model::Model::LayerSink sink) = 0;

  virtual const EngineSetup& setup() const = 0;
  // Pages of trunk and cache: see base/huge_pages.h. Errors: kIo.
  virtual Result<PageUse> trunk_pages() const = 0;
  virtual Result<PageUse> cache_pages() const = 0;
  virtual const checkpoint::ModelConfig& config() const = 0;
  virtual const std::vector<std::string>& choices() const = 0;  // what Open decided, and why
  virtual size_t context_tokens() const = 0;                    // of one request
  virtual kernels::KvKind kv_kind() const = 0;
  virtual const model::TrunkReport& trunk_report() const = 0;
  virtual EngineStats stats() const = 0;

 protected:
  Engine() = default;
};

}  // namespace smoe::engine
