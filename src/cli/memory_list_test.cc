#include "cli/memory_list.h"

#include <gtest/gtest.h>

namespace smoe::cli {
namespace {

TEST(MemoryList, UnitsArePowersOf1024HoweverTheyAreWritten) {
  EXPECT_EQ(ParseSize("1500"), 1500u);
  for (const char* text : {"3M", "3m", "3MB", "3MiB", "3mib"}) EXPECT_EQ(ParseSize(text), 3145728u);
  EXPECT_EQ(ParseSize("16777215T"), uint64_t{16777215} << 40);
  for (const char* text : {"", "M", "3X", "3MX", "-1", "1.5G", "16777216T", "99999999999999999999"})
    EXPECT_FALSE(ParseSize(text)) << text;
}

TEST(MemoryList, AllIsASizeOfItsOwn) {
  const auto sizes = ParseMemoryList("1500M,all,2000000000", 3);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(*sizes,
            (std::vector<std::optional<uint64_t>>{uint64_t{1500} << 20, std::nullopt, 2000000000}));
  for (const char* text : {"", ",", "1G,", ",1G", "1G,,2G", "1G,some", "1,2,3,4"}) {
    const auto refused = ParseMemoryList(text, 3);
    ASSERT_FALSE(refused) << text;
    EXPECT_TRUE(refused.error().message().starts_with("--memory: \"")) << text;
  }
}

}  // namespace
}  // namespace smoe::cli
