#include "model/matrix_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/trunk_plan.h"

namespace smoe::model {
namespace {

using tensor::WeightFormat;
using testing::HasSubstr;

constexpr uint64_t kCols = 128;

struct Matrix {
  Matrix(WeightFormat format, uint64_t rows) {
    const auto bytes = BytesOf(format, rows, kCols);
    elements.resize(bytes->elements);
    scales.resize(bytes->scales);
    target = {format, rows, kCols, elements, scales};
  }
  std::vector<float> Row(uint32_t row) const {
    std::vector<float> out(kCols);
    DecodeRow(MatrixView(target.format, target.rows, kCols, elements, scales), row, out);
    return out;
  }
  std::vector<std::byte> elements, scales;
  MatrixTarget target;
};

// Multiples of a power of two, so small that every format holds each of them exactly: 8 bits of a
// bf16 and 255 steps of int8 of a group whose largest is 127 of them, 15 of q4.
std::vector<float> WeightsOf(uint64_t rows, int magnitude) {
  std::vector<float> weights(rows * kCols);
  for (size_t i = 0; i < weights.size(); ++i) {
    const int step = static_cast<int>(i * 37 % static_cast<size_t>(2 * magnitude + 1)) - magnitude;
    weights[i] = std::ldexp(static_cast<float>(i % 64 == 0 ? magnitude : step), -10);
  }
  return weights;
}

TEST(MatrixRows, GoThereAndBackExactlyWhereTheFormatHoldsThem) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kInt8}) {
    const std::vector<float> weights = WeightsOf(32, 127);
    Matrix matrix(format, 32);
    const auto error = EncodeRows(matrix.target, 0, weights);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->squared_error, 0.0);
    for (uint32_t row = 0; row < 32; ++row) {
      const auto first = weights.begin() + static_cast<std::ptrdiff_t>(row * kCols);
      EXPECT_EQ(matrix.Row(row), std::vector<float>(first, first + kCols)) << row;
    }
  }
}

// One row of many by itself, as an embedding that stays on the drive has it.
TEST(MatrixRows, ARowAloneIsWhatItIsInTheWholeMatrix) {
  const std::vector<float> weights = WeightsOf(32, 1000);
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kSmoeQ4}) {
    Matrix whole(format, 32);
    ASSERT_TRUE(EncodeRows(whole.target, 0, weights).has_value());
    for (uint32_t row = 0; row < 32; ++row) {
      Matrix alone(format, 1);
      const std::span own = std::span(weights).subspan(row * kCols, kCols);
      ASSERT_TRUE(EncodeRows(alone.target, 0, own).has_value());
      EXPECT_EQ(alone.Row(0), whole.Row(row)) << row;
    }
  }
}

TEST(MatrixRows, WhatAFormatCannotHoldIsNamedByItsElement) {
  std::vector<float> weights = WeightsOf(4, 127);
  weights[kCols + 5] = 3.4e38F;  // f32's largest, rounded to bf16, is infinite
  Matrix matrix(WeightFormat::kBF16, 32);
  const auto error = EncodeRows(matrix.target, 8, weights);
  ASSERT_FALSE(error.has_value());
  EXPECT_EQ(error.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.error().message(), HasSubstr("element 133 is 3.4e+38, beyond what bf16 holds"));
}

}  // namespace
}  // namespace smoe::model
