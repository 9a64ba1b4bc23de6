#include "checkpoint/linear_weight.h"

#include <algorithm>

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
    if (weight.info->dtype == DType::kI8) return FindInt8(weight);
    if (weight.info->dtype == DType::kU8) {
      if (Get(kQ4ScaleName).info != nullptr) return FindQ4(weight);
      return FindNvfp4(weight, kScale2, kGlobalScale);
    }
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

  // Types and shapes of the scales of our own formats.
  Status CheckScaleTable(const LinearWeight& found, DType dtype) const {
    const TensorInfo& scales = *found.scales.info;
    const Shape wanted = {found.shape[0], CeilDiv(found.shape[1], found.block_cols)};
    if (scales.dtype == dtype && scales.shape == wanted) return Ok();
    return Corrupt("tensor {}: {} {}, expected {} {}, one for {} columns of {}", *found.scales.name,
                   tensor::DTypeName(scales.dtype), tensor::ShapeText(scales.shape),
                   tensor::DTypeName(dtype), tensor::ShapeText(wanted), found.block_cols,
                   *found.codes.name);
  }

  Result<LinearWeight> FindInt8(const NamedTensor& codes) const {
    LinearWeight found;
    found.kind = LinearKind::kInt8;
    found.codes = codes;
    found.scales = Get(kInt8ScaleName);
    found.shape = codes.info->shape;
    found.block_cols = tensor::kInt8Group;
    if (found.scales.info == nullptr) {
      return Unsupported(
          "tensor {}: elements of type I8 and no {} beside it, expected floats, F8_E4M3, NVFP4, or "
          "int8 with these scales",
          *codes.name, NameOf(kInt8ScaleName));
    }
    SMOE_TRY(CheckMatrix(codes));
    SMOE_TRY(CheckScaleTable(found, DType::kF32));
    return found;
  }

  Result<LinearWeight> FindQ4(const NamedTensor& codes) const {
    LinearWeight found;
    found.kind = LinearKind::kQ4;
    found.codes = codes;
    found.scales = Get(kQ4ScaleName);
    found.block_cols = kQ4Group;
    SMOE_TRY(CheckMatrix(codes));
    found.shape = {codes.info->shape[0], codes.info->shape[1] * 2};
    if (found.shape[1] % kQ4Group != 0) {
      return Corrupt("tensor {}: {} columns, expected a multiple of {}", *codes.name,
                     found.shape[1], kQ4Group);
    }
    SMOE_TRY(CheckScaleTable(found, DType::kF16));
    return found;
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

}  // namespace

Result<LinearWeight> FindLinear(const TensorFiles& files, std::string_view stem,
                                const ModelConfig& config) {
  return Finder(files, stem, config).Find();
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
         last == kInt8ScaleName || last == kQ4ScaleName || IsActivationScaleName(name);
}

bool IsActivationScaleName(std::string_view name) {
  const std::string_view last = LastComponent(name);
  return std::find(std::begin(kActivationScales), std::end(kActivationScales), last) !=
         std::end(kActivationScales);
}

}  // namespace smoe::checkpoint
