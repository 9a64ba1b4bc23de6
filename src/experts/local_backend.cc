#include "experts/local_backend.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/memory.h"
#include "base/stopwatch.h"
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
        feed_forward_(std::move(feed_forward)) {}

  Status TakeMemory();
  Status Run(const RoutedRows& rows, std::vector<RowFailure>* failures) override;
  CacheStats stats() const override { return cache_.stats(); }
  uint64_t compute_ns() const override { return compute_ns_; }

 private:
  // Adds the time it lives to a counter.
  class Timed {
   public:
    explicit Timed(uint64_t* total_ns) : total_ns_(total_ns) {}
    ~Timed() { *total_ns_ += stopwatch_.ns(); }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    uint64_t* total_ns_;
    Stopwatch stopwatch_;
  };

  bool InIntegers() const { return options_.arithmetic == Arithmetic::kInt8; }
  void QuantiseInput(const RoutedRows& rows);
  void SortByExpert(const RoutedRows& rows);
  void Compute(const RoutedRows& rows, const ReadyExpert& expert);
  kernels::Activations Gather(const RoutedRows& rows, const tensor::ExpertWeights& weights,
                              std::span<const uint32_t> row_indices);
  void Combine(const RoutedRows& rows);
  void CollectFailures(const RoutedRows& rows, std::vector<RowFailure>* failures);
  Error WhyFailed(const RoutedRows& rows, size_t row) const;
  size_t PositionOf(const RoutedRows& rows, size_t row, size_t rank) const {
    return position_of_.As<uint32_t>()[row * rows.top_k + rank];
  }

  const store::ExpertStore& store_;
  ExpertCache& cache_;
  ThreadPool& pool_;
  const kernels::KernelTable& kernels_;
  const LocalBackendOptions options_;
  const size_t hidden_size_;
  kernels::FeedForward feed_forward_;

  // By row.
  kernels::QuantisedBuffer input_codes_;
  AlignedBuffer row_is_finite_;  // u8
  // By pair, sorted by expert: the pairs of expert e are [expert_begin_[e], expert_begin_[e + 1]).
  AlignedBuffer expert_begin_;    // u32, one more than experts
  AlignedBuffer row_of_;          // u32, by sorted position
  AlignedBuffer position_of_;     // u32, sorted position by row * top_k + rank
  AlignedBuffer pair_is_usable_;  // u8, by sorted position
  AlignedBuffer outputs_;         // f32, [sorted position][hidden]
  // The rows of one expert, side by side.
  AlignedBuffer gathered_;
  kernels::QuantisedBuffer gathered_codes_;

  std::vector<store::ExpertId> wanted_;
  std::vector<FailedExpert> failed_experts_;
  uint64_t compute_ns_ = 0;
};

Status LocalBackend::TakeMemory() {
  const char* const purpose = "expert activations";
  const uint64_t rows = options_.row_count_max;
  const auto take = [&](AlignedBuffer* buffer, uint64_t row_items, uint64_t item_bytes) -> Status {
    SMOE_TRY_ASSIGN(*buffer, AlignedBuffer::CreateTable(rows, row_items, item_bytes, purpose));
    return Ok();
  };
  const std::optional<uint64_t> output_items = CheckedMul(options_.top_k, hidden_size_);
  if (!output_items || rows > UINT32_MAX || options_.top_k > UINT32_MAX) {
    return Exhausted(
        "{}: {} rows of {} experts of {} floats asked, more than a machine can address", purpose,
        rows, options_.top_k, hidden_size_);
  }
  SMOE_TRY(take(&outputs_, *output_items, sizeof(float)));
  SMOE_TRY(take(&row_of_, options_.top_k, sizeof(uint32_t)));
  SMOE_TRY(take(&position_of_, options_.top_k, sizeof(uint32_t)));
  SMOE_TRY(take(&pair_is_usable_, options_.top_k, 1));
  SMOE_TRY(take(&row_is_finite_, 1, 1));
  SMOE_TRY(take(&gathered_, hidden_size_, sizeof(float)));
  if (InIntegers()) {
    SMOE_TRY_ASSIGN(input_codes_, kernels::QuantisedBuffer::Create(rows, hidden_size_, purpose));
    SMOE_TRY_ASSIGN(gathered_codes_, kernels::QuantisedBuffer::Create(rows, hidden_size_, purpose));
  }
  uint64_t expert_count_max = 0;
  for (const store::StoreLayer& layer : store_.layers()) {
    expert_count_max = std::max<uint64_t>(expert_count_max, layer.expert_count);
  }
  SMOE_TRY_ASSIGN(expert_begin_,
                  AlignedBuffer::CreateTable(expert_count_max + 1, 1, sizeof(uint32_t), purpose));
  wanted_.reserve(expert_count_max);
  return Ok();
}

Status LocalBackend::Run(const RoutedRows& rows, std::vector<RowFailure>* failures) {
  SMOE_CHECK(rows.row_count <= options_.row_count_max && rows.top_k <= options_.top_k);
  if (rows.row_count == 0) return Ok();
  failed_experts_.clear();
  QuantiseInput(rows);
  SortByExpert(rows);
  cache_.Begin(wanted_);
  for (;;) {
    SMOE_TRY_ASSIGN(const std::optional<ReadyExpert> expert, cache_.Next());
    if (!expert) break;
    if (expert->error) {
      failed_experts_.push_back({expert->id.expert_index, *expert->error});
      continue;
    }
    Compute(rows, *expert);
    cache_.Release(*expert);
  }
  CollectFailures(rows, failures);
  Combine(rows);
  return Ok();
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

// A counting sort of the pairs by expert, rows and ranks in their order inside an expert. Rows that
// cannot be computed ask for no expert.
void LocalBackend::SortByExpert(const RoutedRows& rows) {
  const auto layer = std::find_if(
      store_.layers().begin(), store_.layers().end(),
      [&](const store::StoreLayer& one) { return one.layer_index == rows.layer_index; });
  SMOE_CHECK(layer != store_.layers().end());
  const std::span<uint32_t> begin = expert_begin_.As<uint32_t>().first(layer->expert_count + 1);
  const std::span<const uint8_t> finite = row_is_finite_.As<uint8_t>();
  const size_t top_k = rows.top_k;
  std::fill(begin.begin(), begin.end(), 0U);
  for (size_t pair = 0; pair < rows.row_count * top_k; ++pair) {
    SMOE_CHECK(rows.expert_ids[pair] < layer->expert_count);
    if (finite[pair / top_k] != 0) ++begin[rows.expert_ids[pair] + 1];
  }
  wanted_.clear();
  for (uint32_t expert = 0; expert < layer->expert_count; ++expert) {
    if (begin[expert + 1] != 0) wanted_.push_back({rows.layer_index, expert});
    begin[expert + 1] += begin[expert];
  }
  const std::span<uint32_t> row_of = row_of_.As<uint32_t>();
  const std::span<uint32_t> position_of = position_of_.As<uint32_t>();
  const std::span<uint8_t> usable = pair_is_usable_.As<uint8_t>();
  for (size_t pair = 0; pair < rows.row_count * top_k; ++pair) {
    if (finite[pair / top_k] == 0) continue;
    const uint32_t position = begin[rows.expert_ids[pair]]++;
    row_of[position] = static_cast<uint32_t>(pair / top_k);
    position_of[pair] = position;
    usable[position] = 0;  // until its expert was computed
  }
  // Placing the pairs has moved every begin to the next expert's.
  for (uint32_t expert = layer->expert_count; expert > 0; --expert)
    begin[expert] = begin[expert - 1];
  begin[0] = 0;
}

void LocalBackend::Compute(const RoutedRows& rows, const ReadyExpert& expert) {
  const Timed timed(&compute_ns_);
  const std::span<const uint32_t> begin = expert_begin_.As<uint32_t>();
  const size_t end = begin[expert.id.expert_index + 1];
  // One round, unless a row names the same expert twice.
  for (size_t first = begin[expert.id.expert_index]; first < end;) {
    const size_t count = std::min(end - first, options_.row_count_max);
    const kernels::Activations x =
        Gather(rows, expert.weights, row_of_.As<uint32_t>().subspan(first, count));
    const std::span<uint8_t> usable = pair_is_usable_.As<uint8_t>().subspan(first, count);
    std::fill(usable.begin(), usable.end(), uint8_t{1});
    float* const out = outputs_.As<float>().data() + first * hidden_size_;
    feed_forward_.Run(expert.weights, x, out, hidden_size_, usable);
    first += count;
  }
}

// The rows side by side, in the forms that the weights need. Rows that are neighbours already stay
// where they are: always so for a single one.
kernels::Activations LocalBackend::Gather(const RoutedRows& rows,
                                          const tensor::ExpertWeights& weights,
                                          std::span<const uint32_t> row_indices) {
  const size_t count = row_indices.size();
  const bool is_run = row_indices.back() - row_indices.front() + 1 == count &&
                      std::is_sorted(row_indices.begin(), row_indices.end());
  const bool needs_codes = InIntegers();
  const bool needs_floats = !needs_codes || !tensor::IsQuantised(weights.gate.format) ||
                            !tensor::IsQuantised(weights.up.format);
  kernels::Activations x;
  x.floats = {.data = rows.hidden + row_indices.front() * hidden_size_,
              .token_count = count,
              .stride = hidden_size_};
  if (needs_codes) {
    x.quantised = (is_run ? input_codes_ : gathered_codes_).View(count, hidden_size_);
    if (is_run) {
      x.quantised.codes = input_codes_.codes(row_indices.front(), hidden_size_);
      x.quantised.scales = input_codes_.scales(row_indices.front(), hidden_size_);
    }
  }
  if (is_run) return x;
  float* const floats = gathered_.As<float>().data();
  if (needs_floats) x.floats.data = floats;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t row = row_indices[i];
    if (needs_floats) {
      std::copy_n(rows.hidden + row * hidden_size_, hidden_size_, floats + i * hidden_size_);
    }
    if (!needs_codes) continue;
    std::copy_n(input_codes_.codes(row, hidden_size_), x.quantised.col_stride,
                gathered_codes_.codes(i, hidden_size_));
    std::copy_n(input_codes_.scales(row, hidden_size_),
                x.quantised.col_stride / kernels::kActivationBlock,
                gathered_codes_.scales(i, hidden_size_));
  }
  return x;
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
        const float* const y = outputs.data() + PositionOf(rows, row, rank) * hidden_size_;
        kernels_.add_scaled(y, rows.weights[row * rows.top_k + rank], hidden_size_, out);
      }
    }
  };
  pool_.ParallelFor(rows.row_count, 1, std::ref(body));
}

void LocalBackend::CollectFailures(const RoutedRows& rows, std::vector<RowFailure>* failures) {
  const std::span<const uint8_t> finite = row_is_finite_.As<uint8_t>();
  const std::span<const uint8_t> usable = pair_is_usable_.As<uint8_t>();
  for (size_t row = 0; row < rows.row_count; ++row) {
    bool is_good = finite[row] != 0;
    for (size_t rank = 0; is_good && rank < rows.top_k; ++rank) {
      is_good = usable[PositionOf(rows, row, rank)] != 0;
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
    if (pair_is_usable_.As<uint8_t>()[PositionOf(rows, row, rank)] == 0) break;
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

Result<std::unique_ptr<ExpertBackend>> MakeLocalBackend(const store::ExpertStore& store,
                                                        ExpertCache& cache, ThreadPool& pool,
                                                        const kernels::KernelTable& kernels,
                                                        const LocalBackendOptions& options) {
  SMOE_TRY_ASSIGN(
      kernels::FeedForward feed_forward,
      kernels::FeedForward::Create(kernels, pool,
                                   {.token_count_max = options.row_count_max,
                                    .intermediate_size_max = store.intermediate_size(),
                                    .quantise = options.arithmetic == Arithmetic::kInt8}));
  auto backend =
      std::make_unique<LocalBackend>(store, cache, pool, kernels, options, std::move(feed_forward));
  SMOE_TRY(backend->TakeMemory());
  return std::unique_ptr<ExpertBackend>(std::move(backend));
}

}  // namespace smoe::experts
