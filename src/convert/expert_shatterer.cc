#include "convert/expert_shatterer.h"

#include <cmath>

namespace smoe::convert {
namespace {

using checkpoint::MatrixSlice;
using checkpoint::Proj;

// Weights in flight per worker: source and f32 stay in the second-level cache. A multiple of every
// group size, so that a piece begins at a whole byte and a whole scale.
constexpr uint64_t kPieceWeights = uint64_t{1} << 16;

constexpr float kScaleMax = 65504.0F;

// Weight `index` of the matrix as an element of its tensor.
uint64_t ElementIndex(const MatrixSlice& slice, uint64_t index) {
  return slice.first + index / slice.cols * slice.row_stride +
         index % slice.cols * slice.col_stride;
}

}  // namespace

Status ExpertShatterer::Run(store::ExpertId id, MutableBytes blob, ExpertDone* done) {
  const checkpoint::ExpertLayout& layout = checkpoint_.experts;
  for (int p = 0; p < checkpoint::kProjCount; ++p) {
    const auto proj = static_cast<Proj>(p);
    const store::vault::TensorPlace& place = tensors_[static_cast<size_t>(p)];
    const MutableBytes packed = blob.subspan(place.packed_offset, place.packed_size);
    const MutableBytes scales = blob.subspan(place.scales_offset, place.scales_size);
    const MatrixSlice slice = layout.Slice(id.layer_index, id.expert_index, proj);
    if (layout.encoding() == checkpoint::ExpertEncoding::kFloat && slice.contiguous()) {
      SMOE_TRY(RunContiguous(slice, packed, scales, proj, done));
      continue;
    }
    weights_.resize(uint64_t{slice.rows} * slice.cols);
    SMOE_TRY(checkpoint::ReadExpertMatrix(checkpoint_.files, layout, id.layer_index,
                                          id.expert_index, proj, rules_.allow_non_finite,
                                          weights_));
    SMOE_TRY(Quantise(weights_, slice, {packed, scales, 0}, proj, done));
  }
  return Ok();
}

Status ExpertShatterer::RunContiguous(const MatrixSlice& slice, MutableBytes packed,
                                      MutableBytes scales, Proj proj, ExpertDone* done) {
  const checkpoint::TensorInfo* info = checkpoint_.files.Find(slice.tensor_name);
  SMOE_CHECK(info != nullptr);
  const uint64_t element_bytes = tensor::DTypeBytes(info->dtype);
  const uint64_t weight_count = uint64_t{slice.rows} * slice.cols;
  source_.resize(kPieceWeights * element_bytes);
  weights_.resize(std::max<uint64_t>(weights_.size(), kPieceWeights));
  for (uint64_t first = 0; first < weight_count; first += kPieceWeights) {
    const uint64_t count = std::min(kPieceWeights, weight_count - first);
    const MutableBytes source = MutableBytes(source_).first(count * element_bytes);
    SMOE_TRY(checkpoint_.files.Read(*info, (slice.first + first) * element_bytes, source));
    const std::span<float> weights = std::span(weights_).first(count);
    tensor::ToF32({info->dtype, {count}, source}, 0, weights);
    const Target target{packed.subspan(tensor::PackedBytes(first, rules_.bits),
                                       tensor::PackedBytes(count, rules_.bits)),
                        scales.subspan(tensor::ScaleBytes(first, rules_.group_size),
                                       tensor::ScaleBytes(count, rules_.group_size)),
                        first};
    SMOE_TRY(Quantise(weights, slice, target, proj, done));
  }
  return Ok();
}

Status ExpertShatterer::Quantise(std::span<float> weights, const MatrixSlice& slice,
                                 const Target& target, Proj proj, ExpertDone* done) {
  const auto quantise = [&] {
    return tensor::QuantiseSmoe(weights, rules_.bits, rules_.group_size, rules_.quantiser,
                                target.packed, target.scales);
  };
  if (!quantise()) {
    // The quantiser has looked at every weight on its way: only now is it worth finding them.
    SMOE_TRY(MendWeights(weights, slice, target.first, done));
    SMOE_TRY(quantise());
  }
  if (rules_.measure_error) {
    done->errors[static_cast<size_t>(proj)].Add(tensor::MeasureError(
        weights, target.packed, target.scales, rules_.bits, rules_.group_size));
  }
  return Ok();
}

Status ExpertShatterer::MendWeights(std::span<float> weights, const MatrixSlice& slice,
                                    uint64_t first, ExpertDone* done) const {
  for (uint64_t i = 0; i < weights.size(); ++i) {
    const float weight = weights[i];
    if (std::fabs(weight) <= kScaleMax) continue;
    const uint64_t element = ElementIndex(slice, first + i);
    if (std::isfinite(weight)) {
      return Unsupported("tensor {}: element {} is {}, the largest scale of the format is {}",
                         slice.tensor_name, element, weight, kScaleMax);
    }
    if (!rules_.allow_non_finite) {
      return Corrupt(
          "tensor {}: element {} is {}, expected a finite number (--allow-non-finite makes it 0)",
          slice.tensor_name, element, weight);
    }
    weights[i] = 0;
    ++done->non_finite_count;
  }
  return Ok();
}

}  // namespace smoe::convert
