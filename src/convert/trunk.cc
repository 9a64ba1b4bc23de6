#include "convert/trunk.h"

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/expert_names.h"
#include "checkpoint/linear_weight.h"
#include "tensor/finite.h"
#include "tensor/quantise_int8.h"
#include "tensor/round_bf16.h"

namespace smoe::convert {
namespace {

using checkpoint::LinearKind;
using checkpoint::LinearWeight;
using checkpoint::TrunkFormat;
using checkpoint::TrunkPart;
using tensor::DType;
using tensor::QuantisationError;
using tensor::WeightFormat;

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
// Weights that are converted at once: 1 MiB in f32, in whole tiles of int8.
constexpr uint64_t kPieceWeights = uint64_t{1} << 18;

// Source: github.com/huggingface/safetensors 0.6, tensor.rs, order of enum Dtype.
int DTypeRank(DType dtype) {
  using enum DType;
  constexpr DType kOrder[] = {kBool, kU8,   kI8,  kF8E5M2, kF8E4M3, kF8E8M0, kI16, kU16,
                              kF16,  kBF16, kI32, kU32,    kF32,    kF64,    kI64, kU64};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), dtype) -
                          std::begin(kOrder));
}

// Is there nothing to convert?
bool IsKept(TrunkFormat asked, const LinearWeight& weight, WeightFormat chosen) {
  if (asked == TrunkFormat::kSource) return true;
  if (weight.kind == LinearKind::kInt8) return chosen == WeightFormat::kInt8;
  if (weight.kind == LinearKind::kQ4) return true;
  return weight.kind == LinearKind::kFloat &&
         checkpoint::FormatOf(weight.codes.info->dtype) == chosen;
}

// The tensors of the image that an entry becomes, in their order.
std::vector<checkpoint::TensorSpec> SpecsOf(const std::string& name, const TrunkEntry& entry) {
  if (!entry.is_converted) return {{name, entry.source.dtype, entry.source.shape}};
  std::string_view stem;
  SMOE_CHECK(checkpoint::IsLinearName(name, &stem));
  const std::string weight = fmt::format("{}.weight", stem);
  const uint64_t rows = entry.matrix.shape[0];
  const uint64_t cols = entry.matrix.shape[1];
  if (entry.format == WeightFormat::kInt8) {
    return {{weight, DType::kI8, {rows, cols}},
            {fmt::format("{}.{}", stem, checkpoint::kInt8ScaleName),
             DType::kF32,
             {rows, CeilDiv(cols, uint64_t{tensor::kInt8Group})}}};
  }
  if (entry.format == WeightFormat::kSmoeQ4) {
    return {{weight, DType::kU8, {rows, cols / 2}},
            {fmt::format("{}.{}", stem, checkpoint::kQ4ScaleName),
             DType::kF16,
             {rows, cols / checkpoint::kQ4Group}}};
  }
  return {{weight, DType::kBF16, {rows, cols}}};
}

class Planner {
 public:
  Planner(const checkpoint::TensorFiles& files, const checkpoint::ModelConfig& config,
          const checkpoint::TrunkFacts& facts, const checkpoint::TrunkFormats& formats)
      : files_(files), config_(config), facts_(facts), formats_(formats) {}

  template <class IsTrunk>
  Result<TrunkPlan> Plan(const IsTrunk& is_trunk) {
    for (const auto& [name, info] : files_.tensors()) {
      if (is_trunk(name)) SMOE_TRY(FindConverted(name));
    }
    std::vector<std::pair<std::string, TrunkEntry>> entries;
    for (const auto& [name, info] : files_.tensors()) {
      if (!is_trunk(name) || replaced_.contains(name)) continue;
      const auto converted = converted_.find(name);
      TrunkEntry entry = converted == converted_.end() ? TrunkEntry{} : converted->second;
      if (!entry.is_converted) {
        entry.source = info;
        NoteCodes(name, &entry);
      }
      entries.emplace_back(name, std::move(entry));
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return RankOf(a.first, a.second) > RankOf(b.first, b.second);
    });
    TrunkPlan plan;
    plan.formats = formats_;
    std::vector<checkpoint::TensorSpec> specs;
    for (auto& [name, entry] : entries) {
      for (checkpoint::TensorSpec& spec : SpecsOf(name, entry)) specs.push_back(std::move(spec));
      plan.entries.push_back(std::move(entry));
    }
    SMOE_TRY_ASSIGN(plan.layout, checkpoint::LayOutSafetensors(specs, {}));
    return plan;
  }

 private:
  // Scales of ours lie with their codes also where both are copied.
  static int RankOf(const std::string& name, const TrunkEntry& entry) {
    if (name.ends_with(checkpoint::kInt8ScaleName)) return DTypeRank(DType::kI8);
    if (name.ends_with(checkpoint::kQ4ScaleName)) return DTypeRank(DType::kU8);
    return DTypeRank(SpecsOf(name, entry).front().dtype);
  }

  // Notes the matrix if it is to be converted, and the tensors that then go with the source.
  Status FindConverted(const std::string& name) {
    std::string_view stem;
    if (!checkpoint::IsLinearName(name, &stem)) return Ok();
    auto part = checkpoint::FindTrunkPart(stem, facts_.prefix, config_.num_hidden_layers);
    if (!part) return Ok();
    if (part == TrunkPart::kEmbedding && facts_.head_is_tied) part = TrunkPart::kHead;
    if (formats_.Of(*part) == TrunkFormat::kSource) return Ok();
    SMOE_TRY_ASSIGN(LinearWeight weight, checkpoint::FindLinear(files_, stem, config_));
    if (weight.shape.size() != 2) return Ok();
    const WeightFormat format = checkpoint::ChooseFormat(formats_.Of(*part), weight);
    if (IsKept(formats_.Of(*part), weight, format)) return Ok();
    for (const checkpoint::NamedTensor& tensor : {weight.scales, weight.global_scale}) {
      if (tensor.name != nullptr) replaced_.insert(*tensor.name);
    }
    converted_[name] = {{}, true, false, std::move(weight), format, *part};
    return Ok();
  }

  // What is no matrix of ours is copied whatever it is.
  void NoteCodes(const std::string& name, TrunkEntry* entry) const {
    std::string_view stem;
    if (!checkpoint::IsLinearName(name, &stem)) return;
    Result<LinearWeight> weight = checkpoint::FindLinear(files_, stem, config_);
    if (!weight || (weight->kind != LinearKind::kInt8 && weight->kind != LinearKind::kQ4)) return;
    entry->has_codes = true;
    entry->matrix = std::move(*weight);
  }

  const checkpoint::TensorFiles& files_;
  const checkpoint::ModelConfig& config_;
  const checkpoint::TrunkFacts& facts_;
  const checkpoint::TrunkFormats& formats_;
  std::map<std::string, TrunkEntry, std::less<>> converted_;  // by the name of the codes
  std::set<std::string, std::less<>> replaced_;
};

// A trunk that could never be loaded is not worth writing.
Status CheckTrunkScales(const checkpoint::Checkpoint& checkpoint) {
  for (const auto& [name, info] : checkpoint.files.tensors()) {
    std::string_view stem;
    if (!checkpoint::IsLinearName(name, &stem) || info.dtype != DType::kU8) continue;
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

// One matrix, in its new format, to the sink.
class MatrixStream {
 public:
  MatrixStream(const checkpoint::TensorFiles& files, const TrunkEntry& entry,
               const std::function<Status(Bytes)>& sink)
      : files_(files),
        entry_(entry),
        sink_(sink),
        rows_(entry.matrix.shape[0]),
        cols_(entry.matrix.shape[1]) {}

  Status Run() {
    if (cols_ == 0) return Ok();
    constexpr uint64_t kRows = tensor::kInt8TileRows;
    const uint64_t step = std::max<uint64_t>(kPieceWeights / cols_ / kRows, 1) * kRows;
    for (uint64_t first = 0; first < rows_; first += step) {
      Status done = Convert(first, std::min(step, rows_ - first));
      if (!done) return While(fmt::format("tensor {}", *entry_.matrix.codes.name), std::move(done));
    }
    for (uint64_t at = 0; at < scales_.size(); at += kPieceBytes) {
      const uint64_t size = std::min<uint64_t>(kPieceBytes, scales_.size() - at);
      SMOE_TRY(sink_(Bytes(scales_).subspan(at, size)));
    }
    return Ok();
  }
  const QuantisationError& error() const { return error_; }

 private:
  Status Convert(uint64_t first_row, uint64_t row_count) {
    weights_.resize(row_count * cols_);
    SMOE_TRY(checkpoint::ReadLinearRows(files_, entry_.matrix, first_row, weights_, &staging_));
    if (const auto bad = tensor::FindNonFinite(DType::kF32, std::as_bytes(std::span(weights_)))) {
      return Corrupt("element {} is NaN or infinite, weights must be finite",
                     first_row * cols_ + *bad);
    }
    if (entry_.format == WeightFormat::kInt8) return ToInt8(row_count);
    if (entry_.format == WeightFormat::kSmoeQ4) return ToQ4(first_row);
    return ToBf16(first_row);
  }

  Status ToInt8(uint64_t row_count) {
    tensor::Int8Target tiles;
    tiles.rows = static_cast<uint32_t>(row_count);
    tiles.cols = static_cast<uint32_t>(cols_);
    tile_codes_.resize(tensor::Int8CodeBytes(row_count, cols_).value());
    tile_scales_.resize(tensor::Int8ScaleBytes(row_count, cols_).value());
    tiles.codes = tile_codes_;
    tiles.scales = tile_scales_;
    SMOE_TRY_ASSIGN(const QuantisationError error,
                    tensor::QuantiseInt8(tiles, 0, tiles.rows, weights_));
    error_.Add(error);
    codes_.resize(row_count * cols_);
    const uint64_t scale_bytes =
        row_count * CeilDiv(cols_, uint64_t{tensor::kInt8Group}) * sizeof(float);
    tensor::UntileInt8(tensor::Int8View(tiles), 0, tiles.rows, codes_, MoreScales(scale_bytes));
    return SinkCodes();
  }

  Status ToQ4(uint64_t first_row) {
    codes_.resize(tensor::PackedBytes(weights_.size(), tensor::SmoeBits::kQ4));
    const MutableBytes scales =
        MoreScales(tensor::ScaleBytes(weights_.size(), checkpoint::kQ4Group));
    Status coded = tensor::QuantiseSmoe(weights_, tensor::SmoeBits::kQ4, checkpoint::kQ4Group,
                                        tensor::Quantiser::kMse, codes_, scales);
    if (!coded) {
      return While(fmt::format("counted from element {}", first_row * cols_), std::move(coded));
    }
    error_.Add(tensor::MeasureError(weights_, codes_, scales, tensor::SmoeBits::kQ4,
                                    checkpoint::kQ4Group));
    return SinkCodes();
  }

  Status ToBf16(uint64_t first_row) {
    codes_.resize(weights_.size() * sizeof(uint16_t));
    error_.Add(tensor::RoundToBf16(weights_, codes_));
    if (const auto bad = tensor::FindNonFinite(DType::kBF16, codes_)) {
      return Unsupported("element {} is {}, beyond what bf16 holds", first_row * cols_ + *bad,
                         weights_[*bad]);
    }
    return SinkCodes();
  }

  MutableBytes MoreScales(uint64_t bytes) {
    const uint64_t at = scales_.size();
    scales_.resize(at + bytes);
    return MutableBytes(scales_).subspan(at);
  }

  Status SinkCodes() {
    for (uint64_t at = 0; at < codes_.size(); at += kPieceBytes) {
      const uint64_t size = std::min<uint64_t>(kPieceBytes, codes_.size() - at);
      SMOE_TRY(sink_(Bytes(codes_).subspan(at, size)));
    }
    return Ok();
  }

  const checkpoint::TensorFiles& files_;
  const TrunkEntry& entry_;
  const std::function<Status(Bytes)>& sink_;
  const uint64_t rows_;
  const uint64_t cols_;
  QuantisationError error_;
  std::vector<float> weights_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> tile_codes_;
  std::vector<std::byte> tile_scales_;
  std::vector<std::byte> codes_;
  std::vector<std::byte> scales_;  // of the rows until now
};

}  // namespace

Result<TrunkPlan> PlanTrunk(const checkpoint::Checkpoint& checkpoint,
                            const checkpoint::TrunkFormats& formats) {
  SMOE_TRY(CheckTrunkScales(checkpoint));
  const checkpoint::ExpertLayout& experts = checkpoint.experts;
  return Planner(checkpoint.files, checkpoint.config, checkpoint.facts, formats)
      .Plan([&](std::string_view name) {
        return !experts.IsExpertTensor(name) || (experts.has_biases() && name.ends_with("bias"));
      });
}

Result<TrunkPlan> PlanTrunk(const checkpoint::TensorFiles& files,
                            const checkpoint::ModelConfig& config,
                            const checkpoint::TrunkFacts& facts,
                            const checkpoint::TrunkFormats& formats) {
  return Planner(files, config, facts, formats).Plan([](std::string_view name) {
    return !checkpoint::ParseExpertName(name) || name.ends_with("bias");
  });
}

Status StreamTrunk(const checkpoint::TensorFiles& files, const TrunkPlan& plan,
                   const TrunkSink& sink, Progress& progress, TrunkErrors* errors) {
  *errors = {};
  const std::function<Status(Bytes)> counted = [&](Bytes piece) -> Status {
    SMOE_TRY(sink(piece));
    progress.Advance(piece.size());
    return Ok();
  };
  SMOE_TRY(counted(AsBytes(std::string_view(plan.layout.header))));
  std::vector<std::byte> piece(kPieceBytes);
  for (const TrunkEntry& entry : plan.entries) {
    if (entry.is_converted) {
      MatrixStream stream(files, entry, counted);
      SMOE_TRY(stream.Run());
      (*errors)[static_cast<size_t>(entry.part)].Add(stream.error());
      continue;
    }
    // The copy gets a checksum of its own, which would vouch for them.
    if (entry.has_codes) SMOE_TRY(checkpoint::CheckScales(files, entry.matrix));
    for (uint64_t at = 0; at < entry.source.size; at += kPieceBytes) {
      const MutableBytes into =
          MutableBytes(piece).first(std::min(kPieceBytes, entry.source.size - at));
      SMOE_TRY(files.Read(entry.source, at, into));
      SMOE_TRY(counted(into));
    }
  }
  return Ok();
}

std::string TrunkFormatText(const checkpoint::TrunkFormats& formats, const TrunkErrors& errors) {
  std::string text = checkpoint::TrunkFormatsText(formats);
  const char* separator = ": ";
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i].weight_count == 0) continue;
    text += fmt::format("{}{} (error {:.3g} %)", separator,
                        checkpoint::TrunkPartName(static_cast<TrunkPart>(i)),
                        100 * errors[i].RelativeRmse());
    separator = ", ";
  }
  return text;
}

Json TrunkFormatJson(const checkpoint::TrunkFormats& formats, const TrunkErrors& errors) {
  Json parts(Json::Object{});
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i].weight_count == 0) continue;
    Json entry;
    entry.Set("weights", errors[i].weight_count)
        .Set("rmse", errors[i].Rmse())
        .Set("relative_rmse", errors[i].RelativeRmse())
        .Set("error_max", errors[i].error_max);
    parts.Set(checkpoint::TrunkPartName(static_cast<TrunkPart>(i)), std::move(entry));
  }
  Json json;
  json.Set("format", checkpoint::TrunkFormatsText(formats)).Set("parts", std::move(parts));
  return json;
}

}  // namespace smoe::convert
