#include "kernels/feed_forward.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace smoe::kernels {

namespace {

// Rows of W are cut at multiples of this: whole cache lines of the output, and whole tiles of every
// table, of which the widest take 64 rows of quantised weights together.
constexpr size_t kRowUnit = 32;
constexpr size_t kQuantisedRowUnit = 64;
static_assert(kActivationBlock % kRowUnit == 0 && kActivationBlock % kQuantisedRowUnit == 0);

// What a matrix costs: its bytes come from memory once, and each token multiplies with all of them,
// at about this many times the rate of memory (docs/kernels.md, 64 tokens).
constexpr uint64_t kTokensPerRead = 4;

// A piece of a loop is at least 64 KiB of weights for one token: some 5 microseconds.
constexpr uint64_t kPieceCostMin = (uint64_t{64} << 10) * (kTokensPerRead + 1);

size_t BlockedCols(size_t cols) { return static_cast<size_t>(RoundUp(cols, kActivationBlock)); }

bool InIntegers(const tensor::WeightView& weights, const Activations& x) {
  return x.quantised.codes != nullptr && tensor::IsQuantised(weights.format);
}

size_t RowUnit(const tensor::WeightView& weights) {
  return tensor::IsQuantised(weights.format) ? kQuantisedRowUnit : kRowUnit;
}

uint64_t Cost(const tensor::WeightView& weights, size_t token_count) {
  const uint64_t bytes = std::max<uint64_t>(weights.data.size() + weights.scales.size(), 1);
  return bytes * (kTokensPerRead + token_count);
}

// A matrix, or two of one shape, as a stretch of a loop over costs: its rows, unit by unit, each
// as long as it costs.
struct Stretch {
  size_t row_count;
  size_t row_unit;
  uint64_t unit_cost;

  uint64_t cost() const { return CeilDiv(row_count, row_unit) * unit_cost; }
};

Stretch MakeStretch(size_t row_count, size_t row_unit, uint64_t cost) {
  const uint64_t units = std::max<uint64_t>(CeilDiv(row_count, row_unit), 1);
  return {.row_count = row_count, .row_unit = row_unit, .unit_cost = CeilDiv(cost, units)};
}

// The units that begin inside [begin, end), counted from the stretch's own beginning.
template <class Body>
void RunUnits(const Stretch& stretch, uint64_t begin, uint64_t end, const Body& body) {
  const auto row = [&](uint64_t at) {
    return std::min<size_t>(CeilDiv(at, stretch.unit_cost) * stretch.row_unit, stretch.row_count);
  };
  const size_t row_begin = row(begin);
  const size_t row_end = row(end);
  if (row_begin < row_end) body(row_begin, row_end);
}

// Parts are even if what threads idle at the end is at most this part of their work.
constexpr size_t kIdlePart = 8;

// Rows of one job's matrix that a thread should take together, a multiple of row_unit. NVFP4 lies
// column after column, so that some of the rows are short stretches, and what the processor fetches
// behind each is another thread's; all rows are one stream. While jobs wait for memory and cost
// alike, their matrices are cut into no more parts than threads can share evenly.
size_t RowsTogether(std::span<const FeedForwardJob> jobs, const tensor::WeightView& weights,
                    size_t row_unit, size_t thread_count) {
  if (weights.format != tensor::WeightFormat::kNvfp4) return row_unit;
  const size_t tokens = jobs.front().x.floats.token_count;
  for (const FeedForwardJob& job : jobs) {
    if (job.x.floats.token_count != tokens || tokens > kTokensPerRead) return row_unit;
  }
  for (size_t parts = 1;; parts *= 2) {
    const auto rows = static_cast<size_t>(RoundUp(CeilDiv(weights.rows, parts), row_unit));
    const size_t rounds = static_cast<size_t>(CeilDiv(jobs.size() * parts, thread_count));
    const size_t idle = rounds * thread_count - jobs.size() * parts;
    if (rows <= row_unit || idle * kIdlePart <= jobs.size() * parts) return rows;
  }
}

// Calls body(job, first_token, row_begin, row_end) on all threads for all rows of all jobs, whose
// stretches are stretch(job); first_token counts the tokens of the jobs before.
template <class StretchOf, class Body>
void ForRows(ThreadPool& pool, std::span<const FeedForwardJob> jobs, const StretchOf& stretch_of,
             const Body& body) {
  uint64_t total = 0;
  for (const FeedForwardJob& job : jobs) total += stretch_of(job).cost();
  const auto piece = [&](uint64_t begin, uint64_t end) {
    uint64_t at = 0;
    size_t first_token = 0;
    for (const FeedForwardJob& job : jobs) {
      const Stretch stretch = stretch_of(job);
      const uint64_t next = at + stretch.cost();
      if (begin < next && at < end) {
        RunUnits(
            stretch, std::max(begin, at) - at, std::min(end, next) - at,
            [&](size_t row_begin, size_t row_end) { body(job, first_token, row_begin, row_end); });
      }
      at = next;
      first_token += job.x.floats.token_count;
    }
  };
  pool.ParallelFor(total, kPieceCostMin, std::ref(piece));
}

// Rows [row_begin, row_end) of y = W x on this thread.
void MatMulRows(const KernelTable& kernels, const tensor::WeightView& weights, const Activations& x,
                size_t row_begin, size_t row_end, float* out, size_t out_stride) {
  const MatMulRange range{.row_begin = static_cast<uint32_t>(row_begin),
                          .row_end = static_cast<uint32_t>(row_end),
                          .out = out,
                          .out_stride = out_stride};
  if (InIntegers(weights, x)) {
    kernels.matmul_int8(weights, x.quantised, range);
  } else {
    kernels.matmul_f32(weights, x.floats, range);
  }
}

}  // namespace

void MatMul(const KernelTable& kernels, ThreadPool& pool, const tensor::WeightView& weights,
            const Activations& x, float* out, size_t out_stride) {
  if (x.floats.token_count == 0) return;
  const Stretch stretch =
      MakeStretch(weights.rows, RowUnit(weights), Cost(weights, x.floats.token_count));
  const auto piece = [&](size_t begin, size_t end) {
    RunUnits(stretch, begin, end, [&](size_t row_begin, size_t row_end) {
      MatMulRows(kernels, weights, x, row_begin, row_end, out, out_stride);
    });
  };
  pool.ParallelFor(stretch.cost(), kPieceCostMin, std::ref(piece));
}

Result<QuantisedBuffer> QuantisedBuffer::Create(size_t row_count_max, size_t cols_max,
                                                std::string_view purpose) {
  QuantisedBuffer buffer;
  const uint64_t blocks = CeilDiv(cols_max, kActivationBlock);
  SMOE_TRY_ASSIGN(buffer.codes_,
                  AlignedBuffer::CreateTable(row_count_max, blocks, kActivationBlock, purpose));
  SMOE_TRY_ASSIGN(buffer.scales_,
                  AlignedBuffer::CreateTable(row_count_max, blocks, sizeof(float), purpose));
  return buffer;
}

QuantisedRows QuantisedBuffer::View(size_t row_count, size_t cols) const {
  const size_t stride = BlockedCols(cols);
  SMOE_CHECK(row_count * stride <= codes_.size());
  return {.codes = codes_.As<int8_t>().data(),
          .scales = scales_.As<float>().data(),
          .token_count = row_count,
          .cols = cols,
          .col_stride = stride};
}

int8_t* QuantisedBuffer::codes(size_t row, size_t cols) {
  return codes_.As<int8_t>().data() + row * BlockedCols(cols);
}

float* QuantisedBuffer::scales(size_t row, size_t cols) {
  return scales_.As<float>().data() + row * (BlockedCols(cols) / kActivationBlock);
}

QuantisedRows QuantisedBuffer::Quantise(const KernelTable& kernels, ThreadPool& pool,
                                        const FloatRows& x, size_t cols,
                                        std::span<uint8_t> finite) {
  SMOE_CHECK(finite.size() >= x.token_count);
  const QuantisedRows view = View(x.token_count, cols);
  const auto body = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const float* const from = x.data + row * x.stride;
      finite[row] = kernels.quantise_row(from, cols, codes(row, cols), scales(row, cols)) ? 1 : 0;
    }
  };
  pool.ParallelFor(x.token_count, GrainOf(cols * sizeof(float)), std::ref(body));
  return view;
}

Result<FeedForward> FeedForward::Create(const KernelTable& kernels, ThreadPool& pool,
                                        const Options& options) {
  FeedForward made(kernels, pool, options);
  const uint64_t blocks = CeilDiv(options.intermediate_size_max, kActivationBlock);
  const uint64_t block_bytes = kActivationBlock * sizeof(float);
  const size_t rows = options.token_count_max;
  SMOE_TRY_ASSIGN(made.gate_,
                  AlignedBuffer::CreateTable(rows, blocks, block_bytes, "feed-forward rows"));
  SMOE_TRY_ASSIGN(made.up_,
                  AlignedBuffer::CreateTable(rows, blocks, block_bytes, "feed-forward rows"));
  if (options.quantise) {
    SMOE_TRY_ASSIGN(made.quantised_, QuantisedBuffer::Create(rows, options.intermediate_size_max,
                                                             "feed-forward rows in integers"));
  }
  return made;
}

float* FeedForward::GateRow(size_t token) {
  return gate_.As<float>().data() + token * BlockedCols(options_.intermediate_size_max);
}

float* FeedForward::UpRow(size_t token) {
  return up_.As<float>().data() + token * BlockedCols(options_.intermediate_size_max);
}

// The intermediate columns [row_begin, row_end) of every token. Ranges begin at multiples of
// kActivationBlock, so a range's blocks are its own and can be quantised while they are hot.
void FeedForward::GateUp(const FeedForwardJob& job, size_t first_token, size_t row_begin,
                         size_t row_end) {
  const size_t stride = BlockedCols(options_.intermediate_size_max);
  float* const gate = GateRow(first_token);
  float* const up = UpRow(first_token);
  MatMulRows(*kernels_, job.weights.gate, job.x, row_begin, row_end, gate, stride);
  MatMulRows(*kernels_, job.weights.up, job.x, row_begin, row_end, up, stride);
  const bool quantise = InIntegers(job.weights.down, job.x);
  for (size_t token = 0; token < job.x.floats.token_count; ++token) {
    const size_t at = token * stride + row_begin;
    kernels_->silu_mul(gate + at, up + at, row_end - row_begin);
    if (!quantise) continue;
    // A row of codes is as long as this job's rows, whatever the longest may be.
    const size_t code_at = token * BlockedCols(job.weights.gate.rows) + row_begin;
    int8_t* const codes = CodesFrom(first_token) + code_at;
    float* const scales = ScalesFrom(first_token) + code_at / kActivationBlock;
    if (!kernels_->quantise_row(gate + at, row_end - row_begin, codes, scales) &&
        !job.finite.empty()) {
      std::atomic_ref<uint8_t>(job.finite[token]).store(0, std::memory_order_relaxed);
    }
  }
}

void FeedForward::Down(const FeedForwardJob& job, size_t first_token, size_t row_begin,
                       size_t row_end) {
  const size_t token_count = job.x.floats.token_count;
  Activations x;
  x.floats = {.data = GateRow(first_token),
              .token_count = token_count,
              .stride = BlockedCols(options_.intermediate_size_max)};
  if (InIntegers(job.weights.down, job.x)) {
    const size_t cols = job.weights.down.cols;
    x.quantised = {.codes = CodesFrom(first_token),
                   .scales = ScalesFrom(first_token),
                   .token_count = token_count,
                   .cols = cols,
                   .col_stride = BlockedCols(cols)};
  }
  MatMulRows(*kernels_, job.weights.down, x, row_begin, row_end, job.out, job.out_stride);
}

void FeedForward::Run(std::span<const FeedForwardJob> jobs) {
  size_t token_count = 0;
  for (const FeedForwardJob& job : jobs) {
    const tensor::ExpertWeights& weights = job.weights;
    const size_t cols = weights.gate.rows;
    SMOE_CHECK(cols <= options_.intermediate_size_max);
    SMOE_CHECK(weights.up.rows == cols && weights.down.cols == cols);
    SMOE_CHECK(job.finite.empty() || job.finite.size() >= job.x.floats.token_count);
    SMOE_CHECK(options_.quantise || !InIntegers(weights.down, job.x));
    SMOE_CHECK(job.x.floats.token_count <= options_.token_count_max - token_count);
    token_count += job.x.floats.token_count;
  }
  const size_t threads = pool_->thread_count();
  const auto gate_up = [&](const FeedForwardJob& job) {
    const size_t tokens = job.x.floats.token_count;
    return MakeStretch(tokens == 0 ? 0 : job.weights.gate.rows,
                       RowsTogether(jobs, job.weights.gate, kActivationBlock, threads),
                       Cost(job.weights.gate, tokens) + Cost(job.weights.up, tokens));
  };
  const auto down = [&](const FeedForwardJob& job) {
    const size_t tokens = job.x.floats.token_count;
    return MakeStretch(tokens == 0 ? 0 : job.weights.down.rows,
                       RowsTogether(jobs, job.weights.down, RowUnit(job.weights.down), threads),
                       Cost(job.weights.down, tokens));
  };
  ForRows(*pool_, jobs, gate_up,
          [this](const FeedForwardJob& job, size_t first_token, size_t begin, size_t end) {
            GateUp(job, first_token, begin, end);
          });
  ForRows(*pool_, jobs, down,
          [this](const FeedForwardJob& job, size_t first_token, size_t begin, size_t end) {
            Down(job, first_token, begin, end);
          });
}

}  // namespace smoe::kernels
