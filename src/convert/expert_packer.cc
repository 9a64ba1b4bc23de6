#include "convert/expert_packer.h"

#include <cmath>

#include "convert/pack_plan.h"

namespace smoe::convert {
namespace {

namespace records = store::records;
using checkpoint::NamedTensor;

// The only number of a tensor that the plan has found to be one F32.
Result<float> ReadScale(const checkpoint::TensorFiles& files, const NamedTensor& tensor,
                        bool is_inverse) {
  float stored = 0;
  SMOE_TRY(files.Read(*tensor.info, 0, std::as_writable_bytes(std::span(&stored, 1))));
  const float scale = is_inverse ? 1.0F / stored : stored;
  if (std::isfinite(stored) && stored > 0 && std::isfinite(scale) && scale > 0) return scale;
  return Corrupt("tensor {}: is {}, expected a finite number above 0{}", *tensor.name, stored,
                 is_inverse ? " whose inverse is one too" : "");
}

Status CheckScaleCodes(const NamedTensor& tensor, Bytes codes) {
  const uint64_t index = records::FindBadScaleCode(codes);
  if (index == codes.size()) return Ok();
  const auto code = std::to_integer<uint32_t>(codes[index]);
  const uint64_t cols = tensor.info->shape.back();
  return Corrupt("tensor {}: element {} (row {}, group {}) is 0x{:02x}, {}; expected 0x00 to 0x7e",
                 *tensor.name, index, index / cols, index % cols, code,
                 (code & 0x7F) == 0x7F ? "NaN" : "negative");
}

}  // namespace

ExpertPacker::ExpertPacker(const checkpoint::Checkpoint& checkpoint,
                           const records::ExpertRecordSpec& spec, const PackRules& rules)
    : checkpoint_(checkpoint), spec_(spec), rules_(rules) {
  for (size_t i = 0; i < records::kProjCount; ++i) {
    packed_[i].resize(spec.projs[i].bytes.packed);
    scales_[i].resize(spec.projs[i].bytes.scale);
  }
}

Status ExpertPacker::Run(records::ExpertKey key, uint32_t layer_index, MutableBytes record,
                         ExpertDone* done) {
  const bool moves = checkpoint_.experts.encoding() == checkpoint::ExpertEncoding::kNvfp4;
  for (size_t i = 0; i < records::kProjCount; ++i) {
    parts_.projs[i].packed = packed_[i];
    parts_.projs[i].scale = scales_[i];
    SMOE_TRY(moves ? Move(layer_index, key.expert, i) : Quantise(layer_index, key.expert, i, done));
  }
  return records::PackRecord(spec_, key, parts_, records::PartsOrder::kCheckpoint, record);
}

Status ExpertPacker::Move(uint32_t layer_index, uint32_t expert_index, size_t proj_index) {
  const checkpoint::TensorFiles& files = checkpoint_.files;
  SMOE_TRY_ASSIGN(const Nvfp4Source source,
                  FindNvfp4Source(checkpoint_, layer_index, expert_index,
                                  static_cast<checkpoint::Proj>(proj_index)));
  const checkpoint::LinearWeight& weight = source.weight;
  records::ProjParts& part = parts_.projs[proj_index];
  SMOE_TRY_ASSIGN(part.scale2, ReadScale(files, weight.global_scale, weight.global_is_inverse));
  part.input_scale.reset();
  if (source.input_scale.info != nullptr) {
    SMOE_TRY_ASSIGN(part.input_scale,
                    ReadScale(files, source.input_scale, weight.global_is_inverse));
  }
  SMOE_TRY(files.Read(*weight.scales.info, 0, scales_[proj_index]));
  SMOE_TRY(CheckScaleCodes(weight.scales, scales_[proj_index]));
  return files.Read(*weight.codes.info, 0, packed_[proj_index]);
}

Status ExpertPacker::Quantise(uint32_t layer_index, uint32_t expert_index, size_t proj_index,
                              ExpertDone* done) {
  const auto proj = static_cast<checkpoint::Proj>(proj_index);
  const records::ProjPlace& place = spec_.projs[proj_index];
  weights_.resize(uint64_t{place.n} * place.k);
  SMOE_TRY(checkpoint::ReadExpertMatrix(checkpoint_.files, checkpoint_.experts, layer_index,
                                        expert_index, proj, rules_.allow_non_finite, weights_));
  if (rules_.allow_non_finite) MendWeights(done);
  records::ProjParts& part = parts_.projs[proj_index];
  part.input_scale.reset();
  part.scale2 = tensor::Nvfp4GlobalScale(weights_);
  done->errors[proj_index].Add(tensor::QuantiseNvfp4(weights_, part.scale2, rules_.quantiser,
                                                     packed_[proj_index], scales_[proj_index]));
  return Ok();
}

void ExpertPacker::MendWeights(ExpertDone* done) {
  for (float& weight : weights_) {
    if (std::isfinite(weight)) continue;
    weight = 0;
    ++done->non_finite_count;
  }
}

}  // namespace smoe::convert
