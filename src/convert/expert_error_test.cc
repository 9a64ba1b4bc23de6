#include "convert/expert_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "convert/files_for_test.h"
#include "convert/sculptor.h"
#include "store/model_files.h"

namespace smoe::convert {
namespace {

using testing::HasSubstr;

store::ModelFiles Open(const std::string& path) {
  auto files = store::OpenModelFiles(path, {.direct_io = false});
  EXPECT_TRUE(files) << files.error().message();
  return std::move(*files);
}

// Differences 0, 1, -2 against values 1, 2, 2: RMSE sqrt(5/3), SNR 10 log10(9/5).
TEST(MatrixError, ByHand) {
  const std::vector<float> a = {1, 2, 2};
  const std::vector<float> b = {1, 3, 0};
  const tensor::QuantisationError error = MatrixError(a, b);
  EXPECT_DOUBLE_EQ(error.Rmse(), std::sqrt(5.0 / 3));
  EXPECT_EQ(error.error_max, 2);
  EXPECT_DOUBLE_EQ(error.SnrDb(), 10 * std::log10(9.0 / 5));
}

TEST(CompareExperts, AStoreEqualsItself) {
  const store::ModelFiles files = Open(TinyMoe());
  NoProgress progress;
  const auto layers = CompareExperts(*files.experts, *files.experts, 2, progress);
  ASSERT_TRUE(layers) << layers.error().message();
  ASSERT_EQ(layers->size(), 4u);
  for (const LayerErrors& layer : *layers) {
    EXPECT_EQ(layer.Sum().squared_error, 0);
    EXPECT_EQ(layer.Sum().weight_count, uint64_t{16} * 3 * 256 * 128);
  }
}

// The Sculptor measures while it has the original weights at hand; here both come from the drive.
TEST(CompareExperts, ACheckpointAndItsVaultDifferByWhatTheSculptorMeasured) {
  const TestFolder folder;
  ShatterOptions options;
  options.group_size = 32;
  options.measure_error = true;
  NoProgress progress;
  const auto report = Shatter(TinyMoe(), folder.Path("a.smoe"), options, progress);
  ASSERT_TRUE(report) << report.error().message();
  const store::ModelFiles a = Open(TinyMoe());
  const store::ModelFiles b = Open(folder.Path("a.smoe"));
  const auto layers = CompareExperts(*a.experts, *b.experts, 1, progress);
  ASSERT_TRUE(layers) << layers.error().message();
  for (size_t p = 0; p < 3; ++p) {
    tensor::QuantisationError sum;
    for (const LayerErrors& layer : *layers) sum.Add(layer.projs[p]);
    EXPECT_NEAR(sum.Rmse(), (*report->errors)[p].Rmse(), 1e-12);
    EXPECT_EQ(sum.error_max, (*report->errors)[p].error_max);
  }
  const auto again = CompareExperts(*a.experts, *b.experts, 3, progress);
  ASSERT_TRUE(again);
  for (size_t i = 0; i < layers->size(); ++i) {
    EXPECT_EQ((*again)[i].Sum().squared_error, (*layers)[i].Sum().squared_error);
  }
}

TEST(CompareExperts, TwoModelsAreToldApartByField) {
  if (!std::filesystem::exists(Reference("checkpoints"))) {
    GTEST_SKIP() << "no " << Reference("checkpoints");
  }
  const store::ModelFiles tiny = Open(TinyMoe());
  const store::ModelFiles other = Open(Reference("checkpoints/qwen3_moe"));
  NoProgress progress;
  const auto layers = CompareExperts(*tiny.experts, *other.experts, 1, progress);
  ASSERT_FALSE(layers);
  EXPECT_EQ(layers.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(layers.error().message(), HasSubstr("hidden_size is 256, "));
}

}  // namespace
}  // namespace smoe::convert
