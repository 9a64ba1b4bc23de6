// kernels/data_for_test.h: random inputs for the tests of this folder, the same in every run, and
// how two results compare.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "tensor/dtype.h"
#include "tensor/weights.h"

namespace smoe::kernels {

using Rng = std::mt19937_64;

inline std::vector<float> RandomFloats(Rng& rng, size_t count, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

// A matrix of random bits in `format`, behind one byte so that nothing is aligned, in memory that
// ends with it so that the address sanitizer sees a read too far.
struct WeightData {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  tensor::WeightView view;
};

inline WeightData RandomWeights(Rng& rng, tensor::WeightFormat format, uint32_t rows, uint32_t cols,
                                uint32_t group_size) {
  using tensor::WeightFormat;
  const uint64_t count = uint64_t{rows} * cols;
  const auto append16 = [](std::vector<uint8_t>& bytes, uint16_t bits) {
    bytes.push_back(static_cast<uint8_t>(bits & 0xff));
    bytes.push_back(static_cast<uint8_t>(bits >> 8));
  };
  std::normal_distribution<float> normal(0, 0.05f);
  WeightData made;
  made.data.push_back(0xee);
  made.scales.push_back(0xee);
  if (tensor::IsQuantised(format)) {
    const uint64_t bits = format == WeightFormat::kSmoeQ4 ? 4 : 2;
    for (uint64_t i = 0; i < CeilDiv(count * bits, 8); ++i) {
      made.data.push_back(static_cast<uint8_t>(rng()));
    }
    for (uint64_t i = 0; i < CeilDiv(count, group_size); ++i) {
      append16(made.scales, tensor::F16FromF32(std::fabs(normal(rng))));
    }
  } else {
    for (uint64_t i = 0; i < count; ++i) {
      const float value = normal(rng);
      if (format == WeightFormat::kF16) append16(made.data, tensor::F16FromF32(value));
      if (format == WeightFormat::kBF16) append16(made.data, tensor::BF16FromF32(value));
      if (format != WeightFormat::kF32) continue;
      const auto bits = std::bit_cast<uint32_t>(value);
      append16(made.data, static_cast<uint16_t>(bits & 0xffff));
      append16(made.data, static_cast<uint16_t>(bits >> 16));
    }
  }
  made.data.shrink_to_fit();
  made.scales.shrink_to_fit();
  made.view = {.format = format,
               .rows = rows,
               .cols = cols,
               .data = AsBytes(std::span<const uint8_t>(made.data)).subspan(1),
               .scales = AsBytes(std::span<const uint8_t>(made.scales)).subspan(1),
               .group_size = tensor::IsQuantised(format) ? group_size : 0};
  return made;
}

struct ActivationData {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  QuantisedRows rows;
};

inline ActivationData QuantiseRows(const KernelTable& table, std::span<const float> x,
                                   size_t token_count, size_t cols) {
  const size_t stride = RoundUp(cols, kActivationBlock);
  const size_t blocks = stride / kActivationBlock;
  ActivationData made = {.codes = std::vector<int8_t>(token_count * stride),
                         .scales = std::vector<float>(token_count * blocks),
                         .rows = {}};
  for (size_t token = 0; token < token_count; ++token) {
    SMOE_CHECK(table.quantise_row(x.data() + token * cols, cols, made.codes.data() + token * stride,
                                  made.scales.data() + token * blocks));
  }
  made.rows = {.codes = made.codes.data(),
               .scales = made.scales.data(),
               .token_count = token_count,
               .cols = cols,
               .col_stride = stride};
  return made;
}

// One row of W times one token, in double precision from WeightAt alone, and the sum of the
// products' magnitudes, which bounds what rounding may do: with the activations as they are, and
// with the codes and scales that they became.
struct RowProduct {
  double f32 = 0;
  double f32_magnitude = 0;
  double int8 = 0;
  double int8_magnitude = 0;
};

inline RowProduct MultiplyInDouble(const tensor::WeightView& w, uint32_t row,
                                   std::span<const float> x, const ActivationData& q) {
  RowProduct made;
  for (uint32_t col = 0; col < w.cols; ++col) {
    const auto weight = static_cast<double>(tensor::WeightAt(w, row, col));
    const double in_f32 = weight * static_cast<double>(x[col]);
    const double in_int8 = weight * (static_cast<double>(q.scales[col / kActivationBlock]) *
                                     static_cast<double>(q.codes[col]));
    made.f32 += in_f32;
    made.f32_magnitude += std::fabs(in_f32);
    made.int8 += in_int8;
    made.int8_magnitude += std::fabs(in_int8);
  }
  return made;
}

// Output rows [row_begin, row_end); the others keep -1.
inline std::vector<float> MultiplyInt8(const KernelTable& table, const tensor::WeightView& w,
                                       const QuantisedRows& x, uint32_t row_begin,
                                       uint32_t row_end) {
  std::vector<float> y(x.token_count * w.rows, -1);
  table.matmul_int8(
      w, x, {.row_begin = row_begin, .row_end = row_end, .out = y.data(), .out_stride = w.rows});
  return y;
}

inline std::vector<float> MultiplyF32(const KernelTable& table, const tensor::WeightView& w,
                                      const std::vector<float>& x, size_t token_count,
                                      uint32_t row_begin, uint32_t row_end) {
  std::vector<float> y(token_count * w.rows, -1);
  table.matmul_f32(
      w, {.data = x.data(), .token_count = token_count, .stride = w.cols},
      {.row_begin = row_begin, .row_end = row_end, .out = y.data(), .out_stride = w.rows});
  return y;
}

// Bits, except that any NaN equals any other.
inline testing::AssertionResult SameBits(const std::vector<float>& expected,
                                         const std::vector<float>& actual) {
  if (expected.size() != actual.size()) return testing::AssertionFailure() << "other size";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(actual[i])) continue;
    return testing::AssertionFailure() << "element " << i << " of " << expected.size()
                                       << ": scalar " << expected[i] << ", here " << actual[i];
  }
  return testing::AssertionSuccess();
}

}  // namespace smoe::kernels
