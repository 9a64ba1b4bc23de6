#include "kernels/feed_forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace smoe::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightView;

std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 4001) / 2000.0f - 1.0f;
  return values;
}

// A matrix that owns its bytes: Q4 with groups of 32, or f32.
class Matrix {
 public:
  Matrix(WeightFormat format, uint32_t rows, uint32_t cols, uint64_t seed) {
    const size_t count = size_t{rows} * cols;
    std::mt19937_64 random(seed);
    view_ = {
        .format = format, .rows = rows, .cols = cols, .data = {}, .scales = {}, .group_size = 0};
    if (format == WeightFormat::kF32) {
      floats_ = RandomFloats(count, seed);
      view_.data = std::as_bytes(std::span<const float>(floats_));
      return;
    }
    codes_.resize((count + 1) / 2);
    for (uint8_t& code : codes_) code = static_cast<uint8_t>(random());
    scales_.resize((count + 31) / 32);
    for (uint16_t& scale : scales_) {
      scale = tensor::F16FromF32(0.05f + static_cast<float>(random() % 100) / 1000.0f);
    }
    view_.data = std::as_bytes(std::span<const uint8_t>(codes_));
    view_.scales = std::as_bytes(std::span<const uint16_t>(scales_));
    view_.group_size = 32;
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  const WeightView& view() const { return view_; }

 private:
  std::vector<float> floats_;
  std::vector<uint8_t> codes_;
  std::vector<uint16_t> scales_;
  WeightView view_;
};

constexpr size_t kTokens = 5;
constexpr uint32_t kHidden = 70;
constexpr uint32_t kFfn = 150;  // two blocks and a part

struct Network {
  explicit Network(WeightFormat outer, WeightFormat inner)
      : gate(outer, kFfn, kHidden, 1), up(outer, kFfn, kHidden, 2), down(inner, kHidden, kFfn, 3) {}
  tensor::ExpertWeights weights() const {
    return {.gate = gate.view(), .up = up.view(), .down = down.view()};
  }
  Matrix gate;
  Matrix up;
  Matrix down;
};

// The definition, by whole rows of one token at a time on one thread.
std::vector<float> RunPlainly(const tensor::ExpertWeights& weights, const Activations& x) {
  const KernelTable& kernels = kScalarKernels;
  std::vector<float> out(kTokens * kHidden);
  const auto matmul = [&](const WeightView& matrix, const Activations& input, float* y) {
    const MatMulRange range{.row_begin = 0, .row_end = matrix.rows, .out = y, .out_stride = 0};
    if (input.quantised.codes != nullptr && tensor::IsQuantised(matrix.format)) {
      kernels.matmul_int8(matrix, input.quantised, range);
    } else {
      kernels.matmul_f32(matrix, input.floats, range);
    }
  };
  for (size_t token = 0; token < kTokens; ++token) {
    Activations one = x;
    one.floats.token_count = one.quantised.token_count = 1;
    one.floats.data += token * x.floats.stride;
    if (x.quantised.codes != nullptr) {
      one.quantised.codes += token * x.quantised.col_stride;
      one.quantised.scales += token * (x.quantised.col_stride / kActivationBlock);
    }
    std::vector<float> gate(kFfn);
    std::vector<float> up(kFfn);
    matmul(weights.gate, one, gate.data());
    matmul(weights.up, one, up.data());
    kernels.silu_mul(gate.data(), up.data(), kFfn);
    std::vector<int8_t> codes(192);
    std::vector<float> scales(3);
    Activations inner{.floats = {.data = gate.data(), .token_count = 1, .stride = kFfn},
                      .quantised = {}};
    if (x.quantised.codes != nullptr) {
      EXPECT_TRUE(kernels.quantise_row(gate.data(), kFfn, codes.data(), scales.data()));
      inner.quantised = {.codes = codes.data(),
                         .scales = scales.data(),
                         .token_count = 1,
                         .cols = kFfn,
                         .col_stride = 192};
    }
    matmul(weights.down, inner, out.data() + token * kHidden);
  }
  return out;
}

void RunOne(FeedForward* runner, const tensor::ExpertWeights& weights, const Activations& x,
            size_t out_stride, std::vector<float>* out, std::span<uint8_t> finite) {
  const FeedForwardJob job{
      .weights = weights, .x = x, .out = out->data(), .out_stride = out_stride, .finite = finite};
  runner->Run({&job, 1});
}

TEST(FeedForward, HasTheBitsOfTheDefinitionWithEveryTableAndThreadCount) {
  const std::vector<float> x = RandomFloats(kTokens * kHidden, 9);
  const FloatRows floats{.data = x.data(), .token_count = kTokens, .stride = kHidden};
  for (const KernelTable* kernels : AllKernels()) {
    if (!kernels->runs_here()) continue;
    for (const WeightFormat outer : {WeightFormat::kF32, WeightFormat::kSmoeQ4}) {
      for (const WeightFormat inner : {WeightFormat::kF32, WeightFormat::kSmoeQ4}) {
        const Network network(outer, inner);
        for (const bool quantise : {false, true}) {
          for (const size_t thread_count : {1u, 2u, 4u}) {
            ThreadPool pool(thread_count);
            QuantisedBuffer buffer = std::move(*QuantisedBuffer::Create(kTokens, kHidden, "test"));
            std::vector<uint8_t> finite(kTokens, 1);
            Activations input{.floats = floats, .quantised = {}};
            if (quantise)
              input.quantised = buffer.Quantise(*kernels, pool, floats, kHidden, finite);
            FeedForward network_runner =
                std::move(*FeedForward::Create(*kernels, pool,
                                               {.token_count_max = kTokens,
                                                .intermediate_size_max = kFfn + 50,
                                                .quantise = quantise}));
            std::vector<float> out(kTokens * kHidden);
            RunOne(&network_runner, network.weights(), input, kHidden, &out, finite);
            const std::vector<float> expected = RunPlainly(network.weights(), input);
            EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
                << kernels->name << ", " << thread_count << " threads, quantise " << quantise;
            EXPECT_EQ(finite, std::vector<uint8_t>(kTokens, 1));
          }
        }
      }
    }
  }
}

// Networks of different sizes and formats, of no row, one and many, in one go.
TEST(FeedForward, JobsTogetherHaveTheBitsOfEachAlone) {
  constexpr size_t kCounts[] = {1, 0, 5, 2, 33, 1};
  constexpr uint32_t kSizes[] = {150, 64, 1, 65, 200, 128};
  constexpr size_t kRows = 42;
  const std::vector<float> x = RandomFloats(kRows * kHidden, 10);
  const FloatRows floats{.data = x.data(), .token_count = kRows, .stride = kHidden};
  std::vector<std::unique_ptr<Matrix>> matrices;
  const auto matrix = [&](size_t job, uint32_t rows, uint32_t cols) {
    const WeightFormat format = job == 3 ? WeightFormat::kF32 : WeightFormat::kSmoeQ4;
    matrices.push_back(std::make_unique<Matrix>(format, rows, cols, matrices.size()));
    return matrices.back()->view();
  };
  std::vector<tensor::ExpertWeights> weights;
  for (size_t job = 0; job < std::size(kCounts); ++job) {
    weights.push_back({.gate = matrix(job, kSizes[job], kHidden),
                       .up = matrix(job, kSizes[job], kHidden),
                       .down = matrix(job, kHidden, kSizes[job])});
  }
  for (const size_t thread_count : {1u, 3u}) {
    ThreadPool pool(thread_count);
    QuantisedBuffer buffer = std::move(*QuantisedBuffer::Create(kRows, kHidden, "test"));
    std::vector<uint8_t> finite(kRows, 1);
    const QuantisedRows codes =
        buffer.Quantise(kScalarKernels, pool, floats, kHidden, std::span<uint8_t>(finite));
    FeedForward runner = std::move(*FeedForward::Create(
        kScalarKernels, pool,
        {.token_count_max = kRows, .intermediate_size_max = 200, .quantise = true}));
    std::vector<float> alone(kRows * kHidden);
    std::vector<float> together(kRows * kHidden, -1.0f);
    std::vector<FeedForwardJob> jobs;
    size_t first = 0;
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      Activations input{.floats = floats, .quantised = codes};
      input.floats.data += first * kHidden;
      input.quantised.codes = buffer.codes(first, kHidden);
      input.quantised.scales = buffer.scales(first, kHidden);
      input.floats.token_count = input.quantised.token_count = kCounts[i];
      jobs.push_back({.weights = weights[i],
                      .x = input,
                      .out = alone.data() + first * kHidden,
                      .out_stride = kHidden,
                      .finite = std::span<uint8_t>(finite).subspan(first, kCounts[i])});
      runner.Run({&jobs.back(), 1});
      jobs.back().out = together.data() + first * kHidden;
      first += kCounts[i];
    }
    runner.Run(jobs);
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0);
    EXPECT_EQ(finite, std::vector<uint8_t>(kRows, 1));
    runner.Run({});
  }
}

TEST(FeedForward, MoreRowsThanItHasMemoryForIsABug) {
  GTEST_FLAG_SET(death_test_style, "fast");
  const Network network(WeightFormat::kF32, WeightFormat::kF32);
  ThreadPool pool(1);
  FeedForward runner = std::move(*FeedForward::Create(
      kScalarKernels, pool, {.token_count_max = 3, .intermediate_size_max = kFfn}));
  const std::vector<float> x(2 * kHidden);
  std::vector<float> out(2 * kHidden);
  const FeedForwardJob job{
      .weights = network.weights(),
      .x = {.floats = {.data = x.data(), .token_count = 2, .stride = kHidden}, .quantised = {}},
      .out = out.data(),
      .out_stride = kHidden,
      .finite = {}};
  const FeedForwardJob jobs[] = {job, job};
  EXPECT_DEATH(runner.Run(jobs), "token_count_max");
}

TEST(FeedForward, GivesWhatTheFormulaGives) {
  // One input, one intermediate, one output: 2 * silu(3 * 0.5) * (4 * 0.5) by hand.
  const float three = 3;
  const float four = 4;
  const float two = 2;
  const auto matrix = [](const float& value) {
    return WeightView{.format = WeightFormat::kF32,
                      .rows = 1,
                      .cols = 1,
                      .data = std::as_bytes(std::span<const float>(&value, 1)),
                      .scales = {},
                      .group_size = 0};
  };
  ThreadPool pool(1);
  FeedForward runner = std::move(*FeedForward::Create(
      kScalarKernels, pool, {.token_count_max = 1, .intermediate_size_max = 1, .quantise = false}));
  const float x = 0.5f;
  std::vector<float> out(1);
  RunOne(&runner, {.gate = matrix(three), .up = matrix(four), .down = matrix(two)},
         {.floats = {.data = &x, .token_count = 1, .stride = 1}, .quantised = {}}, 1, &out, {});
  EXPECT_NEAR(out[0], 2 * (1.5 / (1 + std::exp(-1.5))) * 2, 1e-6);
}

TEST(FeedForward, TokensBeyondF32AreMarkedAndTheOthersAreNotTouched) {
  const Network network(WeightFormat::kSmoeQ4, WeightFormat::kSmoeQ4);
  std::vector<float> x = RandomFloats(kTokens * kHidden, 9);
  ThreadPool pool(3);
  const auto run = [&](std::vector<uint8_t>* finite) {
    const FloatRows floats{.data = x.data(), .token_count = kTokens, .stride = kHidden};
    QuantisedBuffer buffer = std::move(*QuantisedBuffer::Create(kTokens, kHidden, "test"));
    finite->assign(kTokens, 0);
    const Activations input{
        .floats = floats,
        .quantised = buffer.Quantise(kScalarKernels, pool, floats, kHidden, *finite)};
    FeedForward runner = std::move(*FeedForward::Create(
        kScalarKernels, pool,
        {.token_count_max = kTokens, .intermediate_size_max = kFfn, .quantise = true}));
    std::vector<float> out(kTokens * kHidden);
    RunOne(&runner, network.weights(), input, kHidden, &out, *finite);
    return out;
  };
  std::vector<uint8_t> finite;
  const std::vector<float> expected = run(&finite);
  EXPECT_EQ(finite, (std::vector<uint8_t>{1, 1, 1, 1, 1}));
  for (size_t i = 0; i < kHidden; ++i) x[2 * kHidden + i] = 1e30f * x[2 * kHidden + i];
  const std::vector<float> out = run(&finite);
  EXPECT_EQ(finite, (std::vector<uint8_t>{1, 1, 0, 1, 1}));
  for (const size_t token : {0u, 1u, 3u, 4u}) {
    EXPECT_EQ(std::memcmp(out.data() + token * kHidden, expected.data() + token * kHidden,
                          kHidden * sizeof(float)),
              0);
  }
  x[4 * kHidden + 69] = std::numeric_limits<float>::quiet_NaN();
  run(&finite);
  EXPECT_EQ(finite[4], 0);
}

TEST(FeedForward, ImpossibleMemoryIsExhausted) {
  ThreadPool pool(1);
  for (const FeedForward::Options& options :
       {FeedForward::Options{.token_count_max = SIZE_MAX, .intermediate_size_max = 64},
        FeedForward::Options{.token_count_max = size_t{1} << 40,
        .intermediate_size_max = 1u << 20,
        .quantise = true}}) {
    const auto made = FeedForward::Create(kScalarKernels, pool, options);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code(), ErrorCode::kExhausted);
  }
}

}  // namespace
}  // namespace smoe::kernels
