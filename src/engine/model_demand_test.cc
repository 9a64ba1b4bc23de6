#include "engine/model_demand.h"

#include <gtest/gtest.h>

#include "model/model.h"

namespace smoe::engine {
namespace {

// What is said before there is a file is what loading the file takes.
TEST(TrunkOfShape, IsTheTrunkOfARealModelInEveryFormat) {
  const auto files = store::OpenModelFiles(std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe", {});
  ASSERT_TRUE(files) << files.error().message();
  using checkpoint::TrunkFormat;
  for (const TrunkFormat format : {TrunkFormat::kBf16, TrunkFormat::kInt8, TrunkFormat::kQ4}) {
    const auto formats = checkpoint::TrunkFormats::All(format);
    const auto real = model::Model::MeasureTrunk(*files, formats);
    ASSERT_TRUE(real);
    const ShapeTrunk shape = TrunkOfShape(files->config, formats);
    EXPECT_NEAR(static_cast<double>(shape.bytes), static_cast<double>(real->bytes), 4096)
        << checkpoint::TrunkFormatName(format) << ": vectors of a model differ by family";
    EXPECT_NEAR(static_cast<double>(shape.embedding_bytes),
                static_cast<double>(real->embedding_bytes), 4096);
  }
}

TEST(DemandOfFiles, NeedsMoreForLargerChunksAndForLogitsEverywhere) {
  const auto files = store::OpenModelFiles(std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe", {});
  ASSERT_TRUE(files);
  EngineOptions options;
  const auto demand = DemandOfFiles(*files, options);
  ASSERT_TRUE(demand);
  EXPECT_GT(demand->scratch_bytes(512), demand->scratch_bytes(256));
  options.evaluate = true;
  const auto evaluating = DemandOfFiles(*files, options);
  const uint64_t more_rows = 512 - options.batch_max;
  EXPECT_EQ(evaluating->scratch_bytes(512) - demand->scratch_bytes(512),
            more_rows * files->config.vocab_size * sizeof(float));
}

}  // namespace
}  // namespace smoe::engine
