// smoe plan SHAPE_OR_MODEL
//
// How memory would be divided and how fast the model could be, without running or converting it.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>

#include "base/core_count.h"
#include "base/json.h"
#include "base/memory_pressure.h"
#include "base/memory_rate.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "convert/synth_shape.h"
#include "engine/budget.h"
#include "engine/forecast.h"
#include "engine/model_demand.h"
#include "io/drive_meter.h"
#include "tensor/quantise.h"

namespace smoe::cli {

namespace {

constexpr uint32_t kReadsAtOnce = 8;
constexpr size_t kReadsMax = 1024;
constexpr double kDriveSeconds = 0.5;
constexpr int kDramReadings = 5;

struct Options {
  ModelOptions model;
  std::string bits = "4";
  std::optional<uint32_t> layers;
  uint32_t prompt_tokens = 512;
  std::optional<double> drive_rate;  // GB/s
  std::optional<double> dram_rate;
  bool json = false;
};

// A rate in bytes per second, 0 if it is not known, and where it comes from.
struct Rate {
  double value = 0;
  std::string source;
};

// What is planned for.
struct Subject {
  std::string text;
  engine::BudgetDemand demand;
  uint64_t expert_bytes = 0;  // that a read brings
  uint64_t trunk_read_bytes = 0;
  Rate drive;
};

bool IsShape(const std::string& name) {
  const auto presets = convert::SynthPresets();
  return name.ends_with(".json") ||
         std::ranges::any_of(presets, [&](const auto& preset) { return preset.name == name; });
}

Result<Subject> SubjectOfShape(const Options& options, const engine::EngineOptions& engine) {
  SMOE_TRY_ASSIGN(const convert::SynthShape shape,
                  convert::FindSynthShape(options.model.model, options.layers, std::nullopt));
  const checkpoint::ModelConfig& config = shape.config;
  const auto bits = options.bits == "2" ? tensor::SmoeBits::kQ2 : tensor::SmoeBits::kQ4;
  constexpr uint32_t kGroup = 64;  // the default of smoe shatter
  const uint64_t weights = uint64_t{config.hidden_size} * config.moe_intermediate_size;
  Subject subject;
  subject.demand = engine::DemandOf(config, engine);
  const engine::ShapeTrunk trunk = engine::TrunkOfShape(config, engine::ChooseTrunkFormats(engine));
  subject.demand.trunk_bytes = trunk.bytes;
  subject.trunk_read_bytes = trunk.token_read_bytes;
  subject.demand.slot_bytes = RoundUp(
      3 * (tensor::PackedBytes(weights, bits) + tensor::ScaleBytes(weights, kGroup)), kPageBytes);
  subject.demand.layer_count = config.num_hidden_layers;
  subject.demand.expert_count = config.num_hidden_layers * config.num_experts;
  subject.demand.reads_page_cache = options.model.buffered;
  subject.expert_bytes = subject.demand.slot_bytes;
  subject.text =
      fmt::format("{}, not converted: smoe-q{} group {}", shape.name, options.bits, kGroup);
  subject.drive.source = "not measured: no file yet; say it with --drive-rate";
  return subject;
}

// Random reads of whole experts, as the engine does them.
Result<double> MeasureDrive(const store::ModelFiles& files, io::ReadBackend backend) {
  const store::ExpertStore& store = *files.experts;
  std::vector<io::ReadRange> ranges;
  std::mt19937_64 random(1);
  const auto layers = store.layers();
  if (layers.empty()) return Invalid("{}: no layer with experts", files.path);
  for (size_t i = 0; i < kReadsMax; ++i) {
    const store::StoreLayer& layer = layers[random() % layers.size()];
    const store::ExpertLocation location =
        store.Locate({layer.layer_index, static_cast<uint32_t>(random() % layer.expert_count)});
    for (uint32_t e = 0; e < location.extent_count; ++e) {
      const store::ExpertExtent& extent = location.extents[e];
      ranges.push_back({.fd = extent.fd, .offset = extent.offset, .size = extent.size});
    }
  }
  SMOE_TRY_ASSIGN(auto queue, io::ReadQueue::Open(backend, {}));
  SMOE_TRY_ASSIGN(AlignedBuffer memory, AlignedBuffer::CreateTable(kReadsAtOnce, store.slot_bytes(),
                                                                   1, "measuring the drive"));
  SMOE_TRY_ASSIGN(const io::ReadRate rate,
                  io::MeasureReads(*queue, ranges, memory.bytes(), kReadsAtOnce, kDriveSeconds));
  return rate.bytes_per_second();
}

Result<Subject> SubjectOfModel(const Options& options, const engine::EngineOptions& engine) {
  if (options.layers)
    return Invalid("--layers: goes with a shape, {} is a model", options.model.model);
  SMOE_TRY_ASSIGN(const store::ModelFiles files, OpenFiles(options.model));
  Subject subject;
  SMOE_TRY_ASSIGN(subject.demand, engine::DemandOfFiles(files, engine));
  const engine::ShapeTrunk shape =
      engine::TrunkOfShape(files.config, engine::ChooseTrunkFormats(engine));
  // The model's own trunk, less the share that a trunk of its shape does not read.
  const uint64_t unread =
      std::min(shape.bytes - shape.token_read_bytes, subject.demand.trunk_bytes);
  subject.trunk_read_bytes = subject.demand.trunk_bytes - unread;
  if (files.experts->layers().empty()) return Invalid("{}: no layer with experts", files.path);
  const uint32_t first = files.experts->layers().front().layer_index;
  subject.expert_bytes = files.experts->Locate({first, 0}).read_bytes();
  subject.text = fmt::format("{}: {}", files.path, files.experts->format_name());
  if (options.drive_rate) return subject;
  SMOE_TRY_ASSIGN(subject.drive.value, MeasureDrive(files, engine.io));
  subject.drive.source = fmt::format(
      "measured: whole experts at random, {} at once, {}", kReadsAtOnce,
      files.experts->direct_io() ? "direct" : "buffered: the page cache may have served");
  return subject;
}

Result<Rate> DramRate(const Options& options, size_t thread_count) {
  if (options.dram_rate) return Rate{*options.dram_rate * 1e9, "as given"};
  const size_t threads = thread_count == 0 ? UsableCoreCount() : thread_count;
  SMOE_TRY_ASSIGN(const auto pool, ThreadPool::Create(threads));
  SMOE_TRY_ASSIGN(const auto meter, MemoryRateMeter::Create({.bytes = kRateBytesMin}, *pool));
  Rate rate{0, fmt::format("measured: a plain read on {} threads", threads)};
  for (int i = 0; i < kDramReadings; ++i) {
    rate.value = std::max(rate.value, meter.Read(*pool).bytes_per_second);
  }
  return rate;
}

struct Plan {
  Subject subject;
  engine::Budget budget;
  Rate dram;
  engine::Forecast forecast;
};

Result<Plan> MakePlan(const Options& options) {
  if (options.prompt_tokens == 0) return Invalid("--prompt: 0 tokens, expected at least 1");
  for (const auto& [name, rate] : {std::pair{"--drive-rate", options.drive_rate},
                                   std::pair{"--dram-rate", options.dram_rate}}) {
    if (rate && !(*rate > 0)) return Invalid("{}: {}, expected more than 0 GB/s", name, *rate);
  }
  SMOE_TRY_ASSIGN(const engine::EngineOptions engine, ChooseEngineOptions(options.model, 1, false));
  Plan plan;
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
  SMOE_TRY_ASSIGN(plan.subject, IsShape(options.model.model) ? SubjectOfShape(options, engine)
                                                             : SubjectOfModel(options, engine));
  const engine::BudgetDemand& demand = plan.subject.demand;
  SMOE_TRY_ASSIGN(plan.budget,
                  engine::DivideMemory(
                      demand, engine::LimitOf(options.model.memory_bytes, free, ResidentBytes())));
  if (options.drive_rate) plan.subject.drive = {*options.drive_rate * 1e9, "as given"};
  SMOE_TRY_ASSIGN(plan.dram, DramRate(options, options.model.thread_count));
  plan.forecast = engine::ForecastSpeed({.trunk_read_bytes = plan.subject.trunk_read_bytes,
                                         .expert_bytes = plan.subject.expert_bytes,
                                         .expert_count = demand.expert_count,
                                         .layer_count = demand.layer_count,
                                         .top_k = demand.top_k,
                                         .slot_count = plan.budget.slot_count,
                                         .chunk_tokens = plan.budget.chunk_tokens,
                                         .prompt_tokens = options.prompt_tokens,
                                         .drive_rate = plan.subject.drive.value,
                                         .dram_rate = plan.dram.value});
  return plan;
}

std::string RateText(const Rate& rate) {
  return rate.value > 0 ? fmt::format("{:.2f} GB/s ({})", rate.value / 1e9, rate.source)
                        : rate.source;
}

double CachedShare(const Plan& plan) {
  return static_cast<double>(plan.budget.slot_count) / plan.subject.demand.expert_count;
}

const char* LimitName(const Plan& plan) {
  if (plan.forecast.tokens_per_second() == 0) return "unknown";
  return plan.forecast.is_limited_by_drive() ? "drive" : "memory";
}

void PrintPlan(const Options& options, const Plan& plan, Console& console) {
  const engine::Forecast& forecast = plan.forecast;
  console.Print("{}\n\n{}\n", Printable(plan.subject.text), plan.budget.Table());
  console.Print("drive            {}\n", RateText(plan.subject.drive));
  console.Print("memory           {}\n", RateText(plan.dram));
  console.Print(
      "hits             {:.0f} % of a token's experts, if the busiest 8 % take half of the "
      "selections; {:.0f} % if all are alike\n",
      100 * forecast.hit_share, 100 * CachedShare(plan));
  console.Print("a token          {} from the drive, {} from memory\n",
                SizeText(forecast.miss_bytes), SizeText(forecast.active_bytes));
  if (const double rate = forecast.tokens_per_second(); rate > 0) {
    console.Print(
        "answer           at most {:.2f} tok/s; the {} is the limit ({:.1f} ms drive, {:.1f} ms "
        "memory)\n",
        rate, LimitName(plan), 1e3 * forecast.token_drive_seconds,
        1e3 * forecast.token_dram_seconds);
  } else {
    console.Print(
        "answer           unknown without the rate of the drive; memory allows {:.2f} tok/s\n",
        1 / forecast.token_dram_seconds);
  }
  if (const double seconds = forecast.first_token_seconds(); seconds > 0) {
    console.Print(
        "first token      of {} tokens after {:.2f} s at least: {} from the drive, arithmetic not "
        "counted\n",
        options.prompt_tokens, seconds, SizeText(forecast.prompt_bytes));
  } else {
    console.Print("first token      of {} tokens: {} from the drive\n", options.prompt_tokens,
                  SizeText(forecast.prompt_bytes));
  }
}

Json PlanJson(const Options& options, const Plan& plan) {
  const engine::Forecast& forecast = plan.forecast;
  std::vector<Json> lines;
  for (const engine::BudgetLine& line : plan.budget.lines) {
    Json json;
    json.Set("part", line.name).Set("bytes", line.bytes).Set("note", line.note);
    lines.push_back(std::move(json));
  }
  Json json;
  json.Set("subject", plan.subject.text)
      .Set("memory_bytes", plan.budget.limit.bytes)
      .Set("memory_reason", plan.budget.limit.reason)
      .Set("parts", Json::ListOf(lines))
      .Set("context_tokens", uint64_t{plan.budget.context_tokens})
      .Set("chunk_tokens", uint64_t{plan.budget.chunk_tokens})
      .Set("slots", plan.budget.slot_count)
      .Set("experts", plan.subject.demand.expert_count)
      .Set("drive_bytes_per_second", plan.subject.drive.value)
      .Set("memory_bytes_per_second", plan.dram.value)
      .Set("hit_share", forecast.hit_share)
      .Set("hit_share_if_alike", CachedShare(plan))
      .Set("token_drive_bytes", forecast.miss_bytes)
      .Set("token_memory_bytes", forecast.active_bytes)
      .Set("prompt_tokens", options.prompt_tokens)
      .Set("prompt_drive_bytes", forecast.prompt_bytes)
      .Set("tokens_per_second_max", forecast.tokens_per_second())
      .Set("first_token_seconds_min", forecast.first_token_seconds())
      .Set("limit", LimitName(plan));
  return json;
}

Result<ExitCode> RunPlan(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(const Plan plan, MakePlan(options));
  if (options.json) {
    console.Print("{}\n", PlanJson(options, plan).Dump(2));
  } else {
    PrintPlan(options, plan, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefinePlan(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional(
      "MODEL", &options->model.model,
      "A model, or a shape: " + convert::SynthPresetNames() + ", or a config.json");
  arguments.Choice("--bits", &options->bits, {"4", "2"}, "Of a shape's experts (default: 4)");
  arguments.Option("--layers", &options->layers, "N", "Only so many layers of a shape");
  arguments.Option("--prompt", &options->prompt_tokens, "N",
                   "Tokens of the prompt that is expected (default: 512)");
  arguments.Option("--drive-rate", &options->drive_rate, "GB/S",
                   "Of random reads (default: measured on the model)");
  arguments.Option("--dram-rate", &options->dram_rate, "GB/S",
                   "Of reads from memory (default: measured)");
  arguments.Flag("--json", &options->json, "As JSON");
  DefineEngineOptions(arguments, &options->model);
  return [options](Console& console) { return RunPlan(*options, console); };
}

}  // namespace smoe::cli
