#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/stopwatch.h"
#include "engine/parts.h"

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

constexpr size_t kConversationMax = 4;  // whose keys and values are kept

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
  std::vector<uint32_t> tokens;
  model::KvSequence kv;
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
  kernels::KvKind kv_kind() const override { return parts_.kv->shape().kind; }
  const model::TrunkReport& trunk_report() const override { return parts_.model->trunk_report(); }
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
  std::vector<Conversation> conversations_;  // in the order of their last use
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
  if (conversations_.size() == kConversationMax) conversations_.erase(conversations_.begin());
  conversations_.push_back(
      {running->request.conversation, std::move(running->tokens), std::move(running->kv)});
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
// only past conversations hold are taken back first, the oldest conversation's before the others.
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
  const Stopwatch stopwatch;
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
  (has_prompt ? stats_.prefill_ns : stats_.decode_ns) += stopwatch.ns();
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

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Open(store::ModelFiles files,
                                             const EngineOptions& options) {
  SMOE_TRY_ASSIGN(Parts parts, AssembleParts(std::move(files), options));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(parts)));
}

}  // namespace smoe::engine
