#include "tensor/quantise_int8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "tensor/quantise_int8_kernels.h"

namespace smoe::tensor {
namespace {

constexpr uint32_t kInfinityBits = 0x7f800000U;
constexpr uint64_t kTileBytes = uint64_t{kInt8TileRows} * kInt8TileCols;
constexpr uint64_t kTilesPerGroup = kInt8Group / kInt8TileCols;

void CheckRows(uint64_t rows, uint64_t cols, uint64_t code_bytes, uint64_t scale_bytes,
               uint64_t first_row, uint64_t row_count) {
  SMOE_CHECK(RangeFits(first_row, row_count, rows));
  SMOE_CHECK(Int8CodeBytes(rows, cols) == code_bytes);
  SMOE_CHECK(Int8ScaleBytes(rows, cols) == scale_bytes);
}

using GroupCodes = std::array<int8_t, kInt8Group>;

void StoreGroup(const Int8Target& matrix, uint64_t row, uint64_t group, const GroupCodes& codes,
                float scale) {
  const uint64_t col = group * kInt8Group;
  std::byte* at = matrix.codes.data() + Int8CodeIndex(matrix.cols, row, col);
  for (uint64_t tile = 0; tile < kTilesPerGroup; ++tile) {
    std::memcpy(at + tile * kTileBytes, codes.data() + tile * kInt8TileCols, kInt8TileCols);
  }
  StoreStruct(matrix.scales, Int8ScaleIndex(matrix.cols, row, col) * sizeof(float), scale);
}

void FillPaddingRows(const Int8Target& matrix) {
  const uint64_t groups = CeilDiv(matrix.cols, kInt8Group);
  for (uint64_t row = matrix.rows; row % kInt8TileRows != 0; ++row) {
    for (uint64_t group = 0; group < groups; ++group) {
      StoreGroup(matrix, row, group, GroupCodes{}, 0.0F);
    }
  }
}

// Bits of a magnitude order as the magnitudes do, NaN last.
uint32_t LargestMagnitude(const float* weights) {
  uint32_t largest = 0;
  for (size_t i = 0; i < kInt8Group; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(weights[i]) & 0x7fffffffU);
  }
  return largest;
}

// A group's weights with zeros behind them, so that every loop has one fixed length.
using GroupWeights = std::array<float, kInt8Group>;

// In f32 the difference is exact: a weight and its code's value are within a factor of two, or the
// code is 0. One simple loop after the other, which compilers turn into vectors.
void AddSquares(const float* values, double* lanes) {
  std::array<double, kInt8Group> squares;
  for (size_t i = 0; i < kInt8Group; ++i) squares[i] = double{values[i]} * double{values[i]};
  for (size_t first = 0; first < kInt8Group; first += kInt8ErrorLanes) {
    for (size_t lane = 0; lane < kInt8ErrorLanes; ++lane) lanes[lane] += squares[first + lane];
  }
}

void AddErrors(const float* weights, const GroupWeights& code_values, float scale,
               Int8Errors* sums) {
  GroupWeights errors;
  for (size_t i = 0; i < kInt8Group; ++i) errors[i] = weights[i] - code_values[i] * scale;
  AddSquares(errors.data(), sums->squared_error);
  AddSquares(weights, sums->squared_value);
  for (size_t i = 0; i < kInt8Group; ++i) errors[i] = std::fabs(errors[i]);
  for (size_t first = 0; first < kInt8Group; first += kInt8ErrorLanes) {
    for (size_t lane = 0; lane < kInt8ErrorLanes; ++lane) {
      sums->error_max[lane] = std::max(sums->error_max[lane], errors[first + lane]);
    }
  }
}

QuantisationError Sum(const Int8Errors& errors, uint64_t weight_count) {
  QuantisationError sum;
  sum.weight_count = weight_count;
  for (size_t i = 0; i < kInt8ErrorLanes; ++i) {
    sum.Add({0, errors.squared_error[i], errors.squared_value[i], double{errors.error_max[i]}});
  }
  return sum;
}

QuantiseInt8Group* BestQuantiseGroup() {
#if defined(__x86_64__)
  const char* const wanted = std::getenv("SMOE_ISA");
  const bool forced_scalar = wanted != nullptr && std::string_view(wanted) == "scalar";
  if (!forced_scalar && __builtin_cpu_supports("avx2") != 0) return QuantiseInt8GroupAvx2;
#endif
  return QuantiseInt8GroupScalar;
}

Unexpected NotFinite(std::span<const float> weights, uint64_t row, uint64_t col) {
  while (std::isfinite(weights.front())) {
    weights = weights.subspan(1);
    ++col;
  }
  return Unsupported("weight in row {}, column {}: {}, but int8 has scales for finite ones only",
                     row, col, weights.front());
}

}  // namespace

bool QuantiseInt8GroupScalar(const float* weights, int8_t* codes, float* scale,
                             Int8Errors* errors) {
  const uint32_t largest = LargestMagnitude(weights);
  if (largest >= kInfinityBits) return false;
  const auto absmax = std::bit_cast<float>(largest);
  GroupWeights code_values = {};
  *scale = 0;
  if (absmax >= kInt8ZeroBelow) {
    const float inverse = kInt8CodeMax / absmax;
    for (size_t i = 0; i < kInt8Group; ++i) {
      code_values[i] = (weights[i] * inverse + kInt8Round) - kInt8Round;
    }
    *scale = std::min(absmax / kInt8CodeMax, kInt8ScaleMax);
  }
  for (size_t i = 0; i < kInt8Group; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code_values[i]));
  }
  AddErrors(weights, code_values, *scale, errors);
  return true;
}

WeightView Int8View(const Int8Target& matrix) {
  return {.format = WeightFormat::kInt8,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .data = matrix.codes,
          .scales = matrix.scales,
          .group_size = kInt8Group};
}

Result<QuantisationError> QuantiseInt8(const Int8Target& matrix, uint32_t first_row,
                                       uint32_t row_count, std::span<const float> weights) {
  CheckRows(matrix.rows, matrix.cols, matrix.codes.size(), matrix.scales.size(), first_row,
            row_count);
  SMOE_CHECK(weights.size() == uint64_t{row_count} * matrix.cols);
  QuantiseInt8Group* const quantise = BestQuantiseGroup();
  Int8Errors errors;
  GroupCodes codes;
  GroupWeights padded;
  for (uint64_t i = 0; i < row_count; ++i) {
    const auto row = weights.subspan(i * matrix.cols, matrix.cols);
    for (uint64_t col = 0; col < matrix.cols; col += kInt8Group) {
      const auto group = row.subspan(col, std::min<uint64_t>(kInt8Group, matrix.cols - col));
      const float* whole = group.data();
      if (group.size() < kInt8Group) {
        padded.fill(0);
        std::copy(group.begin(), group.end(), padded.begin());
        whole = padded.data();
      }
      float scale = 0;
      if (!quantise(whole, codes.data(), &scale, &errors)) {
        return NotFinite(group, first_row + i, col);
      }
      StoreGroup(matrix, first_row + i, col / kInt8Group, codes, scale);
    }
  }
  if (row_count > 0 && first_row + row_count == matrix.rows) FillPaddingRows(matrix);
  return Sum(errors, weights.size());
}

void TileInt8(const Int8Target& matrix, uint32_t first_row, uint32_t row_count, Bytes row_codes,
              Bytes row_scales) {
  CheckRows(matrix.rows, matrix.cols, matrix.codes.size(), matrix.scales.size(), first_row,
            row_count);
  const uint64_t cols = matrix.cols;
  const uint64_t groups = CeilDiv(cols, kInt8Group);
  SMOE_CHECK(row_codes.size() == row_count * cols);
  SMOE_CHECK(row_scales.size() == row_count * groups * sizeof(float));
  for (uint64_t i = 0; i < row_count; ++i) {
    for (uint64_t group = 0; group < groups; ++group) {
      const uint64_t col = group * kInt8Group;
      GroupCodes codes{};
      std::memcpy(codes.data(), row_codes.data() + i * cols + col,
                  std::min<uint64_t>(kInt8Group, cols - col));
      StoreGroup(matrix, first_row + i, group, codes,
                 LoadStruct<float>(row_scales, (i * groups + group) * sizeof(float)));
    }
  }
  if (row_count > 0 && first_row + row_count == matrix.rows) FillPaddingRows(matrix);
}

void UntileInt8(const WeightView& weights, uint32_t first_row, uint32_t row_count,
                MutableBytes row_codes, MutableBytes row_scales) {
  CheckRows(weights.rows, weights.cols, weights.data.size(), weights.scales.size(), first_row,
            row_count);
  const uint64_t cols = weights.cols;
  const uint64_t groups = CeilDiv(cols, kInt8Group);
  SMOE_CHECK(row_codes.size() == row_count * cols);
  SMOE_CHECK(row_scales.size() == row_count * groups * sizeof(float));
  for (uint64_t i = 0; i < row_count; ++i) {
    const uint64_t row = first_row + i;
    for (uint64_t col = 0; col < cols; col += kInt8TileCols) {
      std::memcpy(row_codes.data() + i * cols + col,
                  weights.data.data() + Int8CodeIndex(cols, row, col),
                  std::min<uint64_t>(kInt8TileCols, cols - col));
    }
    for (uint64_t group = 0; group < groups; ++group) {
      const uint64_t from = Int8ScaleIndex(cols, row, group * kInt8Group) * sizeof(float);
      StoreStruct(row_scales, (i * groups + group) * sizeof(float),
                  LoadStruct<float>(weights.scales, from));
    }
  }
}

void DequantiseInt8Row(const WeightView& weights, uint32_t row, std::span<float> out) {
  CheckRows(weights.rows, weights.cols, weights.data.size(), weights.scales.size(), row, 1);
  SMOE_CHECK(out.size() == weights.cols);
  const uint64_t cols = weights.cols;
  for (uint64_t begin = 0; begin < cols; begin += kInt8Group) {
    const auto scale =
        LoadStruct<float>(weights.scales, Int8ScaleIndex(cols, row, begin) * sizeof(float));
    const uint64_t end = std::min<uint64_t>(cols, begin + kInt8Group);
    for (uint64_t col = begin; col < end; ++col) {
      const auto code = std::to_integer<int8_t>(weights.data[Int8CodeIndex(cols, row, col)]);
      out[col] = static_cast<float>(code) * scale;
    }
  }
}

}  // namespace smoe::tensor
