// Models through the real path: store, read queue, cache of few slots, local backend.
#include "experts/expert_cache.h"
#include "experts/local_backend.h"
#include "io/fake_read_queue.h"
#include "io/read_queue.h"
#include "model/test_support.h"

namespace smoe::model {
namespace {

using experts::Arithmetic;

constexpr float kTolerance = 2e-4f;  // of the largest logit

struct StreamSetup {
  Arithmetic arithmetic = Arithmetic::kF32;
  uint32_t slot_count = 0;  // 0: all experts
  size_t thread_count = 2;
  std::function<Result<std::unique_ptr<io::ReadQueue>>()> make_queue = [] {
    return io::ReadQueue::OpenThreaded({});
  };
};

struct Streamed {
  store::ModelFiles files;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<io::ReadQueue> queue;
  std::unique_ptr<experts::ExpertCache> cache;
  std::unique_ptr<experts::ExpertBackend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> kv;
};

constexpr size_t kRowCountMax = 256;

Result<std::unique_ptr<Streamed>> OpenStreamed(const std::string& path,
                                               const store::ModelFilesOptions& options,
                                               const StreamSetup& setup) {
  auto made = std::make_unique<Streamed>();
  SMOE_TRY_ASSIGN(made->files, store::OpenModelFiles(path, options));
  const store::ExpertStore& store = *made->files.experts;
  SMOE_TRY_ASSIGN(const kernels::KernelTable* table, kernels::ChooseKernels(nullptr));
  made->pool = std::make_unique<ThreadPool>(setup.thread_count);
  SMOE_TRY_ASSIGN(made->queue, setup.make_queue());
  const uint32_t slots = setup.slot_count == 0 ? store.expert_count() : setup.slot_count;
  SMOE_TRY_ASSIGN(made->cache, experts::ExpertCache::Create(*made->files.experts, *made->queue,
                                                            {.slot_count = slots}));
  SMOE_TRY_ASSIGN(made->backend,
                  experts::MakeLocalBackend(store, *made->cache, *made->pool, *table,
                                            {.arithmetic = setup.arithmetic,
                                             .row_count_max = kRowCountMax,
                                             .top_k = made->files.config.num_experts_per_tok}));
  SMOE_TRY_ASSIGN(made->model,
                  Model::Load(made->files, *made->pool, *table, *made->backend,
                              {.row_count_max = kRowCountMax, .logit_row_max = kRowCountMax}));
  SMOE_TRY_ASSIGN(made->kv, KvCache::Create(made->model->kv_shape(), 1024));
  return made;
}

std::vector<float> AllLogits(Streamed& streamed, std::span<const uint32_t> ids, size_t chunk,
                             StepTaps* taps = nullptr) {
  KvSequence kv = streamed.kv->NewSequence();
  std::vector<float> logits;
  for (size_t first = 0; first < ids.size(); first += std::min(chunk, ids.size() - first)) {
    const SequenceRows rows = {&kv, ids.subspan(first, std::min(chunk, ids.size() - first)),
                               SequenceRows::Logits::kAll};
    const auto result = streamed.model->Step({&rows, 1}, taps);
    EXPECT_TRUE(result.has_value()) << result.error().message();
    if (!result.has_value()) return {};
    for (const auto& failure : result->failures) ADD_FAILURE() << failure.error.message();
    logits.insert(logits.end(), result->logits.begin(), result->logits.end());
  }
  return logits;
}

void ExpectGolden(Streamed& streamed, const std::string& golden_path) {
  const auto golden = checkpoint::TensorFiles::Open(golden_path);
  ASSERT_TRUE(golden.has_value()) << golden.error().message();
  for (const std::string prompt : {"p0", "p1", "p2"}) {
    StepTaps taps;
    taps.want_router = true;
    const std::vector<float> logits =
        AllLogits(streamed, ReadIds(*golden, prompt + ".input_ids"), kRowCountMax, &taps);
    const bool is_short = golden->Find(prompt + ".logits_last16") != nullptr;
    const std::vector<float> expected =
        ReadFloats(*golden, prompt + (is_short ? ".logits_last16" : ".logits"));
    ASSERT_GE(logits.size(), expected.size());
    EXPECT_LT(LargestDifference(std::span(logits).last(expected.size()), expected),
              kTolerance * LargestMagnitude(expected))
        << prompt;
    for (size_t layer = 0; layer < taps.layers.size(); ++layer) {
      const std::string stem = fmt::format("{}.router.L{:02}", prompt, layer);
      if (golden->Find(stem + ".ids") == nullptr) continue;
      EXPECT_EQ(taps.layers[layer].router_ids, ReadIds(*golden, stem + ".ids")) << stem;
      EXPECT_LT(LargestDifference(taps.layers[layer].router_weights,
                                  ReadFloats(*golden, stem + ".weights")),
                2e-5f)
          << stem;
    }
  }
}

TEST(StreamedModel, VaultsGiveTheLogitsOfTheirDequantisedGoldens) {
  const std::string list_path = SharedPath("vaults/vaults.json");
  if (!std::filesystem::exists(list_path)) GTEST_SKIP() << "no reference data: " << list_path;
  const auto list = Json::Parse(ReadText(list_path), list_path);
  ASSERT_TRUE(list.has_value()) << list.error().message();
  size_t vault_count = 0;
  for (const auto& [name, vault] : *list->Find("vaults")->AsObject()) {
    const Json* const scout = vault.Find("scout");
    const Json* const golden = vault.Find("golden");
    const Json* const checkpoint = vault.Find("checkpoint");
    // Files that are another file of the list, byte for byte, do not lie there.
    if (checkpoint == nullptr || vault.Find("identical_to") != nullptr) continue;
    const std::string base = *checkpoint->AsString();
    const bool runs = base.starts_with("qwen") || base.starts_with("olmoe");
    if (scout == nullptr || golden == nullptr || !runs || base.starts_with("qwen3_next")) continue;
    SCOPED_TRACE(name);
    store::ModelFilesOptions options;
    options.trunk = SharedPath("vaults/" + *scout->AsString());
    options.config = SharedPath("checkpoints/" + base);
    auto streamed = OpenStreamed(SharedPath("vaults/" + *vault.Find("file")->AsString()), options,
                                 {.slot_count = 5});
    ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
    ExpectGolden(**streamed, SharedPath("vaults/" + *golden->AsString() + ".safetensors"));
    ++vault_count;
  }
  EXPECT_GT(vault_count, 20u);
}

TEST(StreamedModel, FoldersGiveTheLogitsOfTheirGoldens) {
  if (!std::filesystem::exists(SharedPath("goldens"))) {
    GTEST_SKIP() << "no reference data: " << SharedPath("goldens");
  }
  for (const char* name :
       {"qwen3_moe_sharded", "qwen3_moe_odd", "qwen3_moe_dense", "qwen3_moe_tied", "qwen3_moe_f16",
        "qwen3_moe_f32", "qwen2_moe", "olmoe", "mixtral"}) {
    SCOPED_TRACE(name);
    auto streamed =
        OpenStreamed(SharedPath(std::string("checkpoints/") + name), {}, {.slot_count = 4});
    ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
    ExpectGolden(**streamed, SharedPath(std::string("goldens/") + name + ".safetensors"));
  }
}

TEST(StreamedModel, DeepseekGivesTheLogitsOfItsGolden) {
  auto streamed = OpenStreamed(DeepseekFolder(), {}, {});
  ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
  ExpectGolden(**streamed, DeepseekFolder() + "/golden.safetensors");
}

// Its goldens have names of their own: NAME.logits are the last rows, NAME.router_ids is
// [layers][tokens][top_k].
TEST(StreamedModel, TheBundledModelGivesTheLogitsOfItsGoldens) {
  const std::string folder = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  auto streamed = OpenStreamed(folder, {}, {});
  ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
  const auto golden = checkpoint::TensorFiles::Open(folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value()) << golden.error().message();
  for (const std::string name : {"chat-1", "chat-2", "text-2"}) {
    SCOPED_TRACE(name);
    StepTaps taps;
    taps.want_router = true;
    const std::vector<float> logits =
        AllLogits(**streamed, ReadIds(*golden, name + ".input_ids"), kRowCountMax, &taps);
    const std::vector<float> expected = ReadFloats(*golden, name + ".logits");
    ASSERT_GE(logits.size(), expected.size());
    EXPECT_LT(LargestDifference(std::span(logits).last(expected.size()), expected),
              kTolerance * LargestMagnitude(expected));
    std::vector<uint32_t> router_ids;
    for (const StepTaps::Layer& layer : taps.layers) {
      router_ids.insert(router_ids.end(), layer.router_ids.begin(), layer.router_ids.end());
    }
    std::vector<uint32_t> expected_ids = ReadIds(*golden, name + ".router_ids");
    for (auto row = expected_ids.begin(); row != expected_ids.end(); row += 4) {
      std::sort(row, row + 4);
    }
    EXPECT_EQ(router_ids, expected_ids);
  }
}

// E10: a prompt of several hundred tokens, then 200 more, whatever the memory, the reads, the
// threads and the chunk; in both arithmetics.
TEST(StreamedModel, StreamedRunsHaveTheBitsOfResidentRuns) {
  const std::string path = SharedPath("vaults/qwen3_moe.smoe");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference data: " << path;
  store::ModelFilesOptions options;
  options.trunk = SharedPath("vaults/qwen3_moe.scout.safetensors");
  options.config = SharedPath("checkpoints/qwen3_moe");
  std::vector<uint32_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i * i * 31 + 7) % 384;
  const auto shuffled = [](uint64_t seed) {
    return [seed]() -> Result<std::unique_ptr<io::ReadQueue>> {
      return io::MakeFakeReadQueue({.seed = seed});
    };
  };
  const auto run = [&](const StreamSetup& setup, size_t chunk) {
    auto streamed = OpenStreamed(path, options, setup);
    EXPECT_TRUE(streamed.has_value()) << streamed.error().message();
    std::vector<float> logits = AllLogits(**streamed, std::span(ids).first(100), chunk);
    const std::vector<float> tail = AllLogits(**streamed, ids, std::min<size_t>(chunk, 256));
    logits.insert(logits.end(), tail.begin(), tail.end());
    return logits;
  };
  for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kInt8}) {
    StreamSetup setup = {.arithmetic = arithmetic, .slot_count = 0, .thread_count = 1};
    const std::vector<float> resident = run(setup, 256);
    for (const uint32_t slots : {3u, 12u, 24u}) {
      setup.slot_count = slots;
      setup.thread_count = slots == 12 ? 1 : 2;
      setup.make_queue = slots == 12 ? StreamSetup().make_queue : shuffled(slots);
      EXPECT_EQ(run(setup, slots == 3 ? 7 : 64), resident)
          << ArithmeticName(arithmetic) << " slots " << slots;
    }
  }
}

}  // namespace
}  // namespace smoe::model
