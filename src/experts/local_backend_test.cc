#include "experts/local_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "experts/allocation_count_for_test.h"
#include "experts/store_for_test.h"
#include "io/fake_read_queue.h"

namespace smoe::experts {
namespace {

using tensor::WeightFormat;

// Rows with their routing, and room for the result.
struct Batch {
  uint32_t layer_index = 3;
  size_t row_count = 0;
  size_t top_k = 0;
  std::vector<float> hidden;
  std::vector<uint32_t> expert_ids;
  std::vector<float> weights;

  RoutedRows Rows(float* out) const {
    return {.layer_index = layer_index,
            .row_count = row_count,
            .top_k = top_k,
            .hidden = hidden.data(),
            .expert_ids = expert_ids.data(),
            .weights = weights.data(),
            .out = out};
  }
};

Batch MakeBatch(const TestStore& store, size_t row_count, size_t top_k, uint64_t seed) {
  Batch batch;
  batch.row_count = row_count;
  batch.top_k = top_k;
  std::mt19937_64 random(seed);
  const uint32_t expert_count = store.layers()[0].expert_count;
  std::vector<uint32_t> order(expert_count);
  for (uint32_t i = 0; i < expert_count; ++i) order[i] = i;
  for (size_t row = 0; row < row_count; ++row) {
    for (size_t i = 0; i < store.hidden_size(); ++i) {
      batch.hidden.push_back(static_cast<float>(random() % 4001) / 1000.0f - 2.0f);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (size_t rank = 0; rank < top_k; ++rank) {
      batch.expert_ids.push_back(order[rank]);
      batch.weights.push_back(static_cast<float>(random() % 1000) / 1000.0f);
    }
  }
  return batch;
}

struct MachineOptions {
  Arithmetic arithmetic = Arithmetic::kInt8;
  const kernels::KernelTable* kernels = &kernels::kScalarKernels;
  uint32_t slot_count = 4;
  size_t thread_count = 1;
  size_t row_count_max = 16;
  size_t top_k = 4;
  size_t round_row_count = 512;
  PrefetchMode prefetch = PrefetchMode::kOff;
  io::FakeReadOptions queue = {};
};

// A backend with everything under it.
struct Machine {
  Machine(TestStore& store, const MachineOptions& options)
      : pool(options.thread_count), queue(io::MakeFakeReadQueue(options.queue)) {
    cache = std::move(*ExpertCache::Create(store, *queue, {.slot_count = options.slot_count}));
    Result<std::unique_ptr<ExpertBackend>> made =
        MakeLocalBackend(store, *cache, pool, *options.kernels,
                         {.arithmetic = options.arithmetic,
                          .row_count_max = options.row_count_max,
                          .top_k = options.top_k,
                          .round_row_count = options.round_row_count,
                          .prefetch = options.prefetch});
    EXPECT_TRUE(made.has_value());
    backend = std::move(*made);
  }

  ThreadPool pool;
  std::unique_ptr<io::ReadQueue> queue;
  std::unique_ptr<ExpertCache> cache;
  std::unique_ptr<ExpertBackend> backend;
};

std::vector<float> RunBatch(ExpertBackend& backend, const TestStore& store, const Batch& batch,
                            std::vector<RowFailure>* failures) {
  std::vector<float> out(batch.row_count * store.hidden_size(), -1.0f);
  const RoutedRows rows = batch.Rows(out.data());
  EXPECT_TRUE(backend.Begin(rows).has_value());
  EXPECT_TRUE(backend.Run(rows, failures).has_value());
  return out;
}

std::vector<float> RunGood(TestStore& store, const MachineOptions& options, const Batch& batch) {
  Machine machine(store, options);
  std::vector<RowFailure> failures;
  std::vector<float> out = RunBatch(*machine.backend, store, batch, &failures);
  for (const RowFailure& failure : failures) ADD_FAILURE() << failure.error.message();
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The definition in double precision, from WeightAt alone: no kernel, no order of sums.
double Dot(const tensor::WeightView& weights, uint32_t row, const std::vector<double>& x) {
  double sum = 0;
  for (uint32_t col = 0; col < weights.cols; ++col) {
    sum += double{tensor::WeightAt(weights, row, col)} * x[col];
  }
  return sum;
}

std::vector<double> ExpertInDouble(const tensor::ExpertWeights& weights,
                                   const std::vector<double>& x) {
  std::vector<double> intermediate(weights.gate.rows);
  for (uint32_t row = 0; row < weights.gate.rows; ++row) {
    const double gate = Dot(weights.gate, row, x);
    intermediate[row] = gate / (1 + std::exp(-gate)) * Dot(weights.up, row, x);
  }
  std::vector<double> out(weights.down.rows);
  for (uint32_t row = 0; row < weights.down.rows; ++row) {
    out[row] = Dot(weights.down, row, intermediate);
  }
  return out;
}

// Largest difference from the definition, relative to the largest result.
double DifferenceFromDefinition(const TestStore& store, const Batch& batch,
                                const std::vector<float>& out) {
  const size_t hidden_size = store.hidden_size();
  double difference = 0;
  double largest = 0;
  for (size_t row = 0; row < batch.row_count; ++row) {
    const auto first = batch.hidden.begin() + static_cast<ptrdiff_t>(row * hidden_size);
    const std::vector<double> x(first, first + static_cast<ptrdiff_t>(hidden_size));
    std::vector<double> sum(hidden_size, 0.0);
    for (size_t rank = 0; rank < batch.top_k; ++rank) {
      const size_t pair = row * batch.top_k + rank;
      const std::vector<double> y =
          ExpertInDouble(store.Weights({batch.layer_index, batch.expert_ids[pair]}), x);
      for (size_t i = 0; i < hidden_size; ++i) sum[i] += double{batch.weights[pair]} * y[i];
    }
    for (size_t i = 0; i < hidden_size; ++i) {
      difference = std::max(difference, std::abs(sum[i] - double{out[row * hidden_size + i]}));
      largest = std::max(largest, std::abs(sum[i]));
    }
  }
  return difference / largest;
}

// Odd sizes: no multiple of a block, and groups that straddle rows.
TestStoreOptions StoreOptions(WeightFormat format) {
  return {.seed = 5,
          .layers = {{3, 9}, {4, 2}},
          .hidden_size = 75,
          .intermediate_size = 133,
          .format = format,
          .group_size = 32};
}

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16,
                                     WeightFormat::kSmoeQ4, WeightFormat::kSmoeQ2};

TEST(LocalBackend, ComputesTheWeightedSumOfGatedExperts) {
  for (const WeightFormat format : kFormats) {
    TestStore store(StoreOptions(format));
    const Batch batch = MakeBatch(store, 7, 4, 1);
    const std::vector<float> f32 = RunGood(store, {.arithmetic = Arithmetic::kF32}, batch);
    // Sums of about 2 * 133 products, each rounded to 2^-24: far below 1e-5 of the largest.
    EXPECT_LT(DifferenceFromDefinition(store, batch, f32), 1e-5) << WeightFormatName(format);
    const std::vector<float> int8 = RunGood(store, {.arithmetic = Arithmetic::kInt8}, batch);
    if (tensor::IsQuantised(format)) {
      // Activations in steps of absmax / 127: half a step is 0.4 % of the largest of a block.
      EXPECT_LT(DifferenceFromDefinition(store, batch, int8), 0.03) << WeightFormatName(format);
      EXPECT_FALSE(SameBits(f32, int8));
    } else {
      EXPECT_TRUE(SameBits(f32, int8)) << "dense weights are computed in f32 either way";
    }
  }
}

TEST(LocalBackend, BitsDoNotDependOnSlotsArrivalThreadsOrKernels) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kSmoeQ4}) {
    TestStore store(StoreOptions(format));
    const Batch batch = MakeBatch(store, 16, 4, 2);
    for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32}) {
      const std::vector<float> expected = RunGood(store, {.arithmetic = arithmetic}, batch);
      for (const kernels::KernelTable* table : kernels::AllKernels()) {
        if (!table->runs_here()) continue;
        uint64_t seed = 0;
        for (const uint32_t slot_count : {1u, 5u, 100u}) {
          for (const size_t thread_count : {1u, 2u, 3u}) {
            MachineOptions options{.arithmetic = arithmetic,
                                   .kernels = table,
                                   .slot_count = slot_count,
                                   .thread_count = thread_count};
            options.queue.seed = ++seed;
            EXPECT_TRUE(SameBits(RunGood(store, options, batch), expected))
                << WeightFormatName(format) << ", " << ArithmeticName(arithmetic) << ", "
                << table->name << ", " << slot_count << " slots, " << thread_count << " threads";
          }
        }
      }
    }
  }
}

TEST(LocalBackend, BitsDoNotDependOnWhatIsComputedTogether) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  const Batch batch = MakeBatch(store, 16, 4, 13);
  const std::vector<float> expected = RunGood(store, {}, batch);
  uint64_t seed = 100;
  // From a round of one row's experts at a time (never fewer rows than a Run has) to one of all.
  for (const size_t round_row_count : {0u, 16u, 23u, 64u, 1000u}) {
    for (const uint32_t slot_count : {1u, 2u, 5u, 9u}) {
      MachineOptions options{
          .slot_count = slot_count, .thread_count = 2, .round_row_count = round_row_count};
      options.queue.seed = ++seed;
      options.queue.depth = static_cast<uint32_t>(1 + seed % 4);
      Machine machine(store, options);
      std::vector<RowFailure> failures;
      // The second pass finds some in memory, the third in another order.
      for (int pass = 0; pass < 3; ++pass) {
        EXPECT_TRUE(SameBits(RunBatch(*machine.backend, store, batch, &failures), expected))
            << round_row_count << " rows a round, " << slot_count << " slots, pass " << pass;
      }
      EXPECT_TRUE(failures.empty());
    }
  }
}

TEST(LocalBackend, RoundHasRoomForTheRowsOfARunAndNoMoreThanItsPairs) {
  EXPECT_EQ(RoundRowCountMax({.row_count_max = 257, .top_k = 8}), 512u);
  EXPECT_EQ(RoundRowCountMax({.row_count_max = 1, .top_k = 8}), 8u);
  EXPECT_EQ(RoundRowCountMax({.row_count_max = 2000, .top_k = 8}), 2000u);
  EXPECT_EQ(RoundRowCountMax({.row_count_max = 5, .top_k = 0}), 0u);
}

TEST(LocalBackend, RowAloneHasTheBitsOfTheRowInABatch) {
  for (const WeightFormat format : {WeightFormat::kF16, WeightFormat::kSmoeQ2}) {
    TestStore store(StoreOptions(format));
    const Batch batch = MakeBatch(store, 12, 3, 3);
    Machine machine(store, {.slot_count = 3, .thread_count = 2});
    std::vector<RowFailure> failures;
    const std::vector<float> together = RunBatch(*machine.backend, store, batch, &failures);
    const auto part = [](const auto& values, size_t row, size_t size) {
      const auto first = values.begin() + static_cast<ptrdiff_t>(row * size);
      return std::decay_t<decltype(values)>(first, first + static_cast<ptrdiff_t>(size));
    };
    for (size_t row = 0; row < batch.row_count; ++row) {
      Batch alone;
      alone.row_count = 1;
      alone.top_k = batch.top_k;
      alone.hidden = part(batch.hidden, row, store.hidden_size());
      alone.expert_ids = part(batch.expert_ids, row, batch.top_k);
      alone.weights = part(batch.weights, row, batch.top_k);
      const std::vector<float> out = RunBatch(*machine.backend, store, alone, &failures);
      EXPECT_TRUE(SameBits(out, part(together, row, store.hidden_size()))) << "row " << row;
    }
    EXPECT_TRUE(failures.empty());
  }
}

TEST(LocalBackend, OutputsAreAddedInRouterOrder) {
  // Three experts whose outputs cancel to a rest that only one order of rounding gives.
  TestStore store(StoreOptions(WeightFormat::kF32));
  Batch batch = MakeBatch(store, 1, 3, 4);
  batch.weights = {1e8f, -1e8f, 1.0f};
  const std::vector<float> out = RunGood(store, {.arithmetic = Arithmetic::kF32}, batch);
  std::vector<std::vector<float>> parts;
  for (size_t rank = 0; rank < 3; ++rank) {
    Batch one = batch;
    one.top_k = 1;
    one.expert_ids = {batch.expert_ids[rank]};
    one.weights = {1.0f};
    parts.push_back(RunGood(store, {.arithmetic = Arithmetic::kF32}, one));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    float sum = 0;
    for (size_t rank = 0; rank < 3; ++rank)
      sum = std::fma(batch.weights[rank], parts[rank][i], sum);
    EXPECT_EQ(out[i], sum);
  }
}

TEST(LocalBackend, RowsOfALostExpertFailAndTheOthersKeepTheirBits) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  const Batch batch = MakeBatch(store, 16, 2, 6);
  const std::vector<float> expected = RunGood(store, {}, batch);
  MachineOptions options{.slot_count = 2, .thread_count = 2};
  const uint64_t lost_offset = 4 * store.slot_bytes();  // expert 4 of the first layer
  options.queue.fault = [&](const io::ReadRequest& request) {
    return request.offset == lost_offset ? EIO : 0;
  };
  Machine machine(store, options);
  for (int round = 0; round < 10; ++round) {
    std::vector<RowFailure> failures;
    const std::vector<float> out = RunBatch(*machine.backend, store, batch, &failures);
    size_t failed_count = 0;
    for (size_t row = 0; row < batch.row_count; ++row) {
      const auto ids = batch.expert_ids.begin() + static_cast<ptrdiff_t>(row * 2);
      if (std::count(ids, ids + 2, 4u) == 0) {
        EXPECT_EQ(std::memcmp(out.data() + row * 75, expected.data() + row * 75, 300), 0);
        continue;
      }
      ASSERT_LT(failed_count, failures.size());
      EXPECT_EQ(failures[failed_count].row, row);
      EXPECT_EQ(failures[failed_count].error.code(), ErrorCode::kIo);
      EXPECT_NE(failures[failed_count].error.message().find("layer 3, expert 4: reading "),
                std::string::npos);
      ++failed_count;
    }
    EXPECT_EQ(failures.size(), failed_count);
    EXPECT_GT(failed_count, 0u);
  }
}

TEST(LocalBackend, RowThatIsNotFiniteFailsAlone) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  const Batch good = MakeBatch(store, 5, 2, 7);
  const std::vector<float> expected = RunGood(store, {}, good);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Batch batch = good;
    batch.hidden[2 * 75 + 74] = bad;
    Machine machine(store, {});
    std::vector<RowFailure> failures;
    const std::vector<float> out = RunBatch(*machine.backend, store, batch, &failures);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_EQ(failures[0].row, 2u);
    EXPECT_EQ(failures[0].error.code(), ErrorCode::kCorrupt);
    EXPECT_NE(failures[0].error.message().find("layer 3: the input of the experts holds NaN"),
              std::string::npos);
    for (const size_t row : {0u, 1u, 3u, 4u}) {
      EXPECT_EQ(std::memcmp(out.data() + row * 75, expected.data() + row * 75, 300), 0);
    }
  }
}

TEST(LocalBackend, IntermediateValuesBeyondF32FailTheirRowAndNameTheExpert) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  const Batch good = MakeBatch(store, 5, 2, 8);
  const std::vector<float> expected = RunGood(store, {}, good);
  Batch batch = good;
  for (size_t i = 0; i < 75; ++i) batch.hidden[75 + i] *= 1e30f;  // its square has no f32
  Machine machine(store, {.thread_count = 2});
  std::vector<RowFailure> failures;
  const std::vector<float> out = RunBatch(*machine.backend, store, batch, &failures);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].row, 1u);
  EXPECT_EQ(failures[0].error.message().find(
                fmt::format("layer 3, expert {}: the intermediate values", batch.expert_ids[2])),
            0u)
      << failures[0].error.message();
  for (const size_t row : {0u, 2u, 3u, 4u}) {
    EXPECT_EQ(std::memcmp(out.data() + row * 75, expected.data() + row * 75, 300), 0);
  }
}

TEST(LocalBackend, InF32NotANumberReachesTheCaller) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  Batch batch = MakeBatch(store, 1, 2, 9);
  batch.hidden[0] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = RunGood(store, {.arithmetic = Arithmetic::kF32}, batch);
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(LocalBackend, ExpertNamedTwiceByARowCountsTwice) {
  TestStore store(StoreOptions(WeightFormat::kF32));
  Batch batch = MakeBatch(store, 1, 2, 10);
  batch.expert_ids = {5, 5};
  batch.weights = {0.25f, 0.5f};
  // Two pairs of one expert, and rounds of one row.
  const MachineOptions options{
      .arithmetic = Arithmetic::kF32, .row_count_max = 1, .top_k = 2, .round_row_count = 1};
  const std::vector<float> out = RunGood(store, options, batch);
  batch.top_k = 1;
  batch.weights = {1.0f};
  const std::vector<float> once = RunGood(store, options, batch);
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], std::fma(0.5f, once[i], 0.25f * once[i]));
  }
}

TEST(LocalBackend, LayersAreKeptApart) {
  TestStore store(StoreOptions(WeightFormat::kF32));
  Batch batch = MakeBatch(store, 2, 2, 11);
  batch.expert_ids = {0, 1, 1, 0};
  const MachineOptions options{.arithmetic = Arithmetic::kF32};
  batch.layer_index = 4;
  const std::vector<float> fourth = RunGood(store, options, batch);
  EXPECT_LT(DifferenceFromDefinition(store, batch, fourth), 1e-5);
  batch.layer_index = 3;
  EXPECT_FALSE(SameBits(RunGood(store, options, batch), fourth));
}

TEST(LocalBackend, NoRowsNeedNothing) {
  TestStore store(StoreOptions(WeightFormat::kF32));
  Machine machine(store, {});
  std::vector<RowFailure> failures;
  EXPECT_TRUE(machine.backend->Begin({.layer_index = 3}).has_value());
  EXPECT_TRUE(machine.backend->Run({.layer_index = 3}, &failures).has_value());
  EXPECT_EQ(machine.backend->stats().miss_count, 0u);
}

TEST(LocalBackend, StepsAllocateNothing) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  const Batch batch = MakeBatch(store, 16, 4, 12);
  Machine machine(store, {.slot_count = 3, .thread_count = 2});
  std::vector<float> out(batch.row_count * store.hidden_size());
  std::vector<RowFailure> failures;
  const uint64_t before = AllocationCount();
  for (int step = 0; step < 5; ++step) {
    const RoutedRows rows = batch.Rows(out.data());
    if (!machine.backend->Begin(rows) || !machine.backend->Run(rows, &failures)) break;
  }
  EXPECT_EQ(AllocationCount(), before);
  EXPECT_TRUE(failures.empty());
  EXPECT_GT(machine.backend->compute_ns(), 0u);
  EXPECT_GT(machine.backend->stats().read_bytes, 0u);
}

TEST(LocalBackend, ImpossibleMemoryIsExhausted) {
  TestStore store(StoreOptions(WeightFormat::kSmoeQ4));
  auto queue = io::MakeFakeReadQueue({});
  auto cache = std::move(*ExpertCache::Create(store, *queue, {.slot_count = 1}));
  ThreadPool pool(1);
  for (const LocalBackendOptions& asked :
       {LocalBackendOptions{.row_count_max = SIZE_MAX, .top_k = 1},
        LocalBackendOptions{.row_count_max = 1, .top_k = SIZE_MAX},
        LocalBackendOptions{.row_count_max = size_t{1} << 31, .top_k = size_t{1} << 31}}) {
    const auto backend = MakeLocalBackend(store, *cache, pool, kernels::kScalarKernels, asked);
    ASSERT_FALSE(backend.has_value());
    EXPECT_EQ(backend.error().code(), ErrorCode::kExhausted) << backend.error().message();
  }
}

// A batch on layer 0 that says what its rows will probably want on layer 1.
void RunForeseeing(Machine& machine, TestStore& store, Batch batch,
                   const std::vector<uint32_t>& likely, bool more_follow) {
  std::vector<RowFailure> failures;
  std::vector<float> out(batch.row_count * store.hidden_size());
  batch.layer_index = 0;
  RoutedRows rows = batch.Rows(out.data());
  rows.more_follow = more_follow;
  ASSERT_TRUE(machine.backend->Begin(rows).has_value());
  machine.backend->Foresee(1, likely, rows.row_count);
  ASSERT_TRUE(machine.backend->Run(rows, &failures).has_value());
  EXPECT_TRUE(failures.empty());
}

TEST(LocalBackend, ManyRowsForeseeWhatIsNamedOfTheNextLayer) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  Machine machine(store, {.slot_count = 16, .row_count_max = 17});
  EXPECT_TRUE(machine.backend->WantsLikely(17));
  Batch batch = MakeBatch(store, 17, 4, 3);  // wants every expert of a layer
  RunForeseeing(machine, store, batch, {5, 2, 5, 7}, false);
  EXPECT_EQ(machine.backend->stats().prefetch_count, 3u);
  batch.layer_index = 1;
  std::vector<RowFailure> failures;
  const std::vector<float> out = RunBatch(*machine.backend, store, batch, &failures);
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(machine.backend->stats().prefetch_used_count, 3u);
  EXPECT_EQ(machine.backend->stats().read_bytes, 16 * store.Locate({0, 0}).read_bytes());
  EXPECT_TRUE(SameBits(out, RunGood(store, {.slot_count = 16, .row_count_max = 17}, batch)));
  // Everything is there now, and the next Run finds that out.
  RunBatch(*machine.backend, store, batch, &failures);
  EXPECT_FALSE(machine.backend->WantsLikely(17));
}

TEST(LocalBackend, BehindTheLastLayerTheFirstIsForeseenOnlyIfMoreRowsFollow) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  for (const bool more_follow : {false, true}) {
    Machine machine(store, {.slot_count = 8, .row_count_max = 17});
    Batch batch = MakeBatch(store, 17, 4, 3);
    RunForeseeing(machine, store, batch, {}, more_follow);
    EXPECT_EQ(machine.backend->stats().prefetch_count, 0u);
    std::vector<RowFailure> failures;
    std::vector<float> out(batch.row_count * store.hidden_size());
    batch.layer_index = 1;  // takes the slots of the other layer
    RoutedRows rows = batch.Rows(out.data());
    rows.more_follow = more_follow;
    ASSERT_TRUE(machine.backend->Begin(rows).has_value());
    ASSERT_TRUE(machine.backend->Run(rows, &failures).has_value());
    EXPECT_EQ(machine.backend->stats().prefetch_count, more_follow ? 4u : 0u);
  }
}

// Said before the first layer's Run, between two passes.
TEST(LocalBackend, ManyRowsForeseeTheFirstLayerBeforeItRuns) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  Machine machine(store, {.slot_count = 16, .row_count_max = 17});
  EXPECT_FALSE(machine.backend->WantsFirst(16));
  EXPECT_TRUE(machine.backend->WantsFirst(17));
  const std::vector<uint32_t> likely = {5, 2, 5, 7};
  machine.backend->Foresee(0, likely, 20);
  EXPECT_EQ(machine.backend->stats().prefetch_count, 3u);
  Batch batch = MakeBatch(store, 17, 4, 3);  // wants every expert of a layer
  batch.layer_index = 0;
  std::vector<RowFailure> failures;
  const std::vector<float> out = RunBatch(*machine.backend, store, batch, &failures);
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(machine.backend->stats().prefetch_used_count, 3u);
  EXPECT_EQ(machine.backend->stats().read_bytes, 8 * store.Locate({0, 0}).read_bytes());
  EXPECT_TRUE(SameBits(out, RunGood(store, {.slot_count = 16, .row_count_max = 17}, batch)));
}

TEST(LocalBackend, ARowAloneForeseesNothing) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  Machine machine(store, {.slot_count = 16});
  std::vector<RowFailure> failures;
  Batch batch = MakeBatch(store, 1, 4, 3);
  batch.layer_index = 0;
  RunBatch(*machine.backend, store, batch, &failures);
  EXPECT_EQ(machine.backend->stats().prefetch_count, 0u);
}

// The guess is read when nothing that was asked for is under way; the next layer finds it.
TEST(LocalBackend, GuessesAreReadAheadAndChangeNoBit) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  Machine machine(store, {.slot_count = 16, .prefetch = PrefetchMode::kOn});
  EXPECT_TRUE(machine.backend->WantsLikely(1));
  Batch batch = MakeBatch(store, 1, 4, 3);
  batch.layer_index = 0;
  std::vector<RowFailure> failures;
  std::vector<float> out(store.hidden_size());
  RoutedRows rows = batch.Rows(out.data());
  const std::vector<uint32_t> likely = {batch.expert_ids[0], batch.expert_ids[1],
                                        batch.expert_ids[0]};
  ASSERT_TRUE(machine.backend->Begin(rows).has_value());
  machine.backend->Foresee(1, likely, 1);
  ASSERT_TRUE(machine.backend->Run(rows, &failures).has_value());
  EXPECT_EQ(machine.backend->stats().prefetch_count, 2u);
  batch.layer_index = 1;
  const std::vector<float> next = RunBatch(*machine.backend, store, batch, &failures);
  EXPECT_EQ(machine.backend->stats().prefetch_used_count, 2u);
  EXPECT_TRUE(SameBits(next, RunGood(store, {.slot_count = 16}, batch)));
}

// The queue has room for two reads, so that of four guesses two wait.
TEST(LocalBackend, AnEmptyListTakesBackGuessesThatWait) {
  TestStore store({.layers = {{0, 8}, {1, 8}}});
  const std::vector<uint32_t> likely = {5, 2, 7, 1};
  for (const size_t row_count : {size_t{1}, size_t{17}}) {
    for (const bool takes_back : {false, true}) {
      Machine machine(store, {.slot_count = 16,
                              .row_count_max = 17,
                              .prefetch = PrefetchMode::kOn,
                              .queue = {.depth = 2}});
      machine.backend->Foresee(0, likely, row_count);
      EXPECT_EQ(machine.backend->stats().prefetch_count, 2u);
      if (takes_back) machine.backend->Foresee(0, {}, row_count);
      for (int i = 0; i < 100; ++i) machine.backend->Poll();
      EXPECT_EQ(machine.backend->stats().prefetch_count, takes_back ? 2u : 4u) << row_count;
    }
  }
}

}  // namespace
}  // namespace smoe::experts
