#include "convert/synthesizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/stopwatch.h"
#include "convert/synth_shape.h"
#include "convert/synth_trunk.h"
#include "convert/workers.h"
#include "io/atomic_file.h"
#include "store/vault/annex.h"

namespace smoe::convert {
namespace {

// Room for the origin record before its content is known.
constexpr uint64_t kOriginBytesMax = uint64_t{64} << 10;

// What the tensors of a synthetic model say.
checkpoint::TrunkFacts FactsOf(const checkpoint::ModelConfig& config) {
  checkpoint::TrunkFacts facts;
  facts.prefix = "model.";
  facts.layer_is_sparse.assign(config.num_hidden_layers, true);
  facts.has_qk_norm = true;
  facts.head_is_tied = config.tie_word_embeddings;
  return facts;
}

std::vector<store::StoreLayer> LayersOf(const checkpoint::ModelConfig& config) {
  std::vector<store::StoreLayer> layers;
  for (uint32_t i = 0; i < config.num_hidden_layers; ++i) {
    layers.push_back({i, config.num_experts, i * config.num_experts});
  }
  return layers;
}

struct Plan {
  SynthShape shape;
  SynthRecipe recipe;
  SynthTrunk trunk;
  std::unique_ptr<StoreTarget> target;
  uint64_t out_bytes = 0;
};

Result<Plan> MakePlan(const std::string& shape, const std::string& out_path,
                      const SynthOptions& options) {
  Plan plan;
  SMOE_TRY_ASSIGN(plan.shape, FindSynthShape(shape, options.layers, options.vocab));
  const checkpoint::ModelConfig& config = plan.shape.config;
  SMOE_TRY_ASSIGN(plan.recipe, MakeSynthRecipe(config, options.routing_gini));
  SMOE_TRY_ASSIGN(plan.trunk, PlanSynthTrunk(config, plan.recipe, options.seed));
  const checkpoint::TrunkFacts facts = FactsOf(config);
  const std::vector<store::StoreLayer> layers = LayersOf(config);
  const TargetModel model{config, facts,   layers, config.hidden_size, config.moe_intermediate_size,
                          shape,  out_path};
  if (options.to == StoreKind::kVault) {
    SMOE_TRY_ASSIGN(plan.target, MakeVaultTarget(model, options.bits, options.group_size,
                                                 tensor::Quantiser::kMse));
  } else {
    SMOE_TRY_ASSIGN(plan.target, MakeRecordTarget(model, tensor::Nvfp4Quantiser::kMse));
  }
  plan.out_bytes = plan.target->expert_bytes() +
                   plan.target->file_bytes(plan.trunk.layout.total_bytes) +
                   plan.target->file_bytes(plan.shape.config_text.size()) +
                   plan.target->file_bytes(kOriginBytesMax);
  return plan;
}

SynthReport StartReport(const Plan& plan, const std::string& out_path,
                        const SynthOptions& options) {
  const checkpoint::ModelConfig& config = plan.shape.config;
  SynthReport report;
  report.shape = plan.shape.name;
  report.out_path = out_path;
  report.format = plan.target->format_name();
  report.model_type = config.model_type;
  report.layer_count = config.num_hidden_layers;
  report.experts_per_layer = config.num_experts;
  report.experts_per_token = config.num_experts_per_tok;
  report.vocab_size = config.vocab_size;
  report.expert_bytes = plan.target->expert_bytes();
  report.trunk_bytes = plan.trunk.layout.total_bytes;
  report.out_bytes = plan.out_bytes;
  report.skew = plan.recipe.skew;
  report.seed = options.seed;
  return report;
}

// A record store has a config.json of its own, which would replace the shape's.
Status CheckSparesShape(const std::string& config_path, const std::string& out_path) {
  if (config_path.empty()) return Ok();
  const std::filesystem::path folder = std::filesystem::path(config_path).parent_path();
  std::error_code ignored;
  if (std::filesystem::equivalent(folder.empty() ? "." : folder, out_path, ignored)) {
    return Invalid("{}: is the folder of {}, which is being read; name another one to write",
                   out_path, config_path);
  }
  return io::CheckNoInput(out_path, {&config_path, 1});
}

Status CheckFreeSpace(const Plan& plan, const std::string& out_path) {
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(out_path));
  if (free >= plan.out_bytes) return Ok();
  return Exhausted("{}: needs {} bytes (experts of {} and a trunk of {}), the drive has {} free",
                   out_path, plan.out_bytes, plan.target->expert_bytes(),
                   plan.trunk.layout.total_bytes, free);
}

Json OriginOf(const SynthReport& report, const SynthOptions& options) {
  Json origin;
  origin.Set("writer", options.writer)
      .Set("synthetic", report.shape)
      .Set("seed", report.seed)
      .Set("format", report.format)
      .Set("routing_spread", report.skew.spread);
  return origin;
}

RandomExperts RandomOf(const Plan& plan, uint64_t seed) {
  RandomExperts random;
  random.seed = seed;
  random.in_deviation = plan.recipe.in_deviation;
  random.experts_per_layer = plan.shape.config.num_experts;
  for (const LayerRecipe& layer : plan.recipe.layers) {
    random.down_deviations.push_back(layer.down_deviation);
  }
  return random;
}

Status WriteTrunk(const Plan& plan, uint64_t seed, Progress& progress) {
  StoreTarget& target = *plan.target;
  SMOE_TRY(target.BeginFile(store::vault::kSectionTrunk, plan.trunk.layout.total_bytes));
  SMOE_TRY(StreamSynthTrunk(
      plan.trunk, seed, [&](Bytes piece) { return target.AppendFile(piece); }, progress));
  return target.EndFile();
}

// The trunk is the first piece of work, so that it goes on beside the experts.
Status WriteWeights(const Plan& plan, const SynthOptions& options, const SynthReport& report,
                    Progress& progress) {
  StoreTarget& target = *plan.target;
  const RandomExperts random = RandomOf(plan, options.seed);
  const size_t expert_count = size_t{report.layer_count} * report.experts_per_layer;
  const ProgressPhase phase(progress, "writing", report.expert_bytes + report.trunk_bytes);
  return RunWorkers(
      expert_count + 1, options.threads, [&] { return target.MakeFiller(random); },
      [&](size_t piece, std::unique_ptr<ExpertFiller>& filler) -> Status {
        if (piece == 0) return WriteTrunk(plan, options.seed, progress);
        SMOE_TRY(CheckGoesOn(progress));
        SMOE_TRY(filler->Fill(piece - 1));
        SMOE_TRY(target.Write(piece - 1, filler->buffer()));
        progress.Advance(filler->buffer().size());
        return Ok();
      });
}

Status WriteAll(const Plan& plan, const SynthOptions& options, const SynthReport& report,
                Progress& progress) {
  StoreTarget& target = *plan.target;
  SMOE_TRY(WriteWeights(plan, options, report, progress));
  const std::string& config = plan.shape.config_text;
  SMOE_TRY(target.BeginFile(store::vault::kSectionConfig, config.size()));
  SMOE_TRY(target.AppendFile(AsBytes(std::string_view(config))));
  SMOE_TRY(target.EndFile());
  SMOE_TRY(target.Finish(OriginOf(report, options)));
  return target.Commit();
}

}  // namespace

Json SynthReport::ToJson() const {
  Json routing;
  routing.Set("spread", skew.spread)
      .Set("gini", skew.gini)
      .Set("busiest_8_percent_share", skew.busy_share);
  Json json;
  json.Set("shape", shape)
      .Set("out", out_path)
      .Set("format", format)
      .Set("model_type", model_type)
      .Set("layers", layer_count)
      .Set("experts_per_layer", experts_per_layer)
      .Set("experts_per_token", experts_per_token)
      .Set("vocab_size", vocab_size)
      .Set("expert_bytes", expert_bytes)
      .Set("trunk_bytes", trunk_bytes)
      .Set("out_bytes", out_bytes)
      .Set("expected_routing", std::move(routing))
      .Set("seed", seed)
      .Set("seconds", seconds);
  return json;
}

Result<SynthReport> Synthesize(const std::string& shape, const std::string& out_path,
                               const SynthOptions& options, Progress& progress) {
  const Stopwatch stopwatch;
  if (out_path.empty()) return Invalid("OUT: the name is empty");
  SMOE_TRY(CheckThreadCount(options.threads));
  SMOE_TRY_ASSIGN(const Plan plan, MakePlan(shape, out_path, options));
  SMOE_TRY(CheckSparesShape(plan.shape.config_path, out_path));
  SynthReport report = StartReport(plan, out_path, options);
  SMOE_TRY(
      plan.target->CheckPlace({std::string(store::vault::kSectionConfig)}, false, options.force));
  SMOE_TRY(CheckFreeSpace(plan, out_path));
  if (options.dry_run) return report;
  SMOE_TRY(plan.target->Open(false, options.force));
  Status written = WriteAll(plan, options, report, progress);
  if (!written) return While(fmt::format("writing {}", out_path), std::move(written));
  report.seconds = stopwatch.seconds();
  return report;
}

}  // namespace smoe::convert
