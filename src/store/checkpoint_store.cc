#include "store/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/memory.h"
#include "tensor/finite.h"

namespace smoe::store {

namespace {

using checkpoint::kProjCount;
using checkpoint::Proj;
using tensor::DType;

// Matrices start at multiples of this inside a slot.
constexpr uint64_t kMatrixAlignment = 64;

// One projection of one expert: where it lies in the files.
struct MatrixPlace {
  uint32_t file_index = 0;
  uint64_t offset = 0;
};

// What all experts share: element types and places inside a slot.
struct MatrixShape {
  DType dtype = DType::kF32;
  tensor::WeightFormat format = tensor::WeightFormat::kF32;
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint64_t size = 0;
  uint64_t slot_offset = 0;
};

std::optional<tensor::WeightFormat> FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return tensor::WeightFormat::kF32;
    case DType::kF16:
      return tensor::WeightFormat::kF16;
    case DType::kBF16:
      return tensor::WeightFormat::kBF16;
    default:
      return std::nullopt;
  }
}

class CheckpointStore final : public ExpertStore {
 public:
  CheckpointStore(std::string path, uint32_t hidden_size, uint32_t intermediate_size)
      : path_(std::move(path)), hidden_size_(hidden_size), intermediate_size_(intermediate_size) {}

  // Finds every expert. The object is of use only if this returns Ok.
  Status Init(const checkpoint::TensorFiles& files, const checkpoint::ExpertLayout& layout,
              uint32_t num_hidden_layers) {
    for (const checkpoint::ExpertLayer& layer : layout.layers()) {
      if (layer.is_mtp || layer.layer_index >= num_hidden_layers) continue;
      layers_.push_back({layer.layer_index, layer.expert_count, expert_count_});
      for (uint32_t expert = 0; expert < layer.expert_count; ++expert) {
        for (int proj = 0; proj < kProjCount; ++proj) {
          SMOE_TRY(AddMatrix(files, layout, {layer.layer_index, expert}, static_cast<Proj>(proj)));
        }
      }
      expert_count_ += layer.expert_count;
    }
    if (layers_.empty()) return Invalid("{}: no layer with routed experts", path_);
    uint64_t cursor = 0;
    for (MatrixShape& shape : shapes_) {
      shape.slot_offset = cursor;
      cursor = RoundUp(cursor + shape.size, kMatrixAlignment);
    }
    slot_bytes_ = RoundUp(cursor, kPageBytes);
    for (const io::File& file : files.files()) {
      SMOE_TRY_ASSIGN(io::File own, io::File::OpenRead(file.path()));
      files_.push_back(std::move(own));
    }
    return Ok();
  }

  const std::string& path() const override { return path_; }
  const char* format_name() const override { return tensor::WeightFormatName(shapes_[0].format); }
  std::span<const StoreLayer> layers() const override { return layers_; }
  uint32_t expert_count() const override { return expert_count_; }
  uint32_t hidden_size() const override { return hidden_size_; }
  uint32_t intermediate_size() const override { return intermediate_size_; }
  uint64_t slot_bytes() const override { return slot_bytes_; }
  bool direct_io() const override { return false; }
  bool FallBackToBuffered() override { return false; }

  ExpertLocation Locate(ExpertId id) const override {
    const MatrixPlace* places = Places(id);
    ExpertLocation location;
    location.extent_count = kProjCount;
    for (size_t i = 0; i < kProjCount; ++i) {
      location.extents[i] = {files_[places[i].file_index].fd(), places[i].offset, shapes_[i].size,
                             shapes_[i].slot_offset};
    }
    return location;
  }

  Status Admit(ExpertId id, MutableBytes slot) const override {
    for (size_t i = 0; i < kProjCount; ++i) {
      const MatrixShape& shape = shapes_[i];
      const Bytes data = Bytes(slot).subspan(shape.slot_offset, shape.size);
      const std::optional<uint64_t> index = tensor::FindNonFinite(shape.dtype, data);
      if (!index) continue;
      const MatrixPlace& place = Places(id)[i];
      return Corrupt(
          "{}: layer {}, expert {}, {}: element {} at byte {} is NaN or infinite, expected a "
          "finite number",
          files_[place.file_index].path(), id.layer_index, id.expert_index,
          checkpoint::ProjName(static_cast<Proj>(i)), *index,
          place.offset + *index * tensor::DTypeBytes(shape.dtype));
    }
    return Ok();
  }

  tensor::ExpertWeights View(ExpertId, Bytes slot) const override {
    return {Matrix(shapes_[0], slot), Matrix(shapes_[1], slot), Matrix(shapes_[2], slot)};
  }

 private:
  static tensor::WeightView Matrix(const MatrixShape& shape, Bytes slot) {
    tensor::WeightView view;
    view.format = shape.format;
    view.rows = shape.rows;
    view.cols = shape.cols;
    view.data = slot.subspan(shape.slot_offset, shape.size);
    return view;
  }

  const MatrixPlace* Places(ExpertId id) const {
    const std::optional<uint32_t> ordinal = FindOrdinal(*this, id);
    SMOE_CHECK(ordinal.has_value());
    return &places_[uint64_t{*ordinal} * kProjCount];
  }

  Status AddMatrix(const checkpoint::TensorFiles& files, const checkpoint::ExpertLayout& layout,
                   ExpertId id, Proj proj) {
    const checkpoint::MatrixSlice slice = layout.Slice(id.layer_index, id.expert_index, proj);
    const checkpoint::TensorInfo* tensor = files.Find(slice.tensor_name);
    SMOE_CHECK(tensor != nullptr);
    const std::optional<tensor::WeightFormat> format = FormatOf(tensor->dtype);
    if (!format || !slice.contiguous()) {
      return Unsupported(
          "{}: tensor {}: {} experts laid out as {} cannot be read in place; convert them with "
          "smoe shatter",
          path_, slice.tensor_name, tensor::DTypeName(tensor->dtype), layout.naming());
    }
    const uint64_t element_bytes = tensor::DTypeBytes(tensor->dtype);
    MatrixShape shape{tensor->dtype, *format, slice.rows, slice.cols, 0, 0};
    shape.size = uint64_t{slice.rows} * slice.cols * element_bytes;
    MatrixShape& common = shapes_[static_cast<size_t>(proj)];
    if (places_.size() < kProjCount) common = shape;
    if (common.dtype != shape.dtype || common.size != shape.size) {
      return Unsupported(
          "{}: tensor {}: {} of {} bytes, the first expert's {} is {} of {} bytes; convert them "
          "with smoe shatter",
          path_, slice.tensor_name, tensor::DTypeName(shape.dtype), shape.size,
          checkpoint::ProjName(proj), tensor::DTypeName(common.dtype), common.size);
    }
    places_.push_back({tensor->file_index, tensor->offset + slice.first * element_bytes});
    return Ok();
  }

  const std::string path_;
  const uint32_t hidden_size_;
  const uint32_t intermediate_size_;
  std::vector<io::File> files_;
  std::vector<StoreLayer> layers_;
  std::vector<MatrixPlace> places_;  // kProjCount per ordinal
  MatrixShape shapes_[kProjCount];
  uint64_t slot_bytes_ = 0;
  uint32_t expert_count_ = 0;
};

}  // namespace

Result<std::unique_ptr<ExpertStore>> OpenCheckpointStore(const std::string& path,
                                                         const checkpoint::TensorFiles& files,
                                                         const checkpoint::ExpertLayout& layout,
                                                         uint32_t num_hidden_layers) {
  if (layout.encoding() == checkpoint::ExpertEncoding::kNvfp4) {
    return Unsupported(
        "{}: NVFP4 experts cannot be read in place; smoe pack makes a record store of them", path);
  }
  if (layout.encoding() != checkpoint::ExpertEncoding::kFloat) {
    return Unsupported(
        "{}: quantised experts ({}) cannot be read in place; convert them with smoe shatter", path,
        layout.naming());
  }
  if (layout.has_biases()) {
    return Unsupported("{}: experts with biases ({}) are not computed by this build", path,
                       layout.naming());
  }
  auto store =
      std::make_unique<CheckpointStore>(path, layout.hidden_size(), layout.intermediate_size());
  SMOE_TRY(store->Init(files, layout, num_hidden_layers));
  return store;
}

}  // namespace smoe::store
