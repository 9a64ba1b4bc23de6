#include "convert/shatter_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "store/vault/arch.h"

namespace smoe::convert {
namespace {

namespace vault = store::vault;

// Room for the origin section before its content is known.
constexpr uint64_t kOriginBytesMax = uint64_t{64} << 10;

Json OptionsJson(const ShatterOptions& options, bool include_mtp) {
  const auto limit = [](const std::optional<uint32_t>& value) {
    return value ? Json(*value) : Json();
  };
  Json json;
  json.Set("bits", static_cast<uint32_t>(options.bits));
  json.Set("group_size", options.group_size);
  json.Set("quantiser", QuantiserName(options.quantiser));
  json.Set("trunk_format", checkpoint::TrunkFormatsText(options.trunk_formats));
  json.Set("split", options.split);
  json.Set("max_layers", limit(options.max_layers));
  json.Set("max_experts", limit(options.max_experts));
  json.Set("measure_error", options.measure_error);
  json.Set("allow_non_finite", options.allow_non_finite);
  json.Set("include_mtp", include_mtp);
  json.Set("writer", options.writer);
  return json;
}

uint64_t SourceBytesPerExpert(const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::ExpertLayout& layout = checkpoint.experts;
  const auto slice = layout.Slice(layout.layers().front().layer_index, 0, checkpoint::Proj::kGate);
  const checkpoint::TensorInfo* info = checkpoint.files.Find(slice.tensor_name);
  const uint64_t element_bytes = info == nullptr ? 2 : tensor::DTypeBytes(info->dtype);
  return checkpoint::kProjCount * uint64_t{slice.rows} * slice.cols * element_bytes;
}

Status CheckOptions(const checkpoint::Checkpoint& checkpoint, const ShatterOptions& options) {
  SMOE_TRY(tensor::CheckGroupSize(options.group_size));
  if (options.max_layers == 0U) return Invalid("--max-layers: 0, expected at least 1");
  if (options.max_experts == 0U) return Invalid("--max-experts: 0, expected at least 1");
  if (checkpoint.experts.encoding() == checkpoint::ExpertEncoding::kNvfp4) {
    return Unsupported(
        "{}: its experts are NVFP4, which a vault cannot hold without loss; smoe pack makes a "
        "record store of them",
        checkpoint.path);
  }
  return Ok();
}

std::string ScoutPath(const std::string& out_path) {
  std::filesystem::path path(out_path);
  return path.replace_extension(".scout.safetensors").string();
}

}  // namespace

const char* QuantiserName(tensor::Quantiser quantiser) {
  return quantiser == tensor::Quantiser::kReference ? "reference" : "mse";
}

Status DescribeModel(const checkpoint::ModelConfig& config, const checkpoint::TrunkFacts& facts,
                     uint32_t hidden_size, uint32_t intermediate_size, vault::VaultSpec* spec) {
  const std::vector<bool>& sparse = facts.layer_is_sparse;
  vault::ArchFacts arch;
  arch.has_qk_norm = facts.has_qk_norm;
  arch.has_dense_layer_0 = !sparse.empty() && !sparse.front();
  arch.moe_ffn_dim = intermediate_size;
  const bool has_dense = std::find(sparse.begin(), sparse.end(), false) != sparse.end();
  SMOE_TRY_ASSIGN(spec->arch, vault::BuildArchBlock(config, arch));
  spec->ffn_dim = vault::HeaderFfnDim(config, has_dense, intermediate_size);
  spec->hidden_size = hidden_size;
  spec->intermediate_size = intermediate_size;
  spec->vocab_size = config.vocab_size;
  return Ok();
}

Result<vault::VaultSpec> MakeVaultSpec(const checkpoint::Checkpoint& checkpoint,
                                       const ShatterOptions& options, bool include_mtp) {
  SMOE_TRY(CheckOptions(checkpoint, options));
  const checkpoint::ExpertLayout& layout = checkpoint.experts;
  vault::VaultSpec spec;
  for (const checkpoint::ExpertLayer& layer : layout.layers()) {
    if (layer.is_mtp && !include_mtp) continue;
    ++spec.num_moe_layers;
    spec.max_experts_per_layer = std::max(spec.max_experts_per_layer, layer.expert_count);
    if (options.max_layers && spec.num_moe_layers > *options.max_layers) continue;
    const uint32_t count = std::min(layer.expert_count, options.max_experts.value_or(UINT32_MAX));
    for (uint32_t e = 0; e < count; ++e) spec.experts.push_back({layer.layer_index, e});
  }
  SMOE_TRY(DescribeModel(checkpoint.config, checkpoint.facts, layout.hidden_size(),
                         layout.intermediate_size(), &spec));
  spec.bits = options.bits;
  spec.group_size = options.group_size;
  return spec;
}

Result<ShatterPlan> PlanShatter(const checkpoint::Checkpoint& checkpoint,
                                const std::string& out_path, const ShatterOptions& options) {
  const bool include_mtp =
      options.include_mtp.value_or(options.quantiser == tensor::Quantiser::kReference);
  SMOE_TRY_ASSIGN(vault::VaultSpec spec, MakeVaultSpec(checkpoint, options, include_mtp));
  SMOE_TRY_ASSIGN(vault::VaultPlan vault_plan, vault::VaultPlan::Create(std::move(spec)));
  SMOE_TRY_ASSIGN(TrunkPlan trunk, PlanTrunk(checkpoint, options.trunk_formats));
  ShatterPlan plan{std::move(vault_plan), std::move(trunk), {}, {}, include_mtp, 0, 0, {}, {}};
  plan.expert_source_bytes = SourceBytesPerExpert(checkpoint);
  plan.out_bytes = plan.vault.blobs_end();
  if (options.split) {
    plan.scout_path = ScoutPath(out_path);
  } else {
    plan.texts = TextsOf(checkpoint.side_files);
    std::vector<uint64_t> sizes = {plan.trunk.layout.total_bytes, kOriginBytesMax};
    for (const AnnexText& text : plan.texts) sizes.push_back(text.content.size());
    plan.out_bytes = plan.vault.FileBytesWithAnnex(sizes);
  }
  SMOE_TRY_ASSIGN(plan.source, SourceJson(checkpoint, false));
  SMOE_TRY_ASSIGN(Json timed_source, SourceJson(checkpoint, true));
  plan.identity.Set("source", std::move(timed_source));
  plan.identity.Set("options", OptionsJson(options, include_mtp));
  return plan;
}

Json ErrorsJson(const std::array<tensor::QuantisationError, checkpoint::kProjCount>& errors) {
  Json json;
  for (size_t i = 0; i < errors.size(); ++i) {
    Json entry;
    entry.Set("weights", errors[i].weight_count);
    entry.Set("rmse", errors[i].Rmse());
    entry.Set("error_max", errors[i].error_max);
    const double snr = errors[i].SnrDb();
    entry.Set("snr_db", std::isfinite(snr) ? Json(snr) : Json());  // null: no error at all
    json.Set(checkpoint::ProjName(static_cast<checkpoint::Proj>(i)), std::move(entry));
  }
  return json;
}

Json OriginOf(const ShatterPlan& plan, const ShatterOptions& options, const ShatterReport& report) {
  Json origin;
  origin.Set("writer", options.writer);
  origin.Set("source", plan.source);
  origin.Set("quantiser", QuantiserName(options.quantiser));
  origin.Set("bits", static_cast<uint32_t>(options.bits));
  origin.Set("group_size", options.group_size);
  origin.Set("naming", report.naming);
  if (report.trunk_formats != checkpoint::TrunkFormats{}) {
    origin.Set("trunk", TrunkFormatJson(report.trunk_formats, report.trunk_errors));
  }
  if (report.non_finite_count != 0) origin.Set("non_finite_as_zero", report.non_finite_count);
  if (report.errors) origin.Set("errors", ErrorsJson(*report.errors));
  return origin;
}

}  // namespace smoe::convert
