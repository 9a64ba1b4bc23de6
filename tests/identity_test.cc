// The promise of docs/decisions and of kernels/kernels.h, tested on the bundled model: a sequence's
// logits have the same bits whatever the cache size, the read back end, the order of arrival, the
// number of threads, the chunk, and the company in the batch.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "experts/local_backend.h"
#include "io/fake_read_queue.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "store/model_files.h"

namespace smoe {
namespace {

constexpr size_t kPromptTokens = 130;
constexpr size_t kBatchMax = 5;

enum class Queue { kUring, kThreads, kFake };

struct RunSetup {
  uint32_t slot_count = 64;
  Queue queue = Queue::kThreads;
  uint64_t seed = 1;
  size_t thread_count = 1;
  size_t chunk = kPromptTokens;
  experts::Arithmetic arithmetic = experts::Arithmetic::kInt8;
  std::string Text() const {
    return fmt::format("{} slots, queue {}, seed {}, {} threads, chunk {}", slot_count,
                       static_cast<int>(queue), seed, thread_count, chunk);
  }
};

Result<std::unique_ptr<io::ReadQueue>> MakeQueue(const RunSetup& setup) {
  switch (setup.queue) {
    case Queue::kUring:
      return io::ReadQueue::OpenUring({});
    case Queue::kThreads:
      return io::ReadQueue::OpenThreaded({});
    case Queue::kFake:
      break;
  }
  io::FakeReadOptions options;
  options.seed = setup.seed;
  return io::MakeFakeReadQueue(options);
}

// A model with its own cache and queue, in the order in which they borrow from each other.
struct Rig {
  store::ModelFiles files;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<io::ReadQueue> queue;
  std::unique_ptr<experts::ExpertCache> cache;
  std::unique_ptr<experts::ExpertBackend> backend;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::KvCache> kv;
};

Result<std::unique_ptr<Rig>> MakeRig(const std::string& path, const RunSetup& setup) {
  auto rig = std::make_unique<Rig>();
  SMOE_TRY_ASSIGN(rig->files, store::OpenModelFiles(path, {}));
  SMOE_TRY_ASSIGN(const kernels::KernelTable* kernels,
                  kernels::ChooseKernels(std::getenv("SMOE_ISA")));
  rig->pool = std::make_unique<ThreadPool>(setup.thread_count);
  SMOE_TRY_ASSIGN(rig->queue, MakeQueue(setup));
  SMOE_TRY_ASSIGN(rig->cache, experts::ExpertCache::Create(*rig->files.experts, *rig->queue,
                                                           {.slot_count = setup.slot_count}));
  const size_t rows = setup.chunk * kBatchMax;
  SMOE_TRY_ASSIGN(rig->backend,
                  experts::MakeLocalBackend(*rig->files.experts, *rig->cache, *rig->pool, *kernels,
                                            {.arithmetic = setup.arithmetic,
                                             .row_count_max = rows,
                                             .top_k = rig->files.config.num_experts_per_tok}));
  SMOE_TRY_ASSIGN(rig->model, model::Model::Load(rig->files, *rig->pool, *kernels, *rig->backend,
                                                 {.row_count_max = rows, .logit_row_max = rows}));
  SMOE_TRY_ASSIGN(rig->kv,
                  model::KvCache::Create(rig->model->kv_shape(), kBatchMax * 2 * kPromptTokens));
  return rig;
}

// A prompt that is text to nobody but visits many experts.
std::vector<uint32_t> Prompt(size_t number, size_t count) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint32_t>((i * i * 31 + i * 7 + number * 977) % 2041);
  }
  return tokens;
}

// Logits of prompts[0] at all positions, with the other prompts in the same steps.
Result<std::vector<float>> Logits(Rig& rig, const std::vector<std::vector<uint32_t>>& prompts,
                                  size_t chunk) {
  std::vector<model::KvSequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(rig.kv->NewSequence());
  std::vector<float> logits;
  const size_t own_count = prompts[0].size();
  for (size_t first = 0; first < own_count; first += chunk) {
    std::vector<model::SequenceRows> rows;
    size_t own_index = 0;
    for (size_t i = prompts.size(); i-- > 0;) {  // ours comes last in the batch
      if (first >= prompts[i].size()) continue;
      const size_t count = std::min(chunk, prompts[i].size() - first);
      own_index = rows.size();
      rows.push_back(
          {&sequences[i], std::span(prompts[i]).subspan(first, count),
           i == 0 ? model::SequenceRows::Logits::kAll : model::SequenceRows::Logits::kNone});
    }
    SMOE_TRY_ASSIGN(const model::StepResult result, rig.model->Step(rows, nullptr));
    if (!result.failures.empty()) return Unexpected(result.failures[0].error);
    EXPECT_EQ(own_index + 1, rows.size());
    logits.insert(logits.end(), result.logits.begin(), result.logits.end());
  }
  return logits;
}

std::string VaultPath() { return std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe"; }
std::string FolderPath() { return std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe"; }

class Identity : public testing::TestWithParam<std::string> {
 protected:
  std::vector<float> Run(const RunSetup& setup, size_t batch = 1) {
    auto rig = MakeRig(GetParam(), setup);
    if (!rig) {
      ADD_FAILURE() << setup.Text() << ": " << rig.error().message();
      return {};
    }
    std::vector<std::vector<uint32_t>> prompts = {Prompt(0, kPromptTokens)};
    for (size_t i = 1; i < batch; ++i) prompts.push_back(Prompt(i, 20 + 29 * i));
    auto logits = Logits(**rig, prompts, setup.chunk);
    if (!logits) {
      ADD_FAILURE() << setup.Text() << ": " << logits.error().message();
      return {};
    }
    return *logits;
  }
  void ExpectSameBits(const std::vector<float>& expected, const std::vector<float>& found,
                      const std::string& what) {
    ASSERT_EQ(expected.size(), found.size()) << what;
    ASSERT_FALSE(expected.empty()) << what;
    EXPECT_EQ(std::memcmp(expected.data(), found.data(), expected.size() * sizeof(float)), 0)
        << what;
  }
};

TEST_P(Identity, CacheQueueArrivalThreadsAndChunkChangeNoBit) {
  for (const auto arithmetic : {experts::Arithmetic::kInt8, experts::Arithmetic::kF32}) {
    RunSetup base;
    base.arithmetic = arithmetic;
    const std::vector<float> expected = Run(base);
    for (const uint32_t slots : {5u, 32u, 64u}) {
      for (const Queue queue : {Queue::kUring, Queue::kThreads, Queue::kFake}) {
        RunSetup setup = base;
        setup.slot_count = slots;
        setup.queue = queue;
        setup.seed = slots;
        setup.thread_count = slots == 32 ? 2 : 1;
        ExpectSameBits(expected, Run(setup), setup.Text());
      }
    }
    for (const size_t chunk : {1u, 7u, 64u}) {
      for (const size_t threads : {1u, 2u}) {
        RunSetup setup = base;
        setup.slot_count = 5;
        setup.chunk = chunk;
        setup.thread_count = threads;
        ExpectSameBits(expected, Run(setup), setup.Text());
      }
    }
  }
}

TEST_P(Identity, CompanyInTheBatchChangesNoBit) {
  for (const size_t chunk : {1u, 7u, 64u}) {
    RunSetup setup;
    setup.slot_count = 5;
    setup.chunk = chunk;
    setup.queue = Queue::kFake;
    const std::vector<float> alone = Run(setup);
    setup.thread_count = 2;
    setup.seed = 7;
    ExpectSameBits(alone, Run(setup, kBatchMax), "in a batch of 5, " + setup.Text());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Identity, testing::Values(VaultPath(), FolderPath()),
                         [](const auto& model) {
                           return std::string(model.index == 0 ? "Vault" : "Folder");
                         });

}  // namespace
}  // namespace smoe
