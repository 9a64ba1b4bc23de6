#include "model/expert_guess.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

constexpr uint32_t kLayers = 4;

struct Count {
  int named = 0;
  int right = 0;
};

// Computes as PlainBackend does, and compares what was said of a layer with what it wants.
class ListeningBackend final : public PlainBackend {
 public:
  using PlainBackend::PlainBackend;

  bool WantsLikely(size_t) const override { return true; }
  void Foresee(uint32_t layer_index, std::span<const uint32_t> likely_ids, size_t) override {
    (is_begun ? early_ids : late_ids)[layer_index].assign(likely_ids.begin(), likely_ids.end());
  }
  Status Begin(const experts::RoutedRows& rows) override {
    is_begun = true;
    const std::span wanted(rows.expert_ids, rows.row_count * rows.top_k);
    Compare(late_ids[rows.layer_index], wanted, &late[rows.layer_index]);
    Compare(early_ids[rows.layer_index], wanted, &early[rows.layer_index]);
    return Ok();
  }
  Status Run(const experts::RoutedRows& rows, std::vector<experts::RowFailure>* failures) override {
    is_begun = false;
    return PlainBackend::Run(rows, failures);
  }

  bool is_begun = false;
  std::array<std::vector<uint32_t>, kLayers> early_ids, late_ids;
  std::array<Count, kLayers> early, late;

 private:
  static void Compare(const std::vector<uint32_t>& named, std::span<const uint32_t> wanted,
                      Count* count) {
    for (const uint32_t id : named) {
      ++count->named;
      count->right += std::ranges::find(wanted, id) != wanted.end() ? 1 : 0;
    }
  }
};

void ExpectCount(const Count& count, int named, int right) {
  EXPECT_NEAR(count.named, named, 2);
  EXPECT_NEAR(count.right, right, 2);
}

// The expected counts are numpy's, from the residual streams (which the goldens check) and the
// weights in the file: norm and router on hidden + 0.9 x what the layer's attention added for the
// token before. Without the second term: late 965, 616, 762; early 409, 518, 658.
TEST(ExpertGuess, CarriesWhatAttentionAddedForTheTokenBefore) {
  const std::string folder = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  const auto golden = checkpoint::TensorFiles::Open(folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value()) << golden.error().message();
  const std::vector<uint32_t> ids = ReadIds(*golden, "tools.input_ids");
  const store::ModelFiles files = OpenFolder(folder);
  ListeningBackend backend(files.trunk, files.config.hidden_size);
  ThreadPool pool(2);
  const auto model = Model::Load(files, pool, kernels::kScalarKernels, backend,
                                 {.row_count_max = 1, .logit_row_max = 1});
  ASSERT_TRUE(model.has_value()) << model.error().message();
  const auto kv = KvCache::Create((*model)->kv_shape(), 512);
  ASSERT_TRUE(kv.has_value());
  KvSequence sequence = (*kv)->NewSequence();
  for (const uint32_t id : ids) {
    const SequenceRows rows = {&sequence, {&id, 1}, SequenceRows::Logits::kNone};
    ASSERT_TRUE((*model)->Step({&rows, 1}, nullptr).has_value());
  }
  ExpectCount(backend.late[1], 1112, 979);
  ExpectCount(backend.late[2], 1112, 760);
  ExpectCount(backend.late[3], 1112, 888);
  ExpectCount(backend.early[1], 759, 276);
  ExpectCount(backend.early[2], 916, 658);
  ExpectCount(backend.early[3], 952, 724);
}

// deepseek_v1 has a dense layer, then two with 6 experts each. Here `top_k` of them are chosen.
std::unique_ptr<ListeningBackend> ListenToDeepseek(uint32_t top_k) {
  EditableFolder folder(DeepseekFolder());
  folder.config.Set("num_experts_per_tok", top_k);
  const auto written = folder.Write();
  const store::ModelFiles files = OpenFolder(written->path());
  auto backend = std::make_unique<ListeningBackend>(files.trunk, files.config.hidden_size);
  ThreadPool pool(1);
  const auto model = Model::Load(files, pool, kernels::kScalarKernels, *backend,
                                 {.row_count_max = 1, .logit_row_max = 1});
  EXPECT_TRUE(model.has_value()) << model.error().message();
  const auto kv = KvCache::Create((*model)->kv_shape(), 16);
  EXPECT_TRUE(kv.has_value());
  KvSequence sequence = (*kv)->NewSequence();
  for (const uint32_t id : {1u, 7u, 5u}) {
    const SequenceRows rows = {&sequence, {&id, 1}, SequenceRows::Logits::kNone};
    EXPECT_TRUE((*model)->Step({&rows, 1}, nullptr).has_value());
  }
  return backend;
}

TEST(ExpertGuess, NamesAllExpertsWhereAllAreChosen) {
  const auto backend = ListenToDeepseek(6);
  const auto all = testing::UnorderedElementsAre(0u, 1u, 2u, 3u, 4u, 5u);
  EXPECT_THAT(backend->late_ids[1], all);
  EXPECT_THAT(backend->late_ids[2], all);
  EXPECT_THAT(backend->early_ids[2], all);
}

TEST(ExpertGuess, NamesNoMoreThanAreChosenWhereAllButOneAre) {
  const auto backend = ListenToDeepseek(5);
  EXPECT_EQ(backend->late_ids[1].size(), 5u);
  EXPECT_EQ(backend->late_ids[2].size(), 5u);
  EXPECT_LE(backend->early_ids[2].size(), 5u);
}

TEST(ExpertGuess, ADenseLayerForeseesTheSparseOneBehindItAndIsForeseenByNone) {
  const auto backend = ListenToDeepseek(2);
  EXPECT_EQ(backend->late_ids[0].size(), 0u);
  EXPECT_EQ(backend->late_ids[1].size(), 2u);
  EXPECT_EQ(backend->early_ids[1].size(), 0u);
  EXPECT_EQ(backend->late[1].named, 3 * 2);
}

// Layers 1 and 3 have experts, 0 and 2 are dense. Without what attention, experts and the dense
// network of 2 add, layer 3 routes the very rows that were asked about.
TEST(ExpertGuess, ManyRowsForeseeTheSparseLayerBehindADenseOne) {
  const std::string path = SharedPath("checkpoints/qwen3_moe_step2");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference data at " << path;
  EditableFolder folder(path);
  std::vector<std::string> silent = {"model.layers.2.mlp.down_proj.weight"};
  for (const char* layer : {"2", "3"})
    silent.push_back(fmt::format("model.layers.{}.self_attn.o_proj.weight", layer));
  for (int expert = 0; expert < 8; ++expert) {
    silent.push_back(fmt::format("model.layers.1.mlp.experts.{}.down_proj.weight", expert));
  }
  for (const std::string& name : silent) folder.Fill(name, 0);
  const auto written = folder.Write();
  const store::ModelFiles files = OpenFolder(written->path());
  ListeningBackend backend(files.trunk, files.config.hidden_size);
  std::vector<uint32_t> wanted;
  backend.after_run = [&](const experts::RoutedRows& rows, auto*) {
    if (rows.layer_index == 3)
      wanted.assign(rows.expert_ids, rows.expert_ids + rows.row_count * rows.top_k);
  };
  ThreadPool pool(2);
  const auto model = Model::Load(files, pool, kernels::kScalarKernels, backend,
                                 {.row_count_max = 40, .logit_row_max = 1});
  ASSERT_TRUE(model.has_value()) << model.error().message();
  const auto kv = KvCache::Create((*model)->kv_shape(), 40);
  ASSERT_TRUE(kv.has_value());
  KvSequence sequence = (*kv)->NewSequence();
  std::vector<uint32_t> ids(40);
  for (uint32_t i = 0; i < 40; ++i) ids[i] = i * 7 % 320;
  const SequenceRows rows = {&sequence, ids, SequenceRows::Logits::kNone};
  ASSERT_TRUE((*model)->Step({&rows, 1}, nullptr).has_value());
  EXPECT_EQ(wanted.size(), 40u * 2);
  EXPECT_THAT(backend.early_ids[3], testing::UnorderedElementsAreArray(wanted));
  EXPECT_TRUE(backend.early_ids[2].empty());
}

// What KeepAttention looks at; the rest is there because a step has it.
TEST(KeepAttention, IsTheMeanOfTheLastRowsOfSequencesThatHaveNotFailed) {
  checkpoint::ModelConfig config;
  config.hidden_size = 2;
  auto scratch =
      Scratch::Create({.row_count_max = 5, .logit_row_max = 1, .layer_count = 2, .hidden_size = 2});
  ASSERT_TRUE(scratch.has_value());
  scratch->rows = {{0, 1, 0}, {0, 1, 1}, {1, 1, 0}, {2, 1, 0}, {2, 1, 1}};
  scratch->is_failed = {0, 1, 0};
  const float branch[] = {100, 100, 1, 10, 100, 100, 100, 100, 3, 50};
  std::ranges::copy(branch, scratch->branch);
  scratch->attention_before = {7, 7, 8, 8};
  const auto rope = Rope::Create({}, 2);
  ASSERT_TRUE(rope.has_value());
  ThreadPool pool(1);
  auto feed_forward = kernels::FeedForward::Create(
      kernels::kScalarKernels, pool, {.token_count_max = 1, .intermediate_size_max = 1});
  ASSERT_TRUE(feed_forward.has_value());
  const checkpoint::TensorFiles none;
  PlainBackend backend(none, 2);
  const SequenceRows sequences[3] = {};
  std::vector<SequenceFailure> failures;
  StepProfile profile;
  const RouterRule rule;
  const Forward forward{config,        *FindArch(checkpoint::Family::kQwen3Moe),
                        *rope,         rule,
                        pool,          kernels::kScalarKernels,
                        *feed_forward, backend,
                        *scratch,      sequences,
                        failures,      profile};
  KeepAttention(forward, 1);
  EXPECT_THAT(scratch->attention_before,
              testing::ElementsAre(7.0F, 7.0F, (1.0F + 3) / 2, (10.0F + 50) / 2));
  scratch->is_failed = {1, 1, 1};
  KeepAttention(forward, 1);
  EXPECT_THAT(scratch->attention_before, testing::ElementsAre(7.0F, 7.0F, 0.0F, 0.0F));
}

}  // namespace
}  // namespace smoe::model
