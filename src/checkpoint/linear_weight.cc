#include "checkpoint/linear_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/weights.h"

namespace smoe::checkpoint {

namespace {

using tensor::DType;
using tensor::Shape;

constexpr std::string_view kWeight = "weight";
constexpr std::string_view kPacked = "weight_packed";
constexpr std::string_view kScale = "weight_scale";
constexpr std::string_view kScaleInv = "weight_scale_inv";
constexpr std::string_view kScale2 = "weight_scale_2";
constexpr std::string_view kGlobalScale = "weight_global_scale";
constexpr std::string_view kActivationScales[] = {"input_scale", "input_global_scale", "k_scale",
                                                  "v_scale"};
constexpr uint64_t kGroup = tensor::kNvfp4Group;
constexpr uint64_t kScalesAtOnce = uint64_t{64} << 10;

std::string_view LastComponent(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// The tensors below one stem.
class Finder {
 public:
  Finder(const TensorFiles& files, std::string_view stem, const ModelConfig& config)
      : files_(files), stem_(stem), config_(config) {}

  Result<LinearWeight> Find() const {
    const NamedTensor weight = Get(kWeight);
    const NamedTensor packed = Get(kPacked);
    if (weight.info != nullptr && packed.info != nullptr) {
      return Corrupt("tensor {}: {} is there too: names of both NVFP4 kinds, expected one",
                     *packed.name, *weight.name);
    }
    if (packed.info != nullptr) return FindNvfp4(packed, kGlobalScale, kScale2);
    if (weight.info == nullptr) return Corrupt("tensor {}: missing", NameOf(kWeight));
    if (weight.info->dtype == DType::kU8) return FindNvfp4(weight, kScale2, kGlobalScale);
    if (weight.info->dtype == DType::kF8E4M3) return FindFp8(weight);
    LinearWeight found;
    found.codes = weight;
    found.shape = weight.info->shape;
    if (tensor::IsFloat(weight.info->dtype)) return found;
    return Unsupported("tensor {}: elements of type {}, expected floats, F8_E4M3 or NVFP4",
                       *weight.name, tensor::DTypeName(weight.info->dtype));
  }

 private:
  std::string NameOf(std::string_view component) const {
    return fmt::format("{}.{}", stem_, component);
  }

  NamedTensor Get(std::string_view component) const {
    const auto found = files_.tensors().find(NameOf(component));
    if (found == files_.tensors().end()) return {};
    return {&found->first, &found->second};
  }

  Status CheckMatrix(const NamedTensor& codes) const {
    if (codes.info->shape.size() == 2) return Ok();
    return Corrupt("tensor {}: shape {}, expected two dimensions", *codes.name,
                   tensor::ShapeText(codes.info->shape));
  }

  Unexpected Missing(std::string_view component, const NamedTensor& codes) const {
    return Corrupt("tensor {}: missing, {} {} needs it", NameOf(component),
                   tensor::DTypeName(codes.info->dtype), *codes.name);
  }

  Result<LinearWeight> FindNvfp4(const NamedTensor& codes, std::string_view global,
                                 std::string_view other_global) const {
    LinearWeight found;
    found.kind = LinearKind::kNvfp4;
    found.codes = codes;
    found.scales = Get(kScale);
    found.global_scale = Get(global);
    found.global_is_inverse = global == kGlobalScale;
    found.block_cols = kGroup;
    SMOE_TRY(CheckMatrix(codes));
    if (codes.info->dtype != DType::kU8) {
      return Corrupt("tensor {}: elements of type {}, expected U8, two codes each", *codes.name,
                     tensor::DTypeName(codes.info->dtype));
    }
    if (const NamedTensor other = Get(other_global); other.info != nullptr) {
      return Corrupt("tensor {}: belongs to the other NVFP4 kind, {} goes with {}", *other.name,
                     *codes.name, NameOf(global));
    }
    if (found.scales.info == nullptr) return Missing(kScale, codes);
    if (found.global_scale.info == nullptr) return Missing(global, codes);
    const uint64_t code_bytes = codes.info->shape[1];
    found.shape = {codes.info->shape[0], code_bytes * 2};
    if (found.shape[1] % kGroup != 0) {
      return Corrupt("tensor {}: {} columns, expected a multiple of {}", *codes.name,
                     found.shape[1], kGroup);
    }
    const Shape wanted = {found.shape[0], found.shape[1] / kGroup};
    const TensorInfo& scales = *found.scales.info;
    if (scales.dtype != DType::kF8E4M3 || scales.shape != wanted) {
      return Corrupt("tensor {}: {} {}, expected F8_E4M3 {}, one for {} columns of {}",
                     *found.scales.name, tensor::DTypeName(scales.dtype),
                     tensor::ShapeText(scales.shape), tensor::ShapeText(wanted), kGroup,
                     *codes.name);
    }
    const TensorInfo& one = *found.global_scale.info;
    if (one.dtype == DType::kF32 && one.size == sizeof(float)) return found;
    return Corrupt("tensor {}: {} {}, expected one F32", *found.global_scale.name,
                   tensor::DTypeName(one.dtype), tensor::ShapeText(one.shape));
  }

  Result<LinearWeight> FindFp8(const NamedTensor& codes) const {
    LinearWeight found;
    found.kind = LinearKind::kFp8;
    found.codes = codes;
    found.shape = codes.info->shape;
    SMOE_TRY(CheckMatrix(codes));
    found.scales = Get(kScaleInv);
    if (found.scales.info == nullptr) found.scales = Get(kScale);
    if (found.scales.info == nullptr) return Missing(kScaleInv, codes);
    const TensorInfo& scales = *found.scales.info;
    const uint64_t rows = found.shape[0];
    const uint64_t cols = found.shape[1];
    const Shape blocks = {CeilDiv(rows, uint64_t{config_.fp8_block_rows}),
                          CeilDiv(cols, uint64_t{config_.fp8_block_cols})};
    const bool is_one = scales.shape.empty() || scales.shape == Shape{1};
    if (is_one) {
      found.block_rows = std::max<uint64_t>(rows, 1);
      found.block_cols = std::max<uint64_t>(cols, 1);
    } else if (scales.shape == blocks) {
      found.block_rows = config_.fp8_block_rows;
      found.block_cols = config_.fp8_block_cols;
    } else if (scales.shape == Shape{rows} || scales.shape == Shape{rows, 1}) {
      found.block_cols = std::max<uint64_t>(cols, 1);
    } else {
      return Corrupt(
          "tensor {}: shape {}, expected one number, {} rows or {} for blocks of {} x {}",
          *found.scales.name, tensor::ShapeText(scales.shape), rows, tensor::ShapeText(blocks),
          config_.fp8_block_rows, config_.fp8_block_cols);
    }
    if (tensor::IsFloat(scales.dtype)) return found;
    return Corrupt("tensor {}: elements of type {}, expected floats", *found.scales.name,
                   tensor::DTypeName(scales.dtype));
  }

  const TensorFiles& files_;
  const std::string_view stem_;
  const ModelConfig& config_;
};

// The only element of a scale, made the factor that codes are multiplied by.
Result<float> ReadGlobalScale(const TensorFiles& files, const LinearWeight& weight) {
  float stored = 0;
  SMOE_TRY(files.Read(*weight.global_scale.info, 0, std::as_writable_bytes(std::span(&stored, 1))));
  const float scale = weight.global_is_inverse ? 1.0F / stored : stored;
  if (std::isfinite(stored) && stored > 0 && std::isfinite(scale) && scale > 0) return scale;
  return Corrupt("tensor {}: {}, expected a finite number above 0{}", *weight.global_scale.name,
                 stored, weight.global_is_inverse ? " whose inverse is one too" : "");
}

std::array<float, 256> MakeE4M3Table() {
  std::array<float, 256> table = {};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = tensor::F32FromF8E4M3(static_cast<uint8_t>(i));
  }
  return table;
}

float F32FromE4M3(std::byte code) {
  static const std::array<float, 256> table = MakeE4M3Table();
  return table[std::to_integer<size_t>(code)];
}

// The rows to be read, and one scale for each block that they touch.
struct Rows {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t cols = 0;
  uint64_t first_block_row = 0;
  uint64_t blocks_per_row = 0;
  std::vector<float> scales;

  const float* ScalesOf(const LinearWeight& weight, uint64_t row) const {
    return scales.data() + ((first + row) / weight.block_rows - first_block_row) * blocks_per_row;
  }
};

Status ReadScales(const TensorFiles& files, const LinearWeight& weight, Rows* rows) {
  const TensorInfo& info = *weight.scales.info;
  const uint64_t element_bytes = tensor::DTypeBytes(info.dtype);
  const uint64_t first = rows->first_block_row * rows->blocks_per_row;
  std::vector<std::byte> bytes(rows->scales.size() * element_bytes);
  SMOE_TRY(files.Read(info, first * element_bytes, bytes));
  if (info.dtype == DType::kF8E4M3) {
    std::transform(bytes.begin(), bytes.end(), rows->scales.begin(), F32FromE4M3);
  } else {
    tensor::ToF32({info.dtype, {rows->scales.size()}, bytes}, 0, rows->scales);
  }
  for (size_t i = 0; i < rows->scales.size(); ++i) {
    const float scale = rows->scales[i];
    if (std::isfinite(scale) && scale >= 0) continue;
    return Corrupt("tensor {}: element {} is {}, expected a finite scale that is not below 0",
                   *weight.scales.name, first + i, scale);
  }
  return Ok();
}

void DecodeNvfp4(Bytes codes, const LinearWeight& weight, const Rows& rows, float global_scale,
                 std::span<float> out) {
  std::array<float, 16> values = {};
  for (uint32_t code = 0; code < values.size(); ++code) values[code] = tensor::F32FromE2M1(code);
  for (uint64_t row = 0; row < rows.count; ++row) {
    const float* scales = rows.ScalesOf(weight, row);
    const std::byte* in = codes.data() + row * (rows.cols / 2);
    float* to = out.data() + row * rows.cols;
    for (uint64_t col = 0; col < rows.cols; col += 2) {
      const auto pair = std::to_integer<uint32_t>(in[col / 2]);
      const float scale = scales[col / kGroup];
      to[col] = values[pair & 0xf] * scale * global_scale;
      to[col + 1] = values[pair >> 4] * scale * global_scale;
    }
  }
}

void DecodeFp8(Bytes codes, const LinearWeight& weight, const Rows& rows, std::span<float> out) {
  for (uint64_t row = 0; row < rows.count; ++row) {
    const float* scales = rows.ScalesOf(weight, row);
    const std::byte* in = codes.data() + row * rows.cols;
    float* to = out.data() + row * rows.cols;
    for (uint64_t col = 0; col < rows.cols; ++col) {
      to[col] = F32FromE4M3(in[col]) * scales[col / weight.block_cols];
    }
  }
}

}  // namespace

Result<LinearWeight> FindLinear(const TensorFiles& files, std::string_view stem,
                                const ModelConfig& config) {
  return Finder(files, stem, config).Find();
}

Status ReadLinearRows(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                      std::span<float> out) {
  SMOE_CHECK(weight.kind != LinearKind::kFloat);
  if (out.empty()) return Ok();
  Rows rows;
  rows.first = first_row;
  rows.cols = weight.shape[1];
  rows.count = out.size() / rows.cols;
  SMOE_CHECK(rows.count * rows.cols == out.size());
  SMOE_CHECK(RangeFits(first_row, rows.count, weight.shape[0]));
  rows.first_block_row = first_row / weight.block_rows;
  rows.blocks_per_row = CeilDiv(rows.cols, weight.block_cols);
  const uint64_t last_block_row = (first_row + rows.count - 1) / weight.block_rows;
  rows.scales.resize((last_block_row - rows.first_block_row + 1) * rows.blocks_per_row);
  SMOE_TRY(ReadScales(files, weight, &rows));
  const uint64_t row_bytes = weight.codes.info->shape[1];
  std::vector<std::byte> codes(rows.count * row_bytes);
  SMOE_TRY(files.Read(*weight.codes.info, first_row * row_bytes, codes));
  if (weight.kind == LinearKind::kFp8) {
    DecodeFp8(codes, weight, rows, out);
    return Ok();
  }
  SMOE_TRY_ASSIGN(const float global_scale, ReadGlobalScale(files, weight));
  DecodeNvfp4(codes, weight, rows, global_scale, out);
  return Ok();
}

Status CheckScales(const TensorFiles& files, const LinearWeight& weight) {
  if (weight.kind == LinearKind::kFloat || weight.shape[0] == 0) return Ok();
  Rows rows;
  rows.blocks_per_row = CeilDiv(weight.shape[1], weight.block_cols);
  const uint64_t end = CeilDiv(weight.shape[0], weight.block_rows);
  const uint64_t step = kScalesAtOnce / std::max<uint64_t>(rows.blocks_per_row, 1) + 1;
  for (; rows.first_block_row < end; rows.first_block_row += step) {
    rows.scales.resize(std::min(step, end - rows.first_block_row) * rows.blocks_per_row);
    SMOE_TRY(ReadScales(files, weight, &rows));
  }
  if (weight.kind != LinearKind::kNvfp4) return Ok();
  SMOE_TRY(ReadGlobalScale(files, weight));
  return Ok();
}

bool IsLinearName(std::string_view name, std::string_view* stem) {
  const std::string_view last = LastComponent(name);
  if ((last != kWeight && last != kPacked) || last.size() == name.size()) return false;
  *stem = name.substr(0, name.size() - last.size() - 1);
  return true;
}

bool IsQuantisationName(std::string_view name) {
  const std::string_view last = LastComponent(name);
  return last == kScale || last == kScaleInv || last == kScale2 || last == kGlobalScale ||
         IsActivationScaleName(name);
}

bool IsActivationScaleName(std::string_view name) {
  const std::string_view last = LastComponent(name);
  return std::find(std::begin(kActivationScales), std::end(kActivationScales), last) !=
         std::end(kActivationScales);
}

uint64_t LoadedBytes(std::string_view name, const TensorInfo& info) {
  constexpr uint64_t kCodesPerByte = 2;
  if (IsQuantisationName(name)) return 0;
  if (info.dtype == DType::kU8) return info.size * kCodesPerByte * sizeof(float);
  return info.dtype == DType::kF8E4M3 ? info.size * sizeof(float) : info.size;
}

}  // namespace smoe::checkpoint
