// ReadExpertMatrix of checkpoint/expert_layout.h: from any slice of any tensor to f32 [rows][cols].
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "checkpoint/element_decoder.h"
#include "checkpoint/expert_layout.h"

namespace smoe::checkpoint {

namespace {

using tensor::DType;

// Small enough that converted bytes are still in the second cache, and for malloc to keep it.
constexpr size_t kStagingBytes = 64 * 1024;
// Lines of a strided slice read together: a cache line of the output's f32 per row.
constexpr size_t kLinesPerBlock = 16;
constexpr size_t kMxfp4Group = 32;

// One tensor as a row of f32 elements.
class ElementReader {
 public:
  ElementReader(const TensorFiles& files, const std::string& name, const TensorInfo& info,
                ExpertEncoding encoding)
      : files_(files), name_(name), info_(info), is_mxfp4_(encoding == ExpertEncoding::kMxfp4) {}

  // Must be called first. kUnsupported for types without a value of their own.
  Status Open() {
    staging_ = std::make_unique_for_overwrite<std::byte[]>(kStagingBytes);
    if (!is_mxfp4_) {
      if (tensor::IsFloat(info_.dtype) || info_.dtype == DType::kF8E4M3) return Ok();
      return Unsupported("tensor {}: elements of type {} have no value alone", name_,
                         tensor::DTypeName(info_.dtype));
    }
    const std::string scales_name = name_.substr(0, name_.rfind("_blocks")) + "_scales";
    scales_info_ = files_.Find(scales_name);
    if (scales_info_ == nullptr) return Corrupt("tensor {}: missing", scales_name);
    return Ok();
  }

  // Elements [first, first + out.size()); *is_finite is cleared if one is NaN or infinite.
  Status Read(uint64_t first, std::span<float> out, bool* is_finite) {
    while (!out.empty()) {
      size_t count = 0;
      SMOE_TRY(is_mxfp4_ ? ReadMxfp4(first, out, &count, is_finite)
                         : ReadPlain(first, out, &count, is_finite));
      first += count;
      out = out.subspan(count);
    }
    return Ok();
  }

 private:
  Status ReadPlain(uint64_t first, std::span<float> out, size_t* count, bool* is_finite) {
    const size_t element_bytes = tensor::DTypeBytes(info_.dtype);
    *count = std::min(out.size(), kStagingBytes / element_bytes);
    const MutableBytes staged(staging_.get(), *count * element_bytes);
    SMOE_TRY(files_.Read(info_, first * element_bytes, staged));
    if (!DecodeElements(info_.dtype, staged, out.first(*count))) *is_finite = false;
    return Ok();
  }

  Status ReadMxfp4(uint64_t first, std::span<float> out, size_t* count, bool* is_finite) {
    SMOE_CHECK(first % kMxfp4Group == 0 && out.size() % kMxfp4Group == 0);
    // A group takes 16 bytes of codes and one of scale; both pieces share the staging.
    const size_t group_count = std::min(out.size() / kMxfp4Group, kStagingBytes / 17);
    *count = group_count * kMxfp4Group;
    const MutableBytes codes(staging_.get(), *count / 2);
    const MutableBytes scales(staging_.get() + codes.size(), group_count);
    SMOE_TRY(files_.Read(info_, first / 2, codes));
    SMOE_TRY(files_.Read(*scales_info_, first / kMxfp4Group, scales));
    if (!DecodeMxfp4(codes, scales, out.first(*count))) *is_finite = false;
    return Ok();
  }

  const TensorFiles& files_;
  const std::string& name_;
  const TensorInfo& info_;
  bool is_mxfp4_;
  const TensorInfo* scales_info_ = nullptr;
  std::unique_ptr<std::byte[]> staging_;
};

// Rows that are whole lines of the tensor, further apart than their length.
Status ReadSpacedRows(ElementReader& reader, const MatrixSlice& slice, std::span<float> out,
                      bool* is_finite) {
  for (uint64_t row = 0; row < slice.rows; ++row) {
    SMOE_TRY(reader.Read(slice.first + row * slice.row_stride,
                         out.subspan(row * slice.cols, slice.cols), is_finite));
  }
  return Ok();
}

// Columns are lines of the tensor: reads some lines and turns them.
Status ReadTurned(ElementReader& reader, const MatrixSlice& slice, std::span<float> out,
                  bool* is_finite) {
  const uint64_t line_count_max = std::min<uint64_t>(kLinesPerBlock, slice.cols);
  const uint64_t line_span = uint64_t{slice.rows - 1} * slice.row_stride + 1;
  const size_t block_size = (line_count_max - 1) * slice.col_stride + line_span;
  const auto block = std::make_unique_for_overwrite<float[]>(block_size);
  for (uint64_t col = 0; col < slice.cols; col += line_count_max) {
    const uint64_t line_count = std::min(line_count_max, slice.cols - col);
    const size_t size = (line_count - 1) * slice.col_stride + line_span;
    // Values between ours belong to another projection: only a check of our own may complain.
    bool is_block_finite = true;
    SMOE_TRY(
        reader.Read(slice.first + col * slice.col_stride, {block.get(), size}, &is_block_finite));
    for (uint64_t row = 0; row < slice.rows; ++row) {
      const float* from = block.get() + row * slice.row_stride;
      float* to = out.data() + row * slice.cols + col;
      for (uint64_t i = 0; i < line_count; ++i) to[i] = from[i * slice.col_stride];
    }
    if (!is_block_finite) *is_finite = false;
  }
  return Ok();
}

// weight = fp8 x scale_inv, one scale for each block; blocks at the edges are partial.
Status ApplyBlockScales(const TensorFiles& files, const ExpertLayout& layout,
                        const MatrixSlice& slice, std::span<float> out, bool* is_finite) {
  const std::string name = slice.tensor_name + "_scale_inv";
  const TensorInfo* info = files.Find(name);
  if (info == nullptr) return Corrupt("tensor {}: missing", name);
  const uint64_t rows_per_block = layout.fp8_block_rows();
  const uint64_t cols_per_block = layout.fp8_block_cols();
  const uint64_t scales_per_row = CeilDiv(slice.cols, cols_per_block);
  std::vector<float> scales(CeilDiv(slice.rows, rows_per_block) * scales_per_row);
  ElementReader reader(files, name, *info, ExpertEncoding::kFloat);
  SMOE_TRY(reader.Open());
  SMOE_TRY(reader.Read(0, scales, is_finite));
  // A finite element times a huge scale may be infinite: have the result looked at.
  constexpr float kHarmlessMax = 1e30F;
  for (const float scale : scales) *is_finite = *is_finite && std::fabs(scale) < kHarmlessMax;
  for (uint64_t row = 0; row < slice.rows; ++row) {
    const float* row_scales = scales.data() + row / rows_per_block * scales_per_row;
    for (uint64_t col = 0; col < slice.cols; col += cols_per_block) {
      float* values = out.data() + row * slice.cols + col;
      const uint64_t count = std::min<uint64_t>(cols_per_block, slice.cols - col);
      for (uint64_t i = 0; i < count; ++i) values[i] *= row_scales[col / cols_per_block];
    }
  }
  return Ok();
}

// Called when something was not finite: names the first such element, or finds that all are ours
// are sound.
Status CheckFinite(const MatrixSlice& slice, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const uint64_t row = i / slice.cols;
    const uint64_t col = i % slice.cols;
    return Corrupt(
        "tensor {}: element {} (row {}, column {} of this projection) is {}: the weights are "
        "damaged, or --allow-non-finite passes them on",
        slice.tensor_name, slice.first + row * slice.row_stride + col * slice.col_stride, row, col,
        std::isnan(values[i]) ? "NaN" : "infinite");
  }
  return Ok();
}

}  // namespace

Status ReadExpertMatrix(const TensorFiles& files, const ExpertLayout& layout, uint32_t layer_index,
                        uint32_t expert_index, Proj proj, bool allow_non_finite,
                        std::span<float> out) {
  if (layout.encoding() == ExpertEncoding::kNvfp4) {
    return Unsupported("layer {}: experts in NVFP4 are not read as floats", layer_index);
  }
  const MatrixSlice slice = layout.Slice(layer_index, expert_index, proj);
  SMOE_CHECK(out.size() == uint64_t{slice.rows} * slice.cols);
  const TensorInfo* info = files.Find(slice.tensor_name);
  if (info == nullptr) return Corrupt("tensor {}: missing", slice.tensor_name);
  ElementReader reader(files, slice.tensor_name, *info, layout.encoding());
  SMOE_TRY(reader.Open());
  bool is_finite = true;
  if (slice.contiguous()) {
    SMOE_TRY(reader.Read(slice.first, out, &is_finite));
  } else if (slice.col_stride == 1) {
    SMOE_TRY(ReadSpacedRows(reader, slice, out, &is_finite));
  } else {
    SMOE_TRY(ReadTurned(reader, slice, out, &is_finite));
  }
  if (info->dtype == DType::kF8E4M3) {
    SMOE_TRY(ApplyBlockScales(files, layout, slice, out, &is_finite));
  }
  if (is_finite || allow_non_finite) return Ok();
  return CheckFinite(slice, out);
}

}  // namespace smoe::checkpoint
