#include "convert/trunk.h"

#include <algorithm>

#include "checkpoint/expert_names.h"
#include "checkpoint/linear_weight.h"

namespace smoe::convert {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

// Source: github.com/huggingface/safetensors 0.6, tensor.rs, order of enum Dtype.
int DTypeRank(tensor::DType dtype) {
  using enum tensor::DType;
  constexpr tensor::DType kOrder[] = {kBool, kU8,   kI8,  kF8E5M2, kF8E4M3, kF8E8M0, kI16, kU16,
                                      kF16,  kBF16, kI32, kU32,    kF32,    kF64,    kI64, kU64};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), dtype) -
                          std::begin(kOrder));
}

template <class IsTrunk>
Result<TrunkPlan> Plan(const checkpoint::TensorFiles& files, const IsTrunk& is_trunk) {
  std::vector<std::pair<std::string, checkpoint::TensorInfo>> tensors;
  for (const auto& [name, info] : files.tensors()) {
    if (is_trunk(name)) tensors.emplace_back(name, info);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return DTypeRank(a.second.dtype) > DTypeRank(b.second.dtype);
  });
  TrunkPlan plan;
  std::vector<checkpoint::TensorSpec> specs;
  for (const auto& [name, info] : tensors) {
    specs.push_back({name, info.dtype, info.shape});
    plan.sources.push_back(info);
  }
  SMOE_TRY_ASSIGN(plan.layout, checkpoint::LayOutSafetensors(specs, {}));
  return plan;
}

// A trunk that could never be loaded is not worth writing.
Status CheckTrunkScales(const checkpoint::Checkpoint& checkpoint) {
  for (const auto& [name, info] : checkpoint.files.tensors()) {
    std::string_view stem;
    if (!checkpoint::IsLinearName(name, &stem) || info.dtype != tensor::DType::kU8) continue;
    if (checkpoint.experts.IsExpertTensor(name)) continue;
    const auto linear = checkpoint::FindLinear(checkpoint.files, stem, checkpoint.config);
    // A tower that is not run may hold what this build does not know.
    if (!linear && !name.starts_with(checkpoint.facts.prefix + "layers.")) continue;
    if (!linear) return While(checkpoint.path, Status(Unexpected(linear.error())));
    if (Status status = checkpoint::CheckScales(checkpoint.files, *linear); !status) {
      return While(checkpoint.path, std::move(status));
    }
  }
  return Ok();
}

}  // namespace

Result<TrunkPlan> PlanTrunk(const checkpoint::Checkpoint& checkpoint) {
  SMOE_TRY(CheckTrunkScales(checkpoint));
  const checkpoint::ExpertLayout& experts = checkpoint.experts;
  return Plan(checkpoint.files, [&](std::string_view name) {
    return !experts.IsExpertTensor(name) || (experts.has_biases() && name.ends_with("bias"));
  });
}

Result<TrunkPlan> PlanTrunk(const checkpoint::TensorFiles& files) {
  return Plan(files, [](std::string_view name) {
    return !checkpoint::ParseExpertName(name) || name.ends_with("bias");
  });
}

Status StreamTrunk(const checkpoint::TensorFiles& files, const TrunkPlan& plan,
                   const TrunkSink& sink, Progress& progress) {
  SMOE_TRY(sink(AsBytes(std::string_view(plan.layout.header))));
  progress.Advance(plan.layout.header.size());
  std::vector<std::byte> piece(kPieceBytes);
  for (const checkpoint::TensorInfo& source : plan.sources) {
    for (uint64_t at = 0; at < source.size; at += kPieceBytes) {
      const uint64_t size = std::min(kPieceBytes, source.size - at);
      const MutableBytes into = MutableBytes(piece).first(size);
      SMOE_TRY(files.Read(source, at, into));
      SMOE_TRY(sink(into));
      progress.Advance(size);
    }
  }
  return Ok();
}

}  // namespace smoe::convert
