// One promise: a sequence's logits do not depend on how it was run, to the bit.
#include <cstring>

#include "base/log.h"
#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

std::vector<uint32_t> Prompt(size_t length, uint32_t vocab, uint32_t seed) {
  std::vector<uint32_t> ids(length);
  uint32_t state = seed * 2654435761u + 1;
  for (uint32_t& id : ids) {
    state = state * 1664525u + 1013904223u;
    id = (state >> 8) % vocab;
  }
  return ids;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// All prompts at once, each in its own chunks, until all are through.
std::vector<std::vector<float>> RunBatch(TestModel& test,
                                         const std::vector<std::vector<uint32_t>>& prompts,
                                         const std::vector<size_t>& chunks) {
  std::vector<std::vector<float>> logits(prompts.size());
  std::vector<KvSequence> caches;
  for (size_t i = 0; i < prompts.size(); ++i) caches.push_back(test.kv->NewSequence());
  for (;;) {
    std::vector<SequenceRows> step;
    std::vector<size_t> owners;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const size_t first = caches[i].token_count();
      const size_t count = std::min(chunks[i], prompts[i].size() - first);
      if (count == 0) continue;
      step.push_back(
          {&caches[i], std::span(prompts[i]).subspan(first, count), SequenceRows::Logits::kAll});
      owners.push_back(i);
    }
    if (step.empty()) return logits;
    const auto result = test.model->Step(step, nullptr);
    EXPECT_TRUE(result.has_value());
    if (!result.has_value()) return logits;
    EXPECT_TRUE(result->failures.empty());
    size_t at = 0;
    for (size_t i = 0; i < step.size(); ++i) {
      const size_t count = step[i].tokens.size() * test.model->config().vocab_size;
      const auto part = result->logits.subspan(at, count);
      logits[owners[i]].insert(logits[owners[i]].end(), part.begin(), part.end());
      at += count;
    }
  }
}

// What the numbers are made of.
struct Numbers {
  experts::Arithmetic arithmetic = experts::Arithmetic::kF32;
  checkpoint::TrunkFormat trunk = checkpoint::TrunkFormat::kSource;
};

Result<TestModel> LoadWith(const Numbers& numbers, const std::string& folder, size_t threads,
                           const kernels::KernelTable& table) {
  return LoadTestModel(OpenFolder(folder), threads, table,
                       {.row_count_max = 512,
                        .logit_row_max = 512,
                        .arithmetic = numbers.arithmetic,
                        .trunk = {.formats = checkpoint::TrunkFormats::All(numbers.trunk)}});
}

void ExpectOneResult(const std::string& folder, const Numbers& numbers) {
  auto scalar = LoadWith(numbers, folder, 1, kernels::kScalarKernels);
  ASSERT_TRUE(scalar.has_value()) << scalar.error().message();
  const uint32_t vocab = scalar->model->config().vocab_size;
  std::vector<std::vector<uint32_t>> prompts;
  std::vector<std::vector<float>> alone;
  for (const uint32_t length : {110u, 1u, 33u, 64u, 40u}) {
    prompts.push_back(Prompt(length, vocab, length));
    alone.push_back(RunPrompt(*scalar, prompts.back()));
  }
  for (const kernels::KernelTable* table : kernels::AllKernels()) {
    if (!table->runs_here()) {
      LogWarning("skipped: kernels {} do not run on this machine", table->name);
      continue;
    }
    for (const size_t threads : {size_t{1}, size_t{2}}) {
      auto test = LoadWith(numbers, folder, threads, *table);
      ASSERT_TRUE(test.has_value()) << test.error().message();
      for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}, SIZE_MAX}) {
        EXPECT_TRUE(SameBits(RunPrompt(*test, prompts[0], chunk), alone[0]))
            << table->name << " threads " << threads << " chunk " << chunk;
      }
      const auto together = RunBatch(*test, prompts, {7, 1, 1, 64, 16});
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_TRUE(SameBits(together[i], alone[i]))
            << table->name << " threads " << threads << " sequence " << i;
      }
    }
  }
}

class Identity : public ::testing::TestWithParam<const char*> {
 protected:
  std::string Folder() const {
    const std::string name = GetParam();
    return name == "deepseek_v1" ? DeepseekFolder() : SharedPath("checkpoints/" + name);
  }
};

TEST_P(Identity, LogitsDoNotDependOnChunkBatchThreadsOrInstructionSet) {
  if (!std::filesystem::exists(Folder())) GTEST_SKIP() << "no reference data: " << Folder();
  ExpectOneResult(Folder(), {});
}

// The program's default.
TEST_P(Identity, NorDoTheyWithATrunkInInt8AndActivationsInInt8) {
  if (!std::filesystem::exists(Folder())) GTEST_SKIP() << "no reference data: " << Folder();
  ExpectOneResult(Folder(), {experts::Arithmetic::kInt8, checkpoint::TrunkFormat::kInt8});
}

TEST_P(Identity, NorDoTheyWithATrunkInQ4AndActivationsInInt8) {
  if (!std::filesystem::exists(Folder())) GTEST_SKIP() << "no reference data: " << Folder();
  ExpectOneResult(Folder(), {experts::Arithmetic::kInt8, checkpoint::TrunkFormat::kQ4});
}

TEST_P(Identity, NorDoTheyWithATrunkInInt8AndActivationsInF32) {
  if (!std::filesystem::exists(Folder())) GTEST_SKIP() << "no reference data: " << Folder();
  ExpectOneResult(Folder(), {experts::Arithmetic::kF32, checkpoint::TrunkFormat::kInt8});
}

TEST_P(Identity, LastRowAloneEqualsTheLastOfAllRows) {
  if (!std::filesystem::exists(Folder())) GTEST_SKIP() << "no reference data: " << Folder();
  auto test = LoadTestModel(OpenFolder(Folder()));
  ASSERT_TRUE(test.has_value()) << test.error().message();
  const uint32_t vocab = test->model->config().vocab_size;
  const std::vector<uint32_t> prompt = Prompt(40, vocab, 3);
  const std::vector<float> all = RunPrompt(*test, prompt);
  KvSequence kv = test->kv->NewSequence();
  const SequenceRows first = {&kv, std::span(prompt).first(30), SequenceRows::Logits::kNone};
  const auto none = test->model->Step({&first, 1}, nullptr);
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->logits.empty());
  const SequenceRows rest = {&kv, std::span(prompt).subspan(30), SequenceRows::Logits::kLast};
  const auto last = test->model->Step({&rest, 1}, nullptr);
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(SameBits(last->logits, std::span(all).last(vocab)));
}

TEST_P(Identity, ATruncatedCacheGoesOnAsIfTheRestHadNeverBeen) {
  if (!std::filesystem::exists(Folder())) GTEST_SKIP() << "no reference data: " << Folder();
  auto test = LoadTestModel(OpenFolder(Folder()));
  ASSERT_TRUE(test.has_value()) << test.error().message();
  const uint32_t vocab = test->model->config().vocab_size;
  std::vector<uint32_t> prompt = Prompt(70, vocab, 5);
  KvSequence kv = test->kv->NewSequence();
  const SequenceRows first = {&kv, prompt, SequenceRows::Logits::kNone};
  ASSERT_TRUE(test->model->Step({&first, 1}, nullptr).has_value());
  kv.Truncate(35);
  prompt[50] = (prompt[50] + 1) % vocab;
  const SequenceRows again = {&kv, std::span(prompt).subspan(35), SequenceRows::Logits::kLast};
  const auto result = test->model->Step({&again, 1}, nullptr);
  ASSERT_TRUE(result.has_value());
  const std::vector<float> warm(result->logits.begin(), result->logits.end());
  const std::vector<float> cold = RunPrompt(*test, prompt);
  EXPECT_TRUE(SameBits(warm, std::span(cold).last(vocab)));
}

// More keys than two parts of attention: decode and short chunks are cut into parts over all
// threads, long chunks are not, and a model without room for parts never is.
TEST(LongContext, LogitsDoNotDependOnHowAttentionIsCut) {
  const std::string folder = SharedPath("checkpoints/qwen3_moe");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no reference data: " << folder;
  for (const kernels::KvKind kind :
       {kernels::KvKind::kF32, kernels::KvKind::kF16, kernels::KvKind::kInt8}) {
    const auto load = [&](size_t threads, const kernels::KernelTable& table, size_t part_max) {
      store::ModelFiles files = OpenFolder(folder);
      if (kind == kernels::KvKind::kF16) {  // and with a window in every second layer
        files.config.sliding_window = 300;
        for (uint32_t layer = 0; layer < files.config.num_hidden_layers; ++layer) {
          files.config.layer_is_sliding.push_back(layer % 2 == 1);
        }
      }
      TestModel made = std::move(*LoadTestModel(std::move(files), threads, table));
      auto model =
          Model::Load(*made.files, *made.pool, table, *made.backend,
                      {.row_count_max = 512, .logit_row_max = 512, .attention_part_max = part_max});
      EXPECT_TRUE(model.has_value());
      made.model = std::move(*model);
      KvShape shape = made.model->kv_shape();
      shape.kind = kind;
      auto kv = KvCache::Create(shape, 2048);
      EXPECT_TRUE(kv.has_value());
      made.kv = std::move(*kv);
      return made;
    };
    TestModel scalar = load(1, kernels::kScalarKernels, 0);
    const std::vector<uint32_t> prompt =
        Prompt(2 * kernels::kAttentionPart + 40, scalar.model->config().vocab_size, 17);
    const std::vector<float> expected = RunPrompt(scalar, prompt, 512);
    const kernels::KernelTable& best = **kernels::ChooseKernels(nullptr);
    TestModel narrow = load(1, best, 0);
    EXPECT_TRUE(SameBits(RunPrompt(narrow, prompt, 300), expected));
    TestModel wide = load(3, best, 256);
    for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}, size_t{512}}) {
      EXPECT_TRUE(SameBits(RunPrompt(wide, prompt, chunk), expected)) << "chunk " << chunk;
    }
    const std::vector<uint32_t> other = Prompt(90, scalar.model->config().vocab_size, 18);
    const auto together = RunBatch(wide, {prompt, other, prompt}, {100, 1, 33});
    EXPECT_TRUE(SameBits(together[0], expected));
    EXPECT_TRUE(SameBits(together[2], expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Identity,
                         ::testing::Values("qwen3_moe", "qwen3_moe_odd", "qwen2_moe", "olmoe",
                                           "mixtral", "deepseek_v1"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace smoe::model
