// smoe plan SHAPE_OR_MODEL
//
// How memory would be divided and how fast the model could be, without running or converting it.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/core_count.h"
#include "base/json.h"
#include "base/memory_limits.h"
#include "base/memory_pressure.h"
#include "cli/bench_memory.h"
#include "cli/command.h"
#include "cli/memory_list.h"
#include "cli/model_options.h"
#include "convert/synth_shape.h"
#include "engine/budget.h"
#include "engine/forecast.h"
#include "engine/machine_rates.h"
#include "engine/memory_bench.h"
#include "engine/model_demand.h"
#include "engine/refusals.h"
#include "tensor/quantise.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  std::string memory;
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
  subject.demand.embedding_bytes = trunk.embedding_bytes;
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
  SMOE_TRY_ASSIGN(subject.drive.value, engine::MeasureStoreReads(*files.experts, engine.io));
  subject.drive.source = fmt::format(
      "measured: whole experts at random, several at once, {}",
      files.experts->direct_io() ? "direct" : "buffered, dropped from the page cache before");
  return subject;
}

Result<Rate> DramRate(const Options& options, size_t thread_count) {
  if (options.dram_rate) return Rate{*options.dram_rate * 1e9, "as given"};
  const size_t threads = thread_count == 0 ? UsableCoreCount() : thread_count;
  Rate rate{0, fmt::format("measured: a plain read on {} threads, the median of five", threads)};
  SMOE_TRY_ASSIGN(rate.value, engine::MeasureDram(threads, 0));
  return rate;
}

struct Plan {
  Subject subject;
  std::optional<uint64_t> memory_bytes;  // asked for
  std::optional<Error> refused;          // then nothing below is known
  engine::Budget budget;
  uint32_t slot_count = 0;  // that hold experts behind the prompt
  Rate dram;
  engine::Forecast forecast;
};

engine::Forecast ForecastOf(const Options& options, const Plan& plan) {
  const engine::BudgetDemand& demand = plan.subject.demand;
  return engine::ForecastSpeed({.trunk_read_bytes = plan.subject.trunk_read_bytes,
                                .expert_bytes = plan.subject.expert_bytes,
                                .expert_count = demand.expert_count,
                                .layer_count = demand.layer_count,
                                .top_k = demand.top_k,
                                .slot_count = plan.slot_count,
                                .chunk_tokens = plan.budget.chunk_tokens,
                                .prompt_tokens = options.prompt_tokens,
                                .drive_rate = plan.subject.drive.value,
                                .dram_rate = plan.dram.value});
}

// With what the prompt and an answer never touch of the rest.
uint32_t SlotsBehindPrompt(const Options& options, const Plan& plan) {
  const size_t rows = std::min<size_t>(plan.budget.chunk_tokens, options.prompt_tokens);
  return engine::SlotsBeside(plan.subject.demand, plan.budget, rows,
                             options.prompt_tokens + engine::kWeighedAnswerTokens);
}

Status CheckOptions(const Options& options) {
  if (options.prompt_tokens == 0) return Invalid("--prompt: 0 tokens, expected at least 1");
  for (const auto& [name, rate] : {std::pair{"--drive-rate", options.drive_rate},
                                   std::pair{"--dram-rate", options.dram_rate}}) {
    if (rate && !(*rate > 0)) return Invalid("{}: {}, expected more than 0 GB/s", name, *rate);
  }
  return Ok();
}

// One for each amount of memory; without --memory one for what is free. Of several amounts one that
// is too small is refused in its row; errors: kExhausted if all are.
Result<std::vector<Plan>> MakePlans(const Options& options, Console& console) {
  SMOE_TRY(CheckOptions(options));
  std::vector<std::optional<uint64_t>> sizes = {std::nullopt};
  if (!options.memory.empty()) {
    SMOE_TRY_ASSIGN(sizes, ParseMemoryList(options.memory, engine::kMemorySizesMax));
  }
  SMOE_TRY_ASSIGN(const engine::EngineOptions engine, ChooseEngineOptions(options.model, 1, false));
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
  const bool reads_drive = !options.drive_rate && !IsShape(options.model.model);
  if (reads_drive || !options.dram_rate) {
    console.Note("plan: measuring {}{}{}, some seconds\n", reads_drive ? "the drive" : "",
                 reads_drive && !options.dram_rate ? " and " : "",
                 options.dram_rate ? "" : "memory");
  }
  Plan plan;
  SMOE_TRY_ASSIGN(plan.subject, IsShape(options.model.model) ? SubjectOfShape(options, engine)
                                                             : SubjectOfModel(options, engine));
  if (options.drive_rate) plan.subject.drive = {*options.drive_rate * 1e9, "as given"};
  const uint64_t held_bytes = ResidentBytes();
  SMOE_TRY_ASSIGN(plan.dram, DramRate(options, options.model.thread_count));
  std::vector<Plan> plans;
  for (const std::optional<uint64_t>& size : sizes) {
    plan.memory_bytes = size;
    plan.refused.reset();
    Result<engine::Budget> budget =
        engine::DivideMemory(plan.subject.demand, engine::LimitOf(size, free, held_bytes));
    if (!budget && budget.error().code() != ErrorCode::kExhausted) {
      return Unexpected(std::move(budget.error()));
    }
    if (budget) {
      plan.budget = std::move(*budget);
      plan.slot_count = SlotsBehindPrompt(options, plan);
      plan.forecast = ForecastOf(options, plan);
    } else {
      plan.refused = std::move(budget.error());
    }
    plans.push_back(plan);
  }
  SMOE_TRY(engine::CheckAnyFits(plans));
  return plans;
}

std::string RateText(const Rate& rate) {
  return rate.value > 0 ? fmt::format("{:.2f} GB/s ({})", rate.value / 1e9, rate.source)
                        : rate.source;
}

double CachedShare(const Plan& plan) {
  return static_cast<double>(plan.slot_count) / plan.subject.demand.expert_count;
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
      "hits             {:.0f} % of a token's experts, if tokens choose as those of smoe synth do "
      "(docs/streaming.md); {:.0f} % if all are alike\n",
      100 * forecast.hit_share, 100 * CachedShare(plan));
  console.Print("a token          {} from the drive, {} from memory\n",
                SizeText(forecast.miss_bytes), SizeText(forecast.active_bytes));
  if (const double rate = forecast.tokens_per_second(); rate > 0) {
    console.Print(
        "answer           about {:.1f} tok/s, at most {:.1f}; {} takes longer ({:.1f} ms drive, "
        "{:.1f} ms memory, half of the shorter hidden; how far off: docs/measuring.md)\n",
        rate, forecast.tokens_per_second_bound(), LimitName(plan),
        1e3 * forecast.token_drive_seconds, 1e3 * forecast.memory_seconds());
  } else {
    console.Print(
        "answer           unknown without the rate of the drive; memory allows {:.2f} tok/s\n",
        1 / forecast.memory_seconds());
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
      .Set("slots", plan.slot_count)
      .Set("experts", plan.subject.demand.expert_count)
      .Set("drive_bytes_per_second", plan.subject.drive.value)
      .Set("memory_bytes_per_second", plan.dram.value)
      .Set("hit_share", forecast.hit_share)
      .Set("hit_share_if_alike", CachedShare(plan))
      .Set("token_drive_bytes", forecast.miss_bytes)
      .Set("token_memory_bytes", forecast.active_bytes)
      .Set("prompt_tokens", options.prompt_tokens)
      .Set("prompt_drive_bytes", forecast.prompt_bytes)
      .Set("tokens_per_second", forecast.tokens_per_second())
      .Set("tokens_per_second_max", forecast.tokens_per_second_bound())
      .Set("first_token_seconds_min", forecast.first_token_seconds())
      .Set("limit", LimitName(plan));
  return json;
}

// Without the rate of the drive a forecast is 0.
std::string KnownRate(double rate) { return rate > 0 ? fmt::format("{:.1f}", rate) : "unknown"; }

// A line for each amount.
void PrintPlans(const Options& options, const std::vector<Plan>& plans, Console& console) {
  const Plan& first = plans.front();
  console.Print("{}\n\ndrive    {}\nmemory   {}\n\n", Printable(first.subject.text),
                RateText(first.subject.drive), RateText(first.dram));
  console.Print("{:<10}{:>7}{:>7}{:>8}{:>10}{:>13}{:>9}{:>24}  {}\n", "memory", "slots", "chunk",
                "hits", "MB read", "tok/s about", "at most",
                fmt::format("first token of {}", options.prompt_tokens), "takes longer");
  for (const Plan& plan : plans) {
    const std::string name = plan.memory_bytes ? MemoryName(plan.memory_bytes) : "free";
    if (plan.refused) {
      console.Print("{:<10}refused: {}\n", name, Printable(plan.refused->message()));
      continue;
    }
    const engine::Forecast& forecast = plan.forecast;
    const double first_token = forecast.first_token_seconds();
    console.Print(
        "{:<10}{:>7}{:>7}{:>6.0f} %{:>10.1f}{:>13}{:>9}{:>24}  {}\n", name, plan.slot_count,
        plan.budget.chunk_tokens, 100 * forecast.hit_share,
        static_cast<double>(forecast.miss_bytes) / 1e6, KnownRate(forecast.tokens_per_second()),
        KnownRate(forecast.tokens_per_second_bound()),
        first_token > 0 ? fmt::format("{:.2f} s", first_token) : "unknown", LimitName(plan));
  }
}

Json PlansJson(const Options& options, const std::vector<Plan>& plans) {
  std::vector<Json> list;
  list.reserve(plans.size());
  for (const Plan& plan : plans) {
    list.push_back(plan.refused ? Json()
                                      .Set("memory_bytes", plan.memory_bytes.value_or(0))
                                      .Set("refused", plan.refused->message())
                                : PlanJson(options, plan));
  }
  return Json().Set("plans", Json::ListOf(list));
}

Result<ExitCode> RunPlan(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(const std::vector<Plan> plans, MakePlans(options, console));
  const bool is_one = plans.size() == 1;
  if (options.json) {
    console.Print("{}\n",
                  (is_one ? PlanJson(options, plans.front()) : PlansJson(options, plans)).Dump(2));
  } else if (is_one) {
    PrintPlan(options, plans.front(), console);
  } else {
    PrintPlans(options, plans, console);
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
  DefineEngineOptions(arguments, &options->model, {.memory = &options->memory});
  return [options](Console& console) { return RunPlan(*options, console); };
}

}  // namespace smoe::cli
