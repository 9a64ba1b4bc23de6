// engine/engine.h: an opened model with its threads, queue, cache and KV, and the requests on it.
//
// Requests are submitted and then advanced together, one Step() at a time: every running request
// gives its next chunk of prompt or its next token to one forward pass of the whole batch.
//
// Threads: one owner calls everything. Memory is taken in Open; none per token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/trunk_format.h"
#include "engine/sampler.h"
#include "experts/backend.h"
#include "io/read_queue.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "store/model_files.h"

namespace smoe::engine {

inline constexpr size_t kChunkTokensDefault = 256;

struct EngineOptions {
  size_t thread_count = 0;    // --threads; 0: the physical cores we may use
  size_t chunk_tokens = 0;    // --chunk; prompt tokens of one request per step; 0: the default
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
  std::string isa;        // SMOE_ISA; empty: the best
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
  // Requests of one conversation share a number; the engine keeps the last one's keys and values
  // and computes only what differs. 0: none. The answer has the same bits either way.
  uint64_t conversation = 0;
};

// What a step did for one request.
struct TokenEvent {
  uint64_t request_id = 0;
  std::optional<uint32_t> token;         // a new token (never a stop id)
  std::optional<FinishReason> finished;  // the request is over
  std::optional<Error> error;            // with kFailed
};

struct EngineStats {
  uint64_t step_count = 0;
  uint64_t prompt_token_count = 0;  // computed in prefill
  uint64_t reused_token_count = 0;  // of prompts, found in their conversation
  uint64_t generated_token_count = 0;
  uint64_t prefill_ns = 0;  // steps that held prompt rows
  uint64_t decode_ns = 0;   // the other steps
  experts::CacheStats cache;
  uint64_t expert_compute_ns = 0;
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

  virtual const checkpoint::ModelConfig& config() const = 0;
  virtual const std::vector<std::string>& choices() const = 0;  // what Open decided, and why
  virtual size_t context_tokens() const = 0;
  virtual kernels::KvKind kv_kind() const = 0;
  virtual const model::TrunkReport& trunk_report() const = 0;
  virtual EngineStats stats() const = 0;

 protected:
  Engine() = default;
};

}  // namespace smoe::engine
