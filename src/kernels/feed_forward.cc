#include "kernels/feed_forward.h"

#include <atomic>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace smoe::kernels {

namespace {

// Rows of W that one thread takes at least: a whole number of cache lines of the output, and of the
// vectors of every instruction set.
constexpr size_t kRowGrain = 32;

size_t BlockedCols(size_t cols) { return static_cast<size_t>(RoundUp(cols, kActivationBlock)); }

bool InIntegers(const tensor::WeightView& weights, const Activations& x) {
  return x.quantised.codes != nullptr && tensor::IsQuantised(weights.format);
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
  const auto body = [&](size_t row_begin, size_t row_end) {
    MatMulRows(kernels, weights, x, row_begin, row_end, out, out_stride);
  };
  pool.ParallelFor(weights.rows, kRowGrain, std::ref(body));
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
  pool.ParallelFor(x.token_count, 1, std::ref(body));
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

// The intermediate columns [row_begin, row_end) of every token. Ranges begin at multiples of
// kActivationBlock, so a range's blocks are its own and can be quantised while they are hot.
void FeedForward::GateUp(const tensor::ExpertWeights& weights, const Activations& x,
                         size_t row_begin, size_t row_end, bool quantise,
                         std::span<uint8_t> finite) {
  const size_t cols = weights.gate.rows;
  const size_t stride = BlockedCols(cols);
  float* const gate = gate_.As<float>().data();
  float* const up = up_.As<float>().data();
  MatMulRows(*kernels_, weights.gate, x, row_begin, row_end, gate, stride);
  MatMulRows(*kernels_, weights.up, x, row_begin, row_end, up, stride);
  for (size_t token = 0; token < x.floats.token_count; ++token) {
    const size_t at = token * stride + row_begin;
    kernels_->silu_mul(gate + at, up + at, row_end - row_begin);
    if (!quantise) continue;
    int8_t* const codes = quantised_.codes(token, cols) + row_begin;
    float* const scales = quantised_.scales(token, cols) + row_begin / kActivationBlock;
    if (!kernels_->quantise_row(gate + at, row_end - row_begin, codes, scales) && !finite.empty()) {
      std::atomic_ref<uint8_t>(finite[token]).store(0, std::memory_order_relaxed);
    }
  }
}

void FeedForward::Run(const tensor::ExpertWeights& weights, const Activations& x, float* out,
                      size_t out_stride, std::span<uint8_t> finite) {
  const size_t token_count = x.floats.token_count;
  const size_t cols = weights.gate.rows;
  SMOE_CHECK(token_count <= options_.token_count_max && cols <= options_.intermediate_size_max);
  SMOE_CHECK(weights.up.rows == cols && weights.down.cols == cols);
  SMOE_CHECK(finite.empty() || finite.size() >= token_count);
  if (token_count == 0) return;
  const bool quantise = InIntegers(weights.down, x);
  SMOE_CHECK(!quantise || options_.quantise);
  const auto body = [&](size_t row_begin, size_t row_end) {
    GateUp(weights, x, row_begin, row_end, quantise, finite);
  };
  pool_->ParallelFor(cols, kActivationBlock, std::ref(body));
  Activations intermediate;
  intermediate.floats = {
      .data = gate_.As<float>().data(), .token_count = token_count, .stride = BlockedCols(cols)};
  if (quantise) intermediate.quantised = quantised_.View(token_count, cols);
  MatMul(*kernels_, *pool_, weights.down, intermediate, out, out_stride);
}

}  // namespace smoe::kernels
