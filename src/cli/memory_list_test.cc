#include "cli/memory_list.h"

#include <gtest/gtest.h>

namespace smoe::cli {
namespace {

TEST(MemoryList, AllIsASizeOfItsOwn) {
  const auto sizes = ParseMemoryList("1500M,all,2000000000", 3);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(*sizes,
            (std::vector<std::optional<uint64_t>>{uint64_t{1500} << 20, std::nullopt, 2000000000}));
  for (const char* text : {"", ",", "1G,", ",1G", "1G,,2G", "1G,some", "1,2,3,4", "1G,0.5"}) {
    const auto refused = ParseMemoryList(text, 3);
    ASSERT_FALSE(refused) << text;
    EXPECT_TRUE(refused.error().message().starts_with("--memory: \"")) << text;
  }
  EXPECT_EQ(ParseMemoryList("1.5GB,0.5", 3).error().message(),
            "--memory: \"0.5\" is no whole number of bytes, expected a size such as 4GiB, 1.5GB, "
            "512M or a number of bytes; or several of them, as 1500M,2G,all");
}

}  // namespace
}  // namespace smoe::cli
