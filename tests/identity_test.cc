// The promise of docs/decisions and of kernels/kernels.h, tested on the bundled model and on a
// record store: a sequence's logits have the same bits whatever the cache size, the read back end,
// the order of arrival, the number of threads, the chunk, and the company in the batch.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/fake_read_queue.h"
#include "model/streamed_model_for_test.h"

namespace smoe {
namespace {

constexpr size_t kPromptTokens = 130;
constexpr size_t kBatchMax = 5;

enum class Queue { kUring, kThreads, kFake };
enum class Slots { kLeast, kHalf, kAll };  // top_k + 1, ...

struct RunSetup {
  Slots slots = Slots::kAll;
  Queue queue = Queue::kThreads;
  uint64_t seed = 1;
  size_t thread_count = 1;
  size_t chunk = kPromptTokens;
  experts::Arithmetic arithmetic = experts::Arithmetic::kInt8;
  std::string Text() const {
    return fmt::format("slots {}, queue {}, seed {}, {} threads, chunk {}", static_cast<int>(slots),
                       static_cast<int>(queue), seed, thread_count, chunk);
  }
};

Result<std::unique_ptr<io::ReadQueue>> MakeQueue(Queue queue, uint64_t seed) {
  if (queue == Queue::kUring) return io::ReadQueue::OpenUring({});
  if (queue == Queue::kThreads) return io::ReadQueue::OpenThreaded({});
  return io::MakeFakeReadQueue({.seed = seed});
}

// A prompt that is text to nobody but visits many experts.
std::vector<uint32_t> Prompt(size_t number, size_t count, uint32_t vocab_size) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint32_t>((i * i * 31 + i * 7 + number * 977) % vocab_size);
  }
  return tokens;
}

// Logits of prompts[0] at all positions, with the other prompts in the same steps.
Result<std::vector<float>> Logits(model::StreamedModel& streamed,
                                  const std::vector<std::vector<uint32_t>>& prompts, size_t chunk) {
  std::vector<model::KvSequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(streamed.kv->NewSequence());
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
    SMOE_TRY_ASSIGN(const model::StepResult result, streamed.model->Step(rows, nullptr));
    if (!result.failures.empty()) return Unexpected(result.failures[0].error);
    EXPECT_EQ(own_index + 1, rows.size());
    logits.insert(logits.end(), result.logits.begin(), result.logits.end());
  }
  return logits;
}

struct Source {
  const char* name;
  std::string path;
  store::ModelFilesOptions options = {};
};

std::string Nvfp4Path(const std::string& name) {
  return std::string(SMOE_SHARED_DIR) + "/reference/nvfp4/" + name;
}

class Identity : public testing::TestWithParam<Source> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GetParam().path)) GTEST_SKIP() << "not there: " << GetParam().path;
    const auto files = store::OpenModelFiles(GetParam().path, GetParam().options);
    ASSERT_TRUE(files) << files.error().message();
    const uint32_t expert_count = files->experts->expert_count();
    slot_counts_ = {files->config.num_experts_per_tok + 1, expert_count / 2, expert_count};
    vocab_size_ = files->config.vocab_size;
  }

  std::vector<float> Run(const RunSetup& run, size_t batch = 1) {
    model::StreamSetup setup;
    setup.arithmetic = run.arithmetic;
    setup.slot_count = slot_counts_[static_cast<size_t>(run.slots)];
    setup.thread_count = run.thread_count;
    setup.row_count_max = run.chunk * kBatchMax;
    setup.kv_tokens = kBatchMax * 2 * kPromptTokens;
    setup.make_queue = [&] { return MakeQueue(run.queue, run.seed); };
    auto streamed = model::OpenStreamed(GetParam().path, GetParam().options, setup);
    if (!streamed) {
      ADD_FAILURE() << run.Text() << ": " << streamed.error().message();
      return {};
    }
    std::vector<std::vector<uint32_t>> prompts = {Prompt(0, kPromptTokens, vocab_size_)};
    for (size_t i = 1; i < batch; ++i) prompts.push_back(Prompt(i, 20 + 29 * i, vocab_size_));
    auto logits = Logits(**streamed, prompts, run.chunk);
    if (!logits) {
      ADD_FAILURE() << run.Text() << ": " << logits.error().message();
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

 private:
  std::vector<uint32_t> slot_counts_;  // by Slots
  uint32_t vocab_size_ = 0;
};

TEST_P(Identity, CacheQueueArrivalThreadsAndChunkChangeNoBit) {
  for (const auto arithmetic : {experts::Arithmetic::kInt8, experts::Arithmetic::kF32}) {
    RunSetup base;
    base.arithmetic = arithmetic;
    const std::vector<float> expected = Run(base);
    for (const Slots slots : {Slots::kLeast, Slots::kHalf, Slots::kAll}) {
      for (const Queue queue : {Queue::kUring, Queue::kThreads, Queue::kFake}) {
        RunSetup setup = base;
        setup.slots = slots;
        setup.queue = queue;
        setup.seed = 5 + static_cast<uint64_t>(slots);
        setup.thread_count = slots == Slots::kHalf ? 2 : 1;
        ExpectSameBits(expected, Run(setup), setup.Text());
      }
    }
    for (const size_t chunk : {1u, 7u, 64u}) {
      for (const size_t threads : {1u, 2u}) {
        RunSetup setup = base;
        setup.slots = Slots::kLeast;
        setup.chunk = chunk;
        setup.thread_count = threads;
        ExpectSameBits(expected, Run(setup), setup.Text());
      }
    }
  }
}

TEST_P(Identity, CompanyInTheBatchChangesNoBit) {
  for (const auto arithmetic : {experts::Arithmetic::kInt8, experts::Arithmetic::kF32}) {
    for (const size_t chunk : {1u, 7u, 64u}) {
      // Chunks of 1 in f32 are in the test above; here they would take as long as all the others.
      if (chunk == 1 && arithmetic == experts::Arithmetic::kF32) continue;
      RunSetup setup;
      setup.arithmetic = arithmetic;
      setup.slots = Slots::kLeast;
      setup.chunk = chunk;
      setup.queue = Queue::kFake;
      const std::vector<float> alone = Run(setup);
      setup.thread_count = 2;
      setup.seed = 7;
      ExpectSameBits(alone, Run(setup, kBatchMax), "in a batch of 5, " + setup.Text());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Identity,
    testing::Values(Source{"Vault", std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe"},
                    Source{"Folder", std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe"},
                    Source{"RecordStore",
                           Nvfp4Path("a64x128-store"),
                           {.trunk = Nvfp4Path("a64x128-modelopt")}}),
    [](const auto& source) { return std::string(source.param.name); });

}  // namespace
}  // namespace smoe
