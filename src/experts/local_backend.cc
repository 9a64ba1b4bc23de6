#include "experts/local_backend.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/memory.h"
#include "base/stopwatch.h"
#include "experts/routed_pairs.h"
#include "kernels/feed_forward.h"

namespace smoe::experts {

namespace {

struct FailedExpert {
  uint32_t expert_index;
  Error error;
};

class LocalBackend final : public ExpertBackend {
 public:
  LocalBackend(const store::ExpertStore& store, ExpertCache& cache, ThreadPool& pool,
               const kernels::KernelTable& kernels, const LocalBackendOptions& options,
               kernels::FeedForward feed_forward)
      : store_(store),
        cache_(cache),
        pool_(pool),
        kernels_(kernels),
        options_(options),
        hidden_size_(store.hidden_size()),
        round_rows_max_(RoundRowCountMax(options)),
        feed_forward_(std::move(feed_forward)),
        controller_(options.prefetch) {}

  Status TakeMemory();
  Status Begin(const RoutedRows& rows) override;
  Status Run(const RoutedRows& rows, std::vector<RowFailure>* failures) override;
  void ForgetActivations() override;
  void Poll() override { cache_.Poll(); }
  CacheStats stats() const override { return cache_.stats(); }
  bool WantsFirst(size_t row_count) const override { return reads_ && row_count > kGuessRowsMax; }
  void Foresee(uint32_t layer_index, std::span<const uint32_t> likely_ids,
               size_t row_count) override {
    if (row_count > kGuessRowsMax) {
      ForeseeMany(layer_index, likely_ids);
    } else if (controller_.is_on()) {
      Guess(layer_index, likely_ids);
    }
  }
  bool WantsLikely(size_t row_count) const override {
    return reads_ && (row_count > kGuessRowsMax || controller_.is_on());
  }
  uint64_t compute_ns() const override { return compute_ns_; }

 private:
  const store::StoreLayer& LayerOf(const RoutedRows& rows) const;
  bool InIntegers() const { return options_.arithmetic == Arithmetic::kInt8; }
  void QuantiseInput(const RoutedRows& rows);
  void ForeseeMany(uint32_t layer_index, std::span<const uint32_t> likely_ids);
  void ForeseeNextChunk();
  void CountReads();
  void Guess(uint32_t layer_index, std::span<const uint32_t> likely_ids);
  void TimeToken(const RoutedRows& rows);
  Result<bool> TakeRound();
  void ComputeRound(const RoutedRows& rows);
  void AddJob(const RoutedRows& rows, const ReadyExpert& expert, size_t skip);
  void Gather(const RoutedRows& rows);
  void Combine(const RoutedRows& rows);
  void CollectFailures(const RoutedRows& rows, std::vector<RowFailure>* failures);
  Error WhyFailed(const RoutedRows& rows, size_t row) const;

  const store::ExpertStore& store_;
  ExpertCache& cache_;
  ThreadPool& pool_;
  const kernels::KernelTable& kernels_;
  const LocalBackendOptions options_;
  const size_t hidden_size_;
  const size_t round_rows_max_;
  kernels::FeedForward feed_forward_;

  // By row.
  kernels::QuantisedBuffer input_codes_;
  AlignedBuffer row_is_finite_;  // u8
  RoutedPairs pairs_;
  AlignedBuffer outputs_;  // f32, [position of the pair][hidden]

  // The pass over the cache: what is wanted, and how much of it may be held.
  bool is_begun_ = false;
  std::vector<store::ExpertId> wanted_;
  std::vector<uint32_t> row_counts_;  // of each of them
  std::vector<store::ExpertId> likely_;
  std::vector<uint32_t> likely_counts_;  // by expert: rows that will probably want it
  bool reads_ = true;                    // not every expert is in memory, as far as is known
  uint64_t read_bytes_ = 0;              // of the cache, after it
  size_t hold_count_max_ = 0;
  std::vector<FailedExpert> failed_experts_;

  // The round: experts that are held, and a further one that had no room any more.
  std::vector<ReadyExpert> held_;
  std::optional<ReadyExpert> next_;
  std::vector<kernels::FeedForwardJob> jobs_;
  // Rows that do not lie side by side in the input are copied, those of one expert together.
  AlignedBuffer gathered_from_;  // u32: which row
  size_t gathered_count_ = 0;
  bool gathers_floats_ = false;
  AlignedBuffer gathered_;  // f32
  kernels::QuantisedBuffer gathered_codes_;

  uint64_t compute_ns_ = 0;

  PrefetchController controller_;
  uint32_t last_layer_ = 0;
  size_t last_row_count_ = 0;
  uint64_t token_wait_ns_ = 0;
  Stopwatch token_time_;
};

Status LocalBackend::TakeMemory() {
  const char* const purpose = "expert activations";
  const uint64_t rows = options_.row_count_max;
  uint64_t expert_count_max = 0;
  for (const store::StoreLayer& layer : store_.layers()) {
    expert_count_max = std::max<uint64_t>(expert_count_max, layer.expert_count);
  }
  SMOE_TRY_ASSIGN(pairs_, RoutedPairs::Create(rows, options_.top_k, expert_count_max));
  const std::optional<uint64_t> output_items = CheckedMul(options_.top_k, hidden_size_);
  if (!output_items) {
    return Exhausted("{}: {} experts of {} floats asked, more than a machine can address", purpose,
                     options_.top_k, hidden_size_);
  }
  SMOE_TRY_ASSIGN(outputs_,
                  AlignedBuffer::CreateTable(rows, *output_items, sizeof(float), purpose));
  SMOE_TRY_ASSIGN(row_is_finite_, AlignedBuffer::CreateTable(rows, 1, 1, purpose));
  const auto take = [&](AlignedBuffer* buffer, uint64_t items, uint64_t item_bytes) -> Status {
    SMOE_TRY_ASSIGN(*buffer,
                    AlignedBuffer::CreateTable(round_rows_max_, items, item_bytes, purpose));
    return Ok();
  };
  SMOE_TRY(take(&gathered_, hidden_size_, sizeof(float)));
  SMOE_TRY(take(&gathered_from_, 1, sizeof(uint32_t)));
  if (InIntegers()) {
    SMOE_TRY_ASSIGN(input_codes_, kernels::QuantisedBuffer::Create(rows, hidden_size_, purpose));
    SMOE_TRY_ASSIGN(gathered_codes_,
                    kernels::QuantisedBuffer::Create(round_rows_max_, hidden_size_, purpose));
  }
  wanted_.reserve(expert_count_max);
  row_counts_.reserve(expert_count_max);
  likely_.reserve(expert_count_max);
  likely_counts_.resize(expert_count_max);
  held_.reserve(expert_count_max);
  jobs_.reserve(expert_count_max);
  return Ok();
}

void LocalBackend::ForgetActivations() {
  for (AlignedBuffer* const buffer : {&outputs_, &gathered_, &gathered_from_}) {
    buffer->Discard(0, buffer->size());
  }
  input_codes_.Discard();
  gathered_codes_.Discard();
  feed_forward_.Discard();
}

const store::StoreLayer& LocalBackend::LayerOf(const RoutedRows& rows) const {
  const auto layer = std::find_if(
      store_.layers().begin(), store_.layers().end(),
      [&](const store::StoreLayer& one) { return one.layer_index == rows.layer_index; });
  SMOE_CHECK(layer != store_.layers().end());
  return *layer;
}

Status LocalBackend::Begin(const RoutedRows& rows) {
  SMOE_CHECK(!is_begun_);
  SMOE_CHECK(rows.row_count <= options_.row_count_max && rows.top_k <= options_.top_k);
  is_begun_ = true;
  if (rows.row_count == 0) return Ok();
  failed_experts_.clear();
  next_.reset();
  QuantiseInput(rows);
  pairs_.Sort(rows, LayerOf(rows).expert_count, row_is_finite_.As<uint8_t>(), &wanted_);
  // Where experts have to wait for slots, half of these read while the others are computed with.
  const size_t slot_count = cache_.slot_count();
  hold_count_max_ = wanted_.size() <= slot_count ? slot_count : std::max<size_t>(1, slot_count / 2);
  row_counts_.clear();
  for (const store::ExpertId id : wanted_)
    row_counts_.push_back(static_cast<uint32_t>(pairs_.count(id.expert_index)));
  cache_.Begin(wanted_,
               {.row_count = static_cast<uint32_t>(rows.row_count), .by_wanted = row_counts_});
  TimeToken(rows);
  return Ok();
}

Status LocalBackend::Run(const RoutedRows& rows, std::vector<RowFailure>* failures) {
  SMOE_CHECK(std::exchange(is_begun_, false));
  if (rows.row_count == 0) return Ok();
  const bool is_last = &LayerOf(rows) == &store_.layers().back();
  if (is_last && rows.more_follow && rows.row_count > kGuessRowsMax) ForeseeNextChunk();
  for (;;) {
    SMOE_TRY_ASSIGN(const bool has_round, TakeRound());
    if (!has_round) break;
    ComputeRound(rows);
    for (const ReadyExpert& expert : held_) cache_.Release(expert);
  }
  CountReads();
  CollectFailures(rows, failures);
  Combine(rows);
  return Ok();
}

void LocalBackend::CountReads() {
  const uint64_t bytes = cache_.stats().read_bytes;
  reads_ = bytes != read_bytes_ || cache_.slot_count() < store_.expert_count();
  read_bytes_ = bytes;
}

// The guesses of a step of few rows, each once.
void LocalBackend::Guess(uint32_t layer_index, std::span<const uint32_t> likely_ids) {
  likely_.clear();
  for (const uint32_t expert : likely_ids) {
    const store::ExpertId id = {layer_index, expert};
    if (std::find(likely_.begin(), likely_.end(), id) == likely_.end()) likely_.push_back(id);
  }
  cache_.Prefetch(likely_, true);  // none, too: what was said before is no longer so
}

// A token ends where a layer comes that is not behind the last one.
void LocalBackend::TimeToken(const RoutedRows& rows) {
  const bool is_new_token = rows.layer_index <= last_layer_;
  last_layer_ = rows.layer_index;
  if (!is_new_token) return;
  const uint64_t wait_ns = cache_.stats().wait_ns;
  const bool is_decoding = rows.row_count == last_row_count_;
  if (is_decoding) {
    controller_.TokenDone(token_time_.ns(), wait_ns - token_wait_ns_);
  } else {
    controller_.Disturb();
  }
  last_row_count_ = rows.row_count;
  token_wait_ns_ = wait_ns;
  token_time_ = Stopwatch();
}

// What many rows will want of the next layer, what most of them will first. The reads begin while
// this layer computes and the next attends, and not all will have begun.
void LocalBackend::ForeseeMany(uint32_t layer_index, std::span<const uint32_t> likely_ids) {
  std::fill(likely_counts_.begin(), likely_counts_.end(), 0U);
  for (const uint32_t expert : likely_ids) {
    if (expert < likely_counts_.size()) ++likely_counts_[expert];
  }
  likely_.clear();
  for (uint32_t expert = 0; expert < likely_counts_.size(); ++expert) {
    if (likely_counts_[expert] != 0) likely_.push_back({layer_index, expert});
  }
  std::sort(likely_.begin(), likely_.end(), [&](store::ExpertId a, store::ExpertId b) {
    const uint32_t count_a = likely_counts_[a.expert_index];
    const uint32_t count_b = likely_counts_[b.expert_index];
    return count_a != count_b ? count_a > count_b : a.expert_index < b.expert_index;
  });
  cache_.Prefetch(likely_, false);
}

// Behind the last layer comes the next chunk's first, whose rows nobody has seen. They will want
// what others wanted there.
void LocalBackend::ForeseeNextChunk() {
  const store::StoreLayer& first = store_.layers().front();
  likely_.clear();
  for (uint32_t expert = 0; expert < first.expert_count; ++expert) {
    const store::ExpertId id = {first.layer_index, expert};
    if (cache_.Worth(id) > 0) likely_.push_back(id);
  }
  std::sort(likely_.begin(), likely_.end(), [&](store::ExpertId a, store::ExpertId b) {
    const double worth_a = cache_.Worth(a);
    const double worth_b = cache_.Worth(b);
    return worth_a != worth_b ? worth_a > worth_b : a.expert_index < b.expert_index;
  });
  cache_.Prefetch(likely_, false);
}

// Waits for an expert, and takes with it what is ready and has room. False after the last.
Result<bool> LocalBackend::TakeRound() {
  held_.clear();
  size_t row_count = 0;
  for (;;) {
    std::optional<ReadyExpert> expert = std::exchange(next_, std::nullopt);
    if (!expert) {
      if (held_.size() == hold_count_max_) return true;
      SMOE_TRY_ASSIGN(expert, held_.empty() ? cache_.Next() : cache_.TryNext());
    }
    if (!expert) return !held_.empty();
    if (expert->error) {
      failed_experts_.push_back({expert->id.expert_index, std::move(*expert->error)});
      continue;
    }
    row_count += pairs_.count(expert->id.expert_index);
    if (!held_.empty() && row_count > round_rows_max_) {
      next_ = std::move(expert);
      return true;
    }
    held_.push_back(std::move(*expert));
  }
}

void LocalBackend::QuantiseInput(const RoutedRows& rows) {
  const Timed timed(&compute_ns_);
  const std::span<uint8_t> finite = row_is_finite_.As<uint8_t>().first(rows.row_count);
  if (!InIntegers()) {
    std::fill(finite.begin(), finite.end(), uint8_t{1});
    return;
  }
  const kernels::FloatRows x{
      .data = rows.hidden, .token_count = rows.row_count, .stride = hidden_size_};
  input_codes_.Quantise(kernels_, pool_, x, hidden_size_, finite);
}

// One go, unless a row names the same expert twice and that alone has more rows than a round.
void LocalBackend::ComputeRound(const RoutedRows& rows) {
  const Timed timed(&compute_ns_);
  gathers_floats_ = std::any_of(held_.begin(), held_.end(), [this](const ReadyExpert& expert) {
    return !InIntegers() || !tensor::IsQuantised(expert.weights.gate.format) ||
           !tensor::IsQuantised(expert.weights.up.format);
  });
  for (size_t skip = 0;; skip += round_rows_max_) {
    jobs_.clear();
    gathered_count_ = 0;
    for (const ReadyExpert& expert : held_) AddJob(rows, expert, skip);
    if (jobs_.empty()) return;
    Gather(rows);
    feed_forward_.Run(jobs_);
  }
}

// The rows side by side, in the forms that the weights need. Rows that are neighbours already stay
// where they are: always so for a single one.
void LocalBackend::AddJob(const RoutedRows& rows, const ReadyExpert& expert, size_t skip) {
  const uint32_t expert_index = expert.id.expert_index;
  std::span<const uint32_t> from = pairs_.rows(expert_index);
  if (skip >= from.size()) return;
  from = from.subspan(skip, std::min(from.size() - skip, round_rows_max_));
  const bool is_run =
      from.back() - from.front() + 1 == from.size() && std::is_sorted(from.begin(), from.end());
  size_t first = from.front();
  if (!is_run) {
    first = gathered_count_;
    std::copy(from.begin(), from.end(),
              gathered_from_.As<uint32_t>().subspan(gathered_count_).begin());
    gathered_count_ += from.size();
  }
  const float* const floats = is_run ? rows.hidden : gathered_.As<float>().data();
  kernels::FeedForwardJob job;
  job.weights = expert.weights;
  job.x.floats = {
      .data = floats + first * hidden_size_, .token_count = from.size(), .stride = hidden_size_};
  if (InIntegers()) {
    kernels::QuantisedBuffer& codes = is_run ? input_codes_ : gathered_codes_;
    job.x.quantised = codes.View(from.size(), hidden_size_);
    job.x.quantised.codes = codes.codes(first, hidden_size_);
    job.x.quantised.scales = codes.scales(first, hidden_size_);
  }
  job.out = outputs_.As<float>().data() + (pairs_.first(expert_index) + skip) * hidden_size_;
  job.out_stride = hidden_size_;
  job.finite = pairs_.usable(expert_index).subspan(skip, from.size());
  std::fill(job.finite.begin(), job.finite.end(), uint8_t{1});
  jobs_.push_back(job);
}

void LocalBackend::Gather(const RoutedRows& rows) {
  const std::span<const uint32_t> from = gathered_from_.As<uint32_t>();
  float* const floats = gathered_.As<float>().data();
  const auto body = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (gathers_floats_) {
        std::copy_n(rows.hidden + from[i] * hidden_size_, hidden_size_, floats + i * hidden_size_);
      }
      if (!InIntegers()) continue;
      const size_t codes = input_codes_.View(1, hidden_size_).col_stride;
      std::copy_n(input_codes_.codes(from[i], hidden_size_), codes,
                  gathered_codes_.codes(i, hidden_size_));
      std::copy_n(input_codes_.scales(from[i], hidden_size_), codes / kernels::kActivationBlock,
                  gathered_codes_.scales(i, hidden_size_));
    }
  };
  pool_.ParallelFor(gathered_count_, GrainOf(hidden_size_), std::ref(body));
}

// Router order, whatever the order of arrival was. Failed rows get some value too.
void LocalBackend::Combine(const RoutedRows& rows) {
  const Timed timed(&compute_ns_);
  const std::span<const uint8_t> finite = row_is_finite_.As<uint8_t>();
  const std::span<const float> outputs = outputs_.As<float>();
  const auto body = [&](size_t row_begin, size_t row_end) {
    for (size_t row = row_begin; row < row_end; ++row) {
      float* const out = rows.out + row * hidden_size_;
      std::fill_n(out, hidden_size_, 0.0f);
      if (finite[row] == 0) continue;
      for (size_t rank = 0; rank < rows.top_k; ++rank) {
        const float* const y =
            outputs.data() + pairs_.position(row * rows.top_k + rank) * hidden_size_;
        kernels_.add_scaled(y, rows.weights[row * rows.top_k + rank], hidden_size_, out);
      }
    }
  };
  pool_.ParallelFor(rows.row_count, GrainOf(rows.top_k * hidden_size_ * sizeof(float)),
                    std::ref(body));
}

void LocalBackend::CollectFailures(const RoutedRows& rows, std::vector<RowFailure>* failures) {
  const std::span<const uint8_t> finite = row_is_finite_.As<uint8_t>();
  for (size_t row = 0; row < rows.row_count; ++row) {
    bool is_good = finite[row] != 0;
    for (size_t rank = 0; is_good && rank < rows.top_k; ++rank) {
      is_good = pairs_.is_usable(row * rows.top_k + rank);
    }
    if (!is_good) failures->push_back({row, WhyFailed(rows, row)});
  }
}

// The reason of the lowest rank, so that it does not depend on the order of arrival.
Error LocalBackend::WhyFailed(const RoutedRows& rows, size_t row) const {
  if (row_is_finite_.As<uint8_t>()[row] == 0) {
    return {
        ErrorCode::kCorrupt,
        fmt::format("layer {}: the input of the experts holds NaN or infinity (damaged weights, "
                    "or values beyond f32)",
                    rows.layer_index)};
  }
  uint32_t expert = 0;
  for (size_t rank = 0; rank < rows.top_k; ++rank) {
    expert = rows.expert_ids[row * rows.top_k + rank];
    if (!pairs_.is_usable(row * rows.top_k + rank)) break;
  }
  for (const FailedExpert& failed : failed_experts_) {
    if (failed.expert_index == expert) return failed.error;
  }
  return {ErrorCode::kCorrupt,
          fmt::format("layer {}, expert {}: the intermediate values hold NaN or infinity (damaged "
                      "weights, or values beyond f32)",
                      rows.layer_index, expert)};
}

}  // namespace

size_t RoundRowCountMax(const LocalBackendOptions& options) {
  const size_t pair_count =
      CheckedMul(options.row_count_max, options.top_k).value_or(options.row_count_max);
  return std::min(pair_count, std::max(options.row_count_max, options.round_row_count));
}

Result<std::unique_ptr<ExpertBackend>> MakeLocalBackend(const store::ExpertStore& store,
                                                        ExpertCache& cache, ThreadPool& pool,
                                                        const kernels::KernelTable& kernels,
                                                        const LocalBackendOptions& options) {
  SMOE_TRY_ASSIGN(
      kernels::FeedForward feed_forward,
      kernels::FeedForward::Create(kernels, pool,
                                   {.token_count_max = RoundRowCountMax(options),
                                    .intermediate_size_max = store.intermediate_size(),
                                    .quantise = options.arithmetic == Arithmetic::kInt8}));
  auto backend =
      std::make_unique<LocalBackend>(store, cache, pool, kernels, options, std::move(feed_forward));
  SMOE_TRY(backend->TakeMemory());
  return std::unique_ptr<ExpertBackend>(std::move(backend));
}

}  // namespace smoe::experts
