#include "tensor/round_bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tensor/dtype.h"

namespace smoe::tensor {
namespace {

// bf16 has 7 bits of fraction: around 1 its steps are 2^-7, ties go to the even neighbour.
TEST(RoundToBf16, RoundsHalfToEvenAndAddsUpWhatThatCosts) {
  const std::vector<float> weights = {1, 1 + 0x1p-8F, 1 + 0x3p-8F, -2 - 0x1p-9F, 0};
  const std::vector<float> rounded = {1, 1, 1 + 0x4p-8F, -2, 0};
  std::vector<std::byte> out(weights.size() * 2);
  const QuantisationError error = RoundToBf16(weights, out);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(F32FromBF16(LoadStruct<uint16_t>(out, i * 2)), rounded[i]) << i;
  }
  EXPECT_EQ(error.weight_count, 5u);
  EXPECT_EQ(error.squared_error, 0x1p-16 + 0x1p-16 + 0x1p-18);
  EXPECT_EQ(error.error_max, 0x1p-8);
  EXPECT_DOUBLE_EQ(error.RelativeRmse(), std::sqrt(error.squared_error / error.squared_value));
}

TEST(RoundToBf16, OverflowBecomesInfinity) {
  std::vector<std::byte> out(2);
  RoundToBf16(std::vector<float>{3.4e38F}, out);
  EXPECT_EQ(LoadStruct<uint16_t>(out, 0), 0x7f80);
}

}  // namespace
}  // namespace smoe::tensor
