#include "model/matrix_rows.h"

#include <optional>

#include "base/check.h"
#include "checkpoint/trunk_format.h"
#include "tensor/finite.h"
#include "tensor/quantise_int8.h"
#include "tensor/round_bf16.h"
#include "tensor/tensor.h"

namespace smoe::model {

using tensor::DType;
using tensor::QuantisationError;
using tensor::WeightFormat;

namespace {

Result<QuantisationError> EncodeQ4(const MatrixTarget& matrix, uint64_t first_weight,
                                   std::span<const float> weights) {
  constexpr tensor::SmoeBits kBits = tensor::SmoeBits::kQ4;
  const MutableBytes codes = matrix.elements.subspan(tensor::PackedBytes(first_weight, kBits),
                                                     tensor::PackedBytes(weights.size(), kBits));
  const MutableBytes scales =
      matrix.scales.subspan(tensor::ScaleBytes(first_weight, checkpoint::kQ4Group),
                            tensor::ScaleBytes(weights.size(), checkpoint::kQ4Group));
  SMOE_TRY(tensor::QuantiseSmoe(weights, kBits, checkpoint::kQ4Group, tensor::Quantiser::kMse,
                                codes, scales));
  return tensor::MeasureError(weights, codes, scales, kBits, checkpoint::kQ4Group);
}

Result<QuantisationError> EncodeBf16(const MatrixTarget& matrix, uint64_t first_weight,
                                     std::span<const float> weights) {
  const MutableBytes target =
      matrix.elements.subspan(first_weight * sizeof(uint16_t), weights.size() * sizeof(uint16_t));
  const QuantisationError error = tensor::RoundToBf16(weights, target);
  const std::optional<uint64_t> bad = tensor::FindNonFinite(DType::kBF16, target);
  if (!bad) return error;
  return Unsupported("element {} is {}, beyond what bf16 holds", *bad, weights[*bad]);
}

}  // namespace

DType DTypeOf(WeightFormat format) {
  if (format == WeightFormat::kF16) return DType::kF16;
  return format == WeightFormat::kBF16 ? DType::kBF16 : DType::kF32;
}

Result<QuantisationError> EncodeRows(const MatrixTarget& matrix, uint64_t first_row,
                                     std::span<const float> weights) {
  SMOE_CHECK(matrix.cols != 0 && weights.size() % matrix.cols == 0);
  const uint64_t first_weight = first_row * matrix.cols;
  if (matrix.format == WeightFormat::kSmoeQ4) return EncodeQ4(matrix, first_weight, weights);
  if (matrix.format == WeightFormat::kBF16) return EncodeBf16(matrix, first_weight, weights);
  SMOE_CHECK(matrix.format == WeightFormat::kInt8);
  const tensor::Int8Target target = {static_cast<uint32_t>(matrix.rows),
                                     static_cast<uint32_t>(matrix.cols), matrix.elements,
                                     matrix.scales};
  return tensor::QuantiseInt8(target, static_cast<uint32_t>(first_row),
                              static_cast<uint32_t>(weights.size() / matrix.cols), weights);
}

tensor::WeightView MatrixView(WeightFormat format, uint64_t rows, uint64_t cols, Bytes data,
                              Bytes scales) {
  tensor::WeightView view;
  view.format = format;
  view.rows = static_cast<uint32_t>(rows);
  view.cols = static_cast<uint32_t>(cols);
  view.data = data;
  view.scales = scales;
  if (format == WeightFormat::kSmoeQ4) view.group_size = checkpoint::kQ4Group;
  if (format == WeightFormat::kInt8) view.group_size = tensor::kInt8Group;
  return view;
}

void DecodeRow(const tensor::WeightView& matrix, uint32_t row, std::span<float> out) {
  SMOE_CHECK(row < matrix.rows && out.size() == matrix.cols);
  const uint64_t first = uint64_t{row} * matrix.cols;
  if (matrix.format == WeightFormat::kInt8) return tensor::DequantiseInt8Row(matrix, row, out);
  if (matrix.format == WeightFormat::kSmoeQ4) {
    const uint64_t codes = tensor::PackedBytes(out.size(), tensor::SmoeBits::kQ4);
    const uint64_t scales = tensor::ScaleBytes(out.size(), matrix.group_size);
    return tensor::DequantiseSmoe(matrix.data.subspan(row * codes, codes),
                                  matrix.scales.subspan(row * scales, scales),
                                  tensor::SmoeBits::kQ4, matrix.group_size, out);
  }
  tensor::ToF32({DTypeOf(matrix.format), {}, matrix.data}, first, out);
}

}  // namespace smoe::model
