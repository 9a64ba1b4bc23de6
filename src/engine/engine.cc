#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/memory_limits.h"
#include "engine/budget.h"
#include "engine/scheduler.h"
#include "experts/local_backend.h"

namespace smoe::engine {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "error";
  }
  return "error";
}

namespace {

constexpr size_t kChunkTokensDefault = 256;
constexpr size_t kConversationMax = 4;  // whose keys and values are kept

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// A request in progress.
struct Running {
  uint64_t id = 0;
  Request request;
  std::vector<uint32_t> tokens;  // prompt and generated
  size_t generated_count = 0;
  bool cancelled = false;
  model::KvSequence kv;
  Sampler sampler;
};

// What is left of a conversation's last request: keys and values of `tokens`.
struct Conversation {
  uint64_t number = 0;
  uint64_t used_at_step = 0;
  std::vector<uint32_t> tokens;
  model::KvSequence kv;
};

// The parts of an engine, in the order in which they borrow from each other.
struct Parts {
  store::ModelFiles files;
  const kernels::KernelTable* kernels = nullptr;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<io::ReadQueue> queue;
  std::unique_ptr<experts::ExpertCache> cache;
  std::unique_ptr<experts::ExpertBackend> backend;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::KvCache> kv;
  StepLimits limits;
  size_t batch_max = 0;
  size_t context_tokens = 0;
  size_t logit_row_max = 0;
  std::vector<std::string> choices;
};

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(Parts parts) : parts_(std::move(parts)) {
    running_.reserve(parts_.batch_max);
    turns_.reserve(parts_.batch_max);
    rows_.reserve(parts_.batch_max);
    progress_.reserve(parts_.batch_max);
    events_.reserve(2 * parts_.batch_max);
  }

  Result<uint64_t> Submit(Request request) override;
  void Cancel(uint64_t request_id) override;
  bool idle() const override { return running_.empty(); }
  Result<std::span<const TokenEvent>> Step() override;
  Status Evaluate(std::span<const uint32_t> tokens, model::StepTaps want,
                  const LogitSink& sink) override;

  const checkpoint::ModelConfig& config() const override { return parts_.model->config(); }
  const std::vector<std::string>& choices() const override { return parts_.choices; }
  size_t context_tokens() const override { return parts_.context_tokens; }
  EngineStats stats() const override;

 private:
  Status CheckTokens(std::span<const uint32_t> tokens) const;
  model::KvSequence ResumeConversation(const Request& request);
  void KeepConversation(Running* running);
  void PlanRows();
  Status RunRows();
  void TakeToken(Running* running, std::span<const float> logits);
  void Finish(Running* running, FinishReason reason, std::optional<uint32_t> token,
              std::optional<Error> error);
  void RemoveFinished();

  Parts parts_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<Conversation> conversations_;
  std::vector<Progress> progress_;
  std::vector<Turn> turns_;
  std::vector<model::SequenceRows> rows_;
  std::vector<TokenEvent> events_;
  uint64_t next_id_ = 1;
  EngineStats stats_;
};

Status EngineImpl::CheckTokens(std::span<const uint32_t> tokens) const {
  if (tokens.empty()) return Invalid("prompt: 0 tokens, expected at least 1");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= config().vocab_size) {
      return Invalid("prompt: token {} at position {}, the vocabulary has {}", tokens[i], i,
                     config().vocab_size);
    }
  }
  if (tokens.size() > parts_.context_tokens) {
    return Invalid("prompt: {} tokens, the context holds {}; raise --context or shorten it",
                   tokens.size(), parts_.context_tokens);
  }
  return Ok();
}

Result<uint64_t> EngineImpl::Submit(Request request) {
  SMOE_TRY(CheckTokens(request.prompt));
  SMOE_TRY(CheckSamplerOptions(request.sampling));
  if (running_.size() == parts_.batch_max) {
    return Exhausted("requests: {} are running, the most at once; wait for one to end",
                     parts_.batch_max);
  }
  Sampler sampler(request.sampling, config().vocab_size, *parts_.kernels);
  model::KvSequence kv = ResumeConversation(request);
  stats_.reused_token_count += kv.token_count();
  std::vector<uint32_t> tokens = request.prompt;
  tokens.reserve(std::min(parts_.context_tokens, tokens.size() + request.token_count_max));
  running_.push_back(
      std::unique_ptr<Running>(new Running{next_id_++, std::move(request), std::move(tokens), 0,
                                           false, std::move(kv), std::move(sampler)}));
  return running_.back()->id;
}

// The longest common prefix of the conversation's tokens and the prompt is kept; at least the last
// token runs again, since its logits are needed.
model::KvSequence EngineImpl::ResumeConversation(const Request& request) {
  const auto found = std::find_if(
      conversations_.begin(), conversations_.end(),
      [&](const Conversation& c) { return c.number == request.conversation && c.number != 0; });
  if (found == conversations_.end()) return parts_.kv->NewSequence();
  const auto& prompt = request.prompt;
  const size_t shared = std::min(found->tokens.size(), prompt.size() - 1);
  const auto end = prompt.begin() + static_cast<ptrdiff_t>(shared);
  const auto [differs, unused] = std::mismatch(prompt.begin(), end, found->tokens.begin());
  model::KvSequence kv = std::move(found->kv);
  kv.Truncate(static_cast<size_t>(differs - prompt.begin()));
  conversations_.erase(found);
  return kv;
}

void EngineImpl::KeepConversation(Running* running) {
  if (running->request.conversation == 0) return;
  running->tokens.resize(running->kv.token_count());
  std::erase_if(conversations_,
                [&](const Conversation& c) { return c.number == running->request.conversation; });
  if (conversations_.size() == kConversationMax) {
    conversations_.erase(std::min_element(conversations_.begin(), conversations_.end(),
                                          [](const Conversation& a, const Conversation& b) {
                                            return a.used_at_step < b.used_at_step;
                                          }));
  }
  conversations_.push_back({running->request.conversation, stats_.step_count,
                            std::move(running->tokens), std::move(running->kv)});
}

void EngineImpl::Cancel(uint64_t request_id) {
  for (auto& running : running_) {
    if (running->id == request_id) running->cancelled = true;
  }
}

Result<std::span<const TokenEvent>> EngineImpl::Step() {
  events_.clear();
  for (auto& running : running_) {
    if (running->cancelled) Finish(running.get(), FinishReason::kCancelled, {}, {});
  }
  RemoveFinished();
  PlanRows();
  if (!rows_.empty()) SMOE_TRY(RunRows());
  RemoveFinished();
  return std::span<const TokenEvent>(events_);
}

// Fills turns_ and rows_, leaving out (and ending) requests for which no page is left. Pages that
// only past conversations hold are taken back first.
void EngineImpl::PlanRows() {
  progress_.clear();
  for (const auto& running : running_) {
    progress_.push_back({running->tokens.size(), running->kv.token_count()});
  }
  PlanStep(progress_, parts_.limits, &turns_);
  rows_.clear();
  std::erase_if(turns_, [&](const Turn& turn) {
    Running* running = running_[turn.request_index].get();
    Status room = running->kv.Reserve(turn.first + turn.count);
    while (!room && !conversations_.empty()) {
      conversations_.erase(conversations_.begin());
      room = running->kv.Reserve(turn.first + turn.count);
    }
    if (!room) {
      Finish(running, FinishReason::kFailed, {}, std::move(room.error()));
      return true;
    }
    rows_.push_back(
        {&running->kv, std::span<const uint32_t>(running->tokens).subspan(turn.first, turn.count),
         turn.is_last ? model::SequenceRows::Logits::kLast : model::SequenceRows::Logits::kNone});
    return false;
  });
}

// One forward pass over rows_, and what it means for each request.
Status EngineImpl::RunRows() {
  const uint64_t started = NowNs();
  SMOE_TRY_ASSIGN(model::StepResult result, parts_.model->Step(rows_, nullptr));
  bool has_prompt = false;
  for (model::SequenceFailure& failure : result.failures) {
    Running* running = running_[turns_[failure.sequence].request_index].get();
    running->request.conversation = 0;  // its keys and values are worth nothing
    Finish(running, FinishReason::kFailed, {}, std::move(failure.error));
  }
  size_t logit_row = 0;
  for (const Turn& turn : turns_) {
    Running* running = running_[turn.request_index].get();
    const size_t prompt_left =
        running->request.prompt.size() - std::min(running->request.prompt.size(), turn.first);
    stats_.prompt_token_count += std::min(prompt_left, turn.count);
    has_prompt |= prompt_left != 0;
    if (!turn.is_last) continue;
    const size_t vocab_size = config().vocab_size;
    const auto logits = result.logits.subspan(logit_row++ * vocab_size, vocab_size);
    if (running->id != 0) TakeToken(running, logits);
  }
  ++stats_.step_count;
  (has_prompt ? stats_.prefill_ns : stats_.decode_ns) += NowNs() - started;
  return Ok();
}

void EngineImpl::TakeToken(Running* running, std::span<const float> logits) {
  if (running->request.token_count_max == 0) return Finish(running, FinishReason::kLength, {}, {});
  auto token = running->sampler.Sample(logits, running->tokens);
  if (!token) return Finish(running, FinishReason::kFailed, {}, std::move(token.error()));
  const auto& stops = running->request.stop_ids;
  if (std::find(stops.begin(), stops.end(), *token) != stops.end()) {
    return Finish(running, FinishReason::kStop, {}, {});
  }
  ++running->generated_count;
  ++stats_.generated_token_count;
  if (running->generated_count == running->request.token_count_max ||
      running->tokens.size() == parts_.context_tokens) {
    return Finish(running, FinishReason::kLength, *token, {});
  }
  running->tokens.push_back(*token);
  events_.push_back({running->id, *token, std::nullopt, std::nullopt});
}

// Marks the request by id 0; RemoveFinished drops it.
void EngineImpl::Finish(Running* running, FinishReason reason, std::optional<uint32_t> token,
                        std::optional<Error> error) {
  if (running->id == 0) return;
  events_.push_back({running->id, token, reason, std::move(error)});
  running->id = 0;
  KeepConversation(running);
}

void EngineImpl::RemoveFinished() {
  std::erase_if(running_, [](const auto& running) { return running->id == 0; });
}

Status EngineImpl::Evaluate(std::span<const uint32_t> tokens, model::StepTaps want,
                            const LogitSink& sink) {
  SMOE_CHECK(idle() && parts_.logit_row_max >= parts_.limits.chunk_tokens);
  SMOE_TRY(CheckTokens(tokens));
  conversations_.clear();
  model::KvSequence kv = parts_.kv->NewSequence();
  for (size_t first = 0; first < tokens.size();) {
    const size_t count = std::min(parts_.limits.chunk_tokens, tokens.size() - first);
    SMOE_TRY(kv.Reserve(first + count));
    const model::SequenceRows rows = {&kv, tokens.subspan(first, count),
                                      model::SequenceRows::Logits::kAll};
    SMOE_TRY_ASSIGN(model::StepResult result, parts_.model->Step({&rows, 1}, &want));
    if (!result.failures.empty()) return Unexpected(std::move(result.failures.front().error));
    SMOE_TRY(sink(first, result.logits, want));
    first += count;
    ++stats_.step_count;
  }
  return Ok();
}

EngineStats EngineImpl::stats() const {
  EngineStats stats = stats_;
  stats.cache = parts_.backend->stats();
  stats.expert_compute_ns = parts_.backend->compute_ns();
  return stats;
}

// Bytes of the tensors that Load will keep: everything but routed experts.
uint64_t TrunkBytes(const store::ModelFiles& files) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : files.trunk.tensors()) {
    if (name.find(".experts.") == std::string::npos) bytes += tensor.size;
  }
  return bytes;
}

// Activations of a step: per row the experts' outputs and a few vectors of each width.
uint64_t ScratchBytes(const checkpoint::ModelConfig& config, const Parts& parts) {
  constexpr uint64_t kHiddenVectors = 8;
  constexpr uint64_t kHeadVectors = 4;
  constexpr uint64_t kWideVectors = 3;  // gate, up and codes of a feed-forward network
  const uint64_t widest = std::max({config.moe_intermediate_size, config.intermediate_size,
                                    config.shared_expert_intermediate_size});
  const uint64_t per_row = (config.num_experts_per_tok + kHiddenVectors) * config.hidden_size +
                           kHeadVectors * config.num_attention_heads * config.head_dim +
                           kWideVectors * widest;
  return sizeof(float) *
         (parts.limits.row_count_max * per_row + parts.logit_row_max * uint64_t{config.vocab_size});
}

Result<Budget> PlanMemory(const Parts& parts, const EngineOptions& options) {
  const checkpoint::ModelConfig& config = parts.files.config;
  BudgetDemand demand;
  demand.trunk_bytes = TrunkBytes(parts.files);
  demand.scratch_bytes = ScratchBytes(config, parts);
  demand.kv_bytes_per_token = model::KvBytesPerToken(
      {config.num_hidden_layers, config.num_key_value_heads * config.head_dim});
  demand.slot_bytes = parts.files.experts->slot_bytes();
  demand.expert_count = parts.files.experts->expert_count();
  demand.top_k = config.num_experts_per_tok;
  demand.max_positions = config.max_position_embeddings;
  demand.context_tokens = options.context_tokens;
  demand.cache_bytes = options.cache_bytes;
  demand.cache_experts = options.cache_experts;
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
  return DivideMemory(demand, free);
}

Status OpenQueue(const EngineOptions& options, Parts* parts) {
  if (options.make_queue) {
    SMOE_TRY_ASSIGN(parts->queue, options.make_queue());
  } else {
    SMOE_TRY_ASSIGN(parts->queue, io::ReadQueue::Open(options.io, {}));
  }
  parts->choices.push_back(fmt::format("reads: {}, {}", parts->queue->name(),
                                       parts->files.experts->direct_io() ? "direct" : "buffered"));
  return Ok();
}

// Each sequence may leave most of its last page empty.
size_t KvRoom(const Parts& parts, const Budget& budget) {
  return budget.context_tokens + (parts.batch_max - 1) * model::kKvPageTokens;
}

Status OpenModel(const Budget& budget, const EngineOptions& options, Parts* parts) {
  SMOE_TRY_ASSIGN(parts->cache, experts::ExpertCache::Create(*parts->files.experts, *parts->queue,
                                                             {.slot_count = budget.slot_count}));
  SMOE_TRY_ASSIGN(
      parts->backend,
      experts::MakeLocalBackend(*parts->files.experts, *parts->cache, *parts->pool, *parts->kernels,
                                {.arithmetic = options.arithmetic,
                                 .row_count_max = parts->limits.row_count_max,
                                 .top_k = parts->files.config.num_experts_per_tok}));
  SMOE_TRY_ASSIGN(parts->model,
                  model::Model::Load(parts->files, *parts->pool, *parts->kernels, *parts->backend,
                                     {.row_count_max = parts->limits.row_count_max,
                                      .logit_row_max = parts->logit_row_max}));
  SMOE_TRY_ASSIGN(parts->kv,
                  model::KvCache::Create(parts->model->kv_shape(), KvRoom(*parts, budget)));
  parts->context_tokens = budget.context_tokens;
  return Ok();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Open(store::ModelFiles files,
                                             const EngineOptions& options) {
  if (options.batch_max == 0) return Invalid("batch: 0, expected at least 1");
  Parts parts;
  parts.files = std::move(files);
  SMOE_TRY_ASSIGN(parts.kernels,
                  kernels::ChooseKernels(options.isa.empty() ? nullptr : options.isa.c_str()));
  const size_t threads = options.thread_count == 0 ? UsableCoreCount() : options.thread_count;
  SMOE_TRY_ASSIGN(parts.pool, ThreadPool::Create(threads));
  parts.batch_max = options.batch_max;
  parts.limits.chunk_tokens =
      options.chunk_tokens == 0 ? kChunkTokensDefault : options.chunk_tokens;
  parts.limits.row_count_max = parts.limits.chunk_tokens + parts.batch_max;
  parts.logit_row_max =
      std::max(parts.batch_max, options.evaluate ? parts.limits.chunk_tokens : size_t{0});
  parts.choices = parts.files.decisions;
  parts.choices.push_back(fmt::format("kernels: {}, {} threads, arithmetic {}", parts.kernels->name,
                                      threads, experts::ArithmeticName(options.arithmetic)));
  SMOE_TRY(OpenQueue(options, &parts));
  SMOE_TRY_ASSIGN(const Budget budget, PlanMemory(parts, options));
  parts.choices.insert(parts.choices.end(), budget.choices.begin(), budget.choices.end());
  SMOE_TRY(OpenModel(budget, options, &parts));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(parts)));
}

}  // namespace smoe::engine
