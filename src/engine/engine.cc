#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/memory_pressure.h"
#include "base/stopwatch.h"
#include "engine/parts.h"
#include "store/model_fingerprint.h"

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

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  wall_ns += other.wall_ns;
  profile += other.profile;
  wait_ns += other.wait_ns;
  pool.loop_ns += other.pool.loop_ns;
  pool.busy_ns += other.pool.busy_ns;
  pool.loop_count += other.pool.loop_count;
  return *this;
}

StepTimes StepTimes::Since(const StepTimes& before) const {
  return {.wall_ns = wall_ns - before.wall_ns,
          .profile = profile.Since(before.profile),
          .wait_ns = wait_ns - before.wait_ns,
          .pool = {.loop_ns = pool.loop_ns - before.pool.loop_ns,
                   .busy_ns = pool.busy_ns - before.pool.busy_ns,
                   .loop_count = pool.loop_count - before.pool.loop_count}};
}

namespace {

// Steps of so many rows are answers: what they touch of the activations is little.
constexpr size_t kFewRows = 16;
// So many of them, and the activations of the prompt before are given up.
constexpr size_t kAnswerSteps = 8;
// So often the memory that is really held is looked at. Cost: some 0.1 ms a GiB of cache.
constexpr size_t kMeasureSteps = 16;

// A request in progress.
struct Running {
  uint64_t id = 0;
  Request request;
  std::vector<uint32_t> tokens;  // prompt and generated
  size_t generated_count = 0;
  bool cancelled = false;
  model::KvSequence kv;
  Sampler sampler;

  bool IsCancelled() {
    cancelled = cancelled || (request.is_cancelled && request.is_cancelled());
    return cancelled;
  }
};

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(Parts parts) : parts_(std::move(parts)) {
    running_.reserve(parts_.batch_max);
    turns_.reserve(parts_.batch_max);
    rows_.reserve(parts_.batch_max);
    progress_.reserve(parts_.batch_max);
    events_.reserve(2 * parts_.batch_max);
    parts_.model->StopWhen([this] { return IsEveryTurnCancelled(); });
  }

  Result<uint64_t> Submit(Request request) override;
  void Cancel(uint64_t request_id) override;
  bool idle() const override { return running_.empty(); }
  Result<std::span<const TokenEvent>> Step() override;
  Status Evaluate(std::span<const uint32_t> tokens, model::StepTaps want,
                  const LogitSink& sink) override;
  Status LoadExperts(const LoadSink& sink) override;
  Result<bool> ReadWhileIdle() override;

  Result<model::KvFileContent> RestoreTokens(const std::string& path) override;
  Status SaveTokens(const std::string& path, std::span<const uint32_t> tokens,
                    std::string_view note) override;

  void OnLayer(model::Model::LayerSink sink) override { parts_.model->OnLayer(std::move(sink)); }
  const EngineSetup& setup() const override { return parts_.setup; }
  Result<PageUse> trunk_pages() const override { return ReadPageUse(parts_.model->trunk_memory()); }
  Result<PageUse> cache_pages() const override { return ReadPageUse(parts_.cache->slab()); }
  const checkpoint::ModelConfig& config() const override { return parts_.model->config(); }
  const std::vector<std::string>& choices() const override { return parts_.choices; }
  size_t context_tokens() const override { return parts_.context_tokens; }
  kernels::KvKind kv_kind() const override { return parts_.kv->shape().kind; }
  const model::TrunkReport& trunk_report() const override { return parts_.model->trunk_report(); }
  EngineStats stats() const override;

 private:
  Status CheckTokens(std::span<const uint32_t> tokens) const;
  void AdoptPrefix(Running* running);
  Result<model::KvFileOwner> KvOwner();
  StepTimes ReadClocks() const;
  void PlanRows();
  Status MakeRoom();
  Status RunRows();
  bool IsEveryTurnCancelled() const;
  void TakeToken(Running* running, std::span<const float> logits);
  void Finish(Running* running, FinishReason reason, std::optional<uint32_t> token,
              std::optional<Error> error);
  void RemoveFinished();

  Parts parts_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<Progress> progress_;
  std::vector<Turn> turns_;
  std::vector<model::SequenceRows> rows_;
  std::vector<TokenEvent> events_;
  uint64_t next_id_ = 1;
  size_t row_count_max_ = 0;  // of the steps whose activations are still held
  size_t few_row_steps_ = 0;  // in a row
  uint32_t held_slots_ = 0;   // SlotsBesideHeld, when last looked; 0: not known
  EngineStats stats_;
  std::optional<uint64_t> fingerprint_;  // of the model, once it was asked for
};

Status EngineImpl::CheckTokens(std::span<const uint32_t> tokens) const {
  if (tokens.empty()) return Invalid("prompt: 0 tokens, expected at least 1");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= config().vocab_size) {
      return Invalid("prompt: token {} at position {}, the vocabulary has {}", tokens[i], i,
                     config().vocab_size);
    }
  }
  if (const uint64_t positions = config().max_position_embeddings;
      positions != 0 && tokens.size() > positions) {
    return Invalid(
        "prompt: {} tokens, the model was made for {} (max_position_embeddings in its config); "
        "shorten it",
        tokens.size(), positions);
  }
  if (tokens.size() > parts_.context_tokens) {
    return Invalid("prompt: {} tokens, the context holds {}; raise --context or shorten it",
                   tokens.size(), parts_.context_tokens);
  }
  return Ok();
}

Result<uint64_t> EngineImpl::Submit(Request request) {
  SMOE_TRY(CheckTokens(request.prompt));
  for (const uint32_t token : request.continuation) SMOE_CHECK(token < config().vocab_size);
  SMOE_TRY(CheckSamplerOptions(request.sampling));
  if (running_.size() == parts_.batch_max) {
    return Exhausted("requests: {} are running, the most at once; wait for one to end",
                     parts_.batch_max);
  }
  Sampler sampler(request.sampling, config().vocab_size, *parts_.kernels);
  std::vector<uint32_t> tokens = request.prompt;
  tokens.reserve(std::min(parts_.context_tokens, tokens.size() + request.token_count_max));
  running_.push_back(
      std::unique_ptr<Running>(new Running{next_id_++, std::move(request), std::move(tokens), 0,
                                           false, parts_.kv->NewSequence(), std::move(sampler)}));
  return running_.back()->id;
}

// Looks again before each step: a request that runs beside this one may have come further. At least
// the last token is computed here, since its logits are needed.
void EngineImpl::AdoptPrefix(Running* running) {
  const size_t known_count = running->tokens.size();
  const size_t before = running->kv.token_count();
  if (!running->request.shares_prefix || known_count - before < 2) return;
  running->kv.Adopt(std::span<const uint32_t>(running->tokens).first(known_count - 1));
  stats_.reused_token_count += running->kv.token_count() - before;
}

void EngineImpl::Cancel(uint64_t request_id) {
  for (auto& running : running_) {
    if (running->id == request_id) running->cancelled = true;
  }
}

Result<std::span<const TokenEvent>> EngineImpl::Step() {
  events_.clear();
  for (auto& running : running_) {
    if (running->IsCancelled()) Finish(running.get(), FinishReason::kCancelled, {}, {});
  }
  RemoveFinished();
  if (parts_.keeper) SMOE_TRY(parts_.keeper->Look());
  if (parts_.warm_start) parts_.warm_start->Look();
  PlanRows();
  if (!rows_.empty()) {
    SMOE_TRY(MakeRoom());
    SMOE_TRY(RunRows());
  }
  RemoveFinished();
  return std::span<const TokenEvent>(events_);
}

// Fills turns_ and rows_, leaving out (and ending) requests for which no page is left.
void EngineImpl::PlanRows() {
  progress_.clear();
  for (const auto& running : running_) {
    AdoptPrefix(running.get());
    progress_.push_back({running->tokens.size(), running->kv.token_count()});
  }
  PlanStep(progress_, parts_.limits, &turns_);
  rows_.clear();
  std::erase_if(turns_, [&](const Turn& turn) {
    Running* running = running_[turn.request_index].get();
    Status room = running->kv.Reserve(turn.first + turn.count);
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

// The cache gives back what this step is the first to touch, and takes what is held no longer: see
// SlotsBeside and SlotsBesideHeld in engine/budget.h.
Status EngineImpl::MakeRoom() {
  if (!parts_.keeper) return Ok();
  size_t row_count = 0;
  for (const model::SequenceRows& rows : rows_) row_count += rows.tokens.size();
  few_row_steps_ = row_count <= kFewRows ? few_row_steps_ + 1 : 0;
  // An answer has begun, and will not be over at once: the prompt's activations hold experts.
  if (few_row_steps_ == kAnswerSteps && row_count_max_ > kFewRows) {
    parts_.model->ForgetActivations();
    row_count_max_ = 0;
  }
  row_count_max_ = std::max(row_count_max_, row_count);
  const uint64_t kv_tokens = parts_.kv->pool().touched_count() * model::kKvPageTokens;
  if (row_count_max_ > kFewRows) {
    held_slots_ = 0;
  } else if (few_row_steps_ % kMeasureSteps == kMeasureSteps - 1) {
    const uint64_t held = ResidentBytes();
    const uint64_t experts = ResidentBytesOf(parts_.cache->slab());
    held_slots_ =
        held < experts ? 0 : SlotsBesideHeld(parts_.demand, parts_.budget, held - experts);
  }
  return parts_.keeper->Allow(
      std::max(held_slots_, SlotsBeside(parts_.demand, parts_.budget, row_count_max_, kv_tokens)));
}

// What the clocks of the parts show. The engine's own, wall_ns, is not among them.
StepTimes EngineImpl::ReadClocks() const {
  return {.wall_ns = 0,
          .profile = parts_.model->profile(),
          .wait_ns = parts_.backend->stats().wait_ns,
          .pool = parts_.pool->use()};
}

// One forward pass over rows_, and what it means for each request.
Status EngineImpl::RunRows() {
  const Stopwatch stopwatch;
  const StepTimes before = ReadClocks();
  SMOE_TRY_ASSIGN(model::StepResult result, parts_.model->Step(rows_, nullptr));
  const bool has_prompt = std::ranges::any_of(turns_, [&](const Turn& turn) {
    return turn.first < running_[turn.request_index]->request.prompt.size();
  });
  const auto count_time = [&] {
    StepTimes times = ReadClocks().Since(before);
    times.wall_ns = stopwatch.ns();
    (has_prompt ? stats_.prefill : stats_.decode) += times;
  };
  if (result.is_stopped) {
    for (const Turn& turn : turns_) {
      Finish(running_[turn.request_index].get(), FinishReason::kCancelled, {}, {});
    }
    count_time();
    return Ok();
  }
  for (model::SequenceFailure& failure : result.failures) {
    Running* running = running_[turns_[failure.sequence].request_index].get();
    running->request.shares_prefix = false;  // its keys and values are worth nothing
    Finish(running, FinishReason::kFailed, {}, std::move(failure.error));
  }
  size_t logit_row = 0;
  for (const Turn& turn : turns_) {
    Running* running = running_[turn.request_index].get();
    const size_t prompt_left =
        running->request.prompt.size() - std::min(running->request.prompt.size(), turn.first);
    stats_.prompt_token_count += std::min(prompt_left, turn.count);
    if (running->request.shares_prefix && running->id != 0) running->kv.Keep(running->tokens);
    if (!turn.is_last) continue;
    const size_t vocab_size = config().vocab_size;
    const auto logits = result.logits.subspan(logit_row++ * vocab_size, vocab_size);
    if (running->id != 0) TakeToken(running, logits);
  }
  ++stats_.step_count;
  count_time();
  if (!has_prompt) ++stats_.decode_step_count;
  if (!has_prompt && parts_.keeper) parts_.keeper->NoteToken(stopwatch.ns());
  return Ok();
}

// Of the step that is under way; Evaluate has none.
bool EngineImpl::IsEveryTurnCancelled() const {
  return !running_.empty() && std::ranges::all_of(turns_, [&](const Turn& turn) {
    return running_[turn.request_index]->IsCancelled();
  });
}

void EngineImpl::TakeToken(Running* running, std::span<const float> logits) {
  if (running->request.token_count_max == 0) return Finish(running, FinishReason::kLength, {}, {});
  auto token = running->sampler.Sample(logits, running->tokens);
  if (!token) return Finish(running, FinishReason::kFailed, {}, std::move(token.error()));
  const auto& known = running->request.continuation;
  if (running->generated_count < known.size()) *token = known[running->generated_count];
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
  if (running->request.shares_prefix) running->kv.Retire(running->tokens);
}

void EngineImpl::RemoveFinished() {
  std::erase_if(running_, [](const auto& running) { return running->id == 0; });
}

Status EngineImpl::Evaluate(std::span<const uint32_t> tokens, model::StepTaps want,
                            const LogitSink& sink) {
  SMOE_CHECK(idle() && parts_.logit_row_max >= parts_.limits.chunk_tokens);
  row_count_max_ = std::max(row_count_max_, parts_.limits.row_count_max);
  few_row_steps_ = 0;
  if (parts_.keeper) SMOE_TRY(parts_.keeper->Allow(parts_.budget.slot_count));
  SMOE_TRY(CheckTokens(tokens));
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

Status EngineImpl::LoadExperts(const LoadSink& sink) {
  SMOE_CHECK(idle());
  experts::ExpertCache& cache = *parts_.cache;
  const uint64_t wanted_count = cache.slot_count();
  uint64_t loaded_count = 0;
  std::vector<store::ExpertId> wanted;
  for (const store::StoreLayer& layer : parts_.files.experts->layers()) {
    const auto count =
        static_cast<uint32_t>(std::min<uint64_t>(layer.expert_count, wanted_count - loaded_count));
    wanted.clear();
    for (uint32_t i = 0; i < count; ++i) wanted.push_back({layer.layer_index, i});
    cache.Begin(wanted);
    for (;;) {
      SMOE_TRY_ASSIGN(const std::optional<experts::ReadyExpert> expert, cache.Next());
      if (!expert) break;
      if (expert->error) {
        SMOE_TRY(cache.Abandon());
        return Unexpected(*expert->error);
      }
      cache.Release(*expert);
      sink(++loaded_count, wanted_count);
    }
  }
  return Ok();
}

Result<bool> EngineImpl::ReadWhileIdle() {
  SMOE_CHECK(idle());
  if (!parts_.warm_start) return false;
  if (parts_.keeper) SMOE_TRY(parts_.keeper->Look());
  // No pass is under way: nothing is handed out, but what arrived lands and the next read begins.
  SMOE_TRY_ASSIGN(const std::optional<experts::ReadyExpert> none, parts_.cache->TryNext());
  SMOE_CHECK(!none);
  return parts_.cache->Audit().loading != 0;
}

// The instruction set is not among the settings: all give the same bits.
Result<model::KvFileOwner> EngineImpl::KvOwner() {
  if (!fingerprint_) {
    SMOE_TRY_ASSIGN(fingerprint_, store::ModelFingerprint(parts_.files));
  }
  return model::KvFileOwner{
      .model_fingerprint = *fingerprint_,
      .settings = fmt::format("arithmetic {}, trunk {}", parts_.setup.arithmetic,
                              checkpoint::TrunkFormatsText(trunk_report().asked)),
      .vocab_size = config().vocab_size};
}

Result<model::KvFileContent> EngineImpl::RestoreTokens(const std::string& path) {
  SMOE_TRY_ASSIGN(const model::KvFileOwner owner, KvOwner());
  return model::LoadKvFile(path, owner, parts_.context_tokens, parts_.kv.get());
}

Status EngineImpl::SaveTokens(const std::string& path, std::span<const uint32_t> tokens,
                              std::string_view note) {
  SMOE_TRY_ASSIGN(const model::KvFileOwner owner, KvOwner());
  model::KvSequence kv = parts_.kv->NewSequence();
  kv.Adopt(tokens);
  if (kv.token_count() == 0) {
    return Exhausted("{}: no keys and values of the {} tokens are kept; raise --context", path,
                     tokens.size());
  }
  return model::SaveKvFile(path, owner, parts_.kv->shape(), kv, tokens, note);
}

EngineStats EngineImpl::stats() const {
  EngineStats stats = stats_;
  stats.cache = parts_.backend->stats();
  stats.expert_compute_ns = parts_.backend->compute_ns();
  const model::PagePool& pool = parts_.kv->pool();
  stats.kv = {.page_count = pool.page_count(),
              .running_count = pool.page_count() - pool.unused_count(),
              .kept_count = pool.kept_unused_count(),
              .forgotten_count = pool.forgotten_count()};
  if (parts_.keeper) stats.guard = parts_.keeper->stats();
  return stats;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Open(store::ModelFiles files,
                                             const EngineOptions& options) {
  SMOE_TRY_ASSIGN(Parts parts, AssembleParts(std::move(files), options));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(parts)));
}

}  // namespace smoe::engine
