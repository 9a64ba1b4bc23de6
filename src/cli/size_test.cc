#include "cli/size.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

namespace smoe::cli {
namespace {

TEST(Size, BytesUnitsAndFractionsAreExact) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"1500", 1500},
      {"0", 0},
      {"7B", 7},
      {"3M", 3145728},
      {"3m", 3145728},
      {"3MiB", 3145728},
      {"3 mib", 3145728},
      {"3MB", 3000000},
      {"2kB", 2000},
      {"2K", 2048},
      {"1.5GB", 1500000000},
      {"1.5GiB", 1610612736},
      {"1.5G", 1610612736},
      {"0.5KiB", 512},
      {"1.0", 1},
      {"1.000000000000000000000", 1},
      {"2.25TB", 2250000000000},
      {"0.000000000001TB", 1},
      {"0.0009765625KiB", 1},  // 2 ^ -10
      {"1PiB", 1125899906842624},
      {"1PB", 1000000000000000},
      {"16383.5P", 18446181123756130304u},  // 16384 x 2 ^ 50 - 2 ^ 49
      {"18446744073709551615", UINT64_MAX},
      {"0018446744073709551615", UINT64_MAX},
  };
  for (const auto& [text, bytes] : cases) {
    const Result<uint64_t> size = ParseSize(text);
    ASSERT_TRUE(size) << text;
    EXPECT_EQ(*size, bytes) << text;
  }
}

TEST(Size, AFractionOfAByteIsRefused) {
  for (const char* text : {"0.5", "1.3GiB", "0.0005KB", "1.00000000000000000001GB", "1.5B"}) {
    const Result<uint64_t> size = ParseSize(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(
        size.error().message(),
        fmt::format("\"{}\" is no whole number of bytes, expected a size such as 4GiB, 1.5GB, "
                    "512M or a number of bytes",
                    text));
  }
}

TEST(Size, WhatIsNoSizeOrTooLargeIsRefused) {
  for (const char* text : {"", "M", "3X", "3MX", "3MiBs", "-1", "+1", "1.", ".5G", "1.5.5G", "1,5G",
                           "1e3", "0x10", " 1", "nan", "1..5G"}) {
    const Result<uint64_t> size = ParseSize(text);
    EXPECT_FALSE(size) << text;
  }
  for (const char* text : {"18446744073709551616", "16384P", "16383.9999999999999999995P",
                           "99999999999999999999999999999999999999999"}) {
    const Result<uint64_t> size = ParseSize(text);
    ASSERT_FALSE(size) << text;
  }
  EXPECT_EQ(ParseSize("16384P").error().message(),
            "\"16384P\", expected at most 18446744073709551615 bytes");
}

}  // namespace
}  // namespace smoe::cli
