// What a step may take: rows up to the limit, and no memory.
#include "experts/allocation_count_for_test.h"
#include "model/checkpoint_model_for_test.h"

namespace smoe::model {
namespace {

// Routed experts that add nothing, and allocate nothing.
class SilentBackend final : public experts::ExpertBackend {
 public:
  Status Run(const experts::RoutedRows& rows, std::vector<experts::RowFailure>*) override {
    std::fill_n(rows.out, rows.row_count * 32, 0.0f);
    return Ok();
  }
  experts::CacheStats stats() const override { return {}; }
  uint64_t compute_ns() const override { return 0; }
};

constexpr size_t kRowCountMax = 40;

struct Parts {
  store::ModelFiles files = OpenFolder(DeepseekFolder());
  ThreadPool pool{2};
  SilentBackend backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> kv;

  Parts() {
    auto loaded = Model::Load(files, pool, *kernels::AllKernels().back(), backend,
                              {.row_count_max = kRowCountMax, .logit_row_max = kRowCountMax});
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message();
    model = std::move(*loaded);
    kv = std::move(*KvCache::Create(model->kv_shape(), 512));
  }
};

TEST(StepLimits, AStepAllocatesNothingInPrefillAndDecode) {
  Parts parts;
  KvSequence kv[2] = {parts.kv->NewSequence(), parts.kv->NewSequence()};
  const std::vector<uint32_t> prompt(30, 4);
  const std::vector<uint32_t> token = {9};
  for (int step = 0; step < 6; ++step) {
    const SequenceRows rows[] = {{&kv[0], prompt, SequenceRows::Logits::kAll},
                                 {&kv[1], token, SequenceRows::Logits::kLast}};
    const uint64_t before = experts::AllocationCount();
    const auto result = parts.model->Step(rows, nullptr);
    EXPECT_EQ(experts::AllocationCount(), before) << "step " << step;
    ASSERT_TRUE(result.has_value());
    EXPECT_TRUE(result->failures.empty());
  }
}

TEST(StepLimits, TakesRowsAndLogitsUpToTheLimit) {
  Parts parts;
  const std::vector<uint32_t> prompt(kRowCountMax, 7);
  KvSequence kv = parts.kv->NewSequence();
  const SequenceRows rows = {&kv, prompt, SequenceRows::Logits::kAll};
  const auto result = parts.model->Step({&rows, 1}, nullptr);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->logits.size(), kRowCountMax * 40);
  EXPECT_EQ(kv.token_count(), kRowCountMax);
}

TEST(StepLimitsDeathTest, OneRowMoreIsOurOwnBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Parts parts;
  const std::vector<uint32_t> prompt(kRowCountMax + 1, 7);
  KvSequence kv = parts.kv->NewSequence();
  const SequenceRows rows = {&kv, prompt, SequenceRows::Logits::kNone};
  EXPECT_DEATH((void)parts.model->Step({&rows, 1}, nullptr), "row_count_max");
}

TEST(StepLimits, SizesThatNoMemoryHoldsAreRefused) {
  Parts parts;
  for (const size_t rows : {SIZE_MAX, SIZE_MAX / 64, size_t{1} << 56}) {
    const auto refused = Model::Load(parts.files, parts.pool, *kernels::AllKernels().back(),
                                     parts.backend, {.row_count_max = rows, .logit_row_max = 1});
    ASSERT_FALSE(refused.has_value()) << rows;
    EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted) << refused.error().message();
  }
}

}  // namespace
}  // namespace smoe::model
