#include "store/model_size.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace smoe::store {
namespace {

// tiny-moe: 4 layers of 16 experts, 4 for a token, each 3 x 256 x 128 weights of two bytes.
TEST(MeasureSize, OfTheBundledCheckpointByHand) {
  const std::string path = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  const auto files = OpenModelFiles(path, {});
  ASSERT_TRUE(files) << files.error().message();
  const auto size = MeasureSize(*files);
  ASSERT_TRUE(size) << size.error().message();
  EXPECT_EQ(size->expert_count, 64u);
  EXPECT_EQ(size->expert_bytes, uint64_t{64} * 3 * 256 * 128 * 2);
  EXPECT_EQ(size->token_bytes, uint64_t{4} * 4 * 3 * 256 * 128 * 2);
  EXPECT_EQ(size->drive_bytes, std::filesystem::file_size(path + "/model.safetensors"));
}

}  // namespace
}  // namespace smoe::store
