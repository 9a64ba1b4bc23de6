#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace smoe::tensor {
namespace {

TEST(FindNonFinite, AnswersForAllHalfPrecisionValues) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const uint16_t values[5] = {0x3C00, 0x0001, 0x8000, static_cast<uint16_t>(bits), 0xBC00};
    const Bytes data = std::as_bytes(std::span(values));
    EXPECT_EQ(FindNonFinite(DType::kF16, data).has_value(), (bits & 0x7C00) == 0x7C00);
    EXPECT_EQ(FindNonFinite(DType::kBF16, data).has_value(), (bits & 0x7F80) == 0x7F80);
  }
  for (const uint32_t bits : {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFFFFFFFu, 0x7F800001u}) {
    const uint32_t values[3] = {0x3F800000, 0xFF7FFFFF, bits};
    EXPECT_EQ(FindNonFinite(DType::kF32, std::as_bytes(std::span(values))), 2u);
  }
}

// Stretches are tested as a whole: every place in the first, the second and the short last one.
TEST(FindNonFinite, NamesThePlaceWhereverItIs) {
  std::vector<float> values(2100, 1.0f);
  EXPECT_TRUE(AllFinite(values));
  for (size_t place :
       {size_t{0}, size_t{1023}, size_t{1024}, size_t{2047}, size_t{2048}, size_t{2099}}) {
    std::vector<float> bad = values;
    bad[place] = -INFINITY;
    EXPECT_EQ(FindNonFinite(DType::kF32, std::as_bytes(std::span(bad))), place);
    EXPECT_FALSE(AllFinite(bad));
  }
  EXPECT_FALSE(FindNonFinite(DType::kF32, {}));
}

}  // namespace
}  // namespace smoe::tensor
