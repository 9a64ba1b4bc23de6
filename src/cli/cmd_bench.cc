// smoe bench [MODEL]
//
// Speed with all experts in memory, beside what a plain read of this machine's memory reached in
// the same minute: see engine/benchmark.h. With --memory under several amounts of it, beside drive
// and memory: engine/memory_bench.h.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/machine.h"
#include "base/memory_limits.h"
#include "cli/bench_drive.h"
#include "cli/bench_log.h"
#include "cli/bench_memory.h"
#include "cli/command.h"
#include "cli/commit.h"
#include "cli/count_list.h"
#include "cli/memory_list.h"
#include "cli/model_options.h"
#include "cli/profile_text.h"
#include "cli/progress_bar.h"
#include "cli/spread_json.h"
#include "cli/version.h"
#include "engine/benchmark.h"
#include "engine/cache_figures.h"
#include "engine/memory_bench.h"

namespace smoe::cli {

namespace {

using engine::BenchReport;

struct Options {
  ModelOptions model;
  std::string threads;
  std::string memory;
  uint32_t prompt_tokens = 512;
  uint32_t decode_tokens = 64;
  uint32_t rounds = 5;
  uint64_t seed = 1;
  std::optional<uint64_t> memory_bytes;
  std::string log;
  bool profile = false;
  bool drive = false;
  bool json = false;
};

constexpr CountList kThreadCounts = {
    .option = "--threads", .one = "a number such as 2", .several = "1,2,4", .count_max = 64};

std::string CommitText() {
  return *kCommit == '\0' ? fmt::format("version {}", kVersion) : kCommit;
}

engine::BenchOptions BenchOptionsOf(const Options& options) {
  return {.prompt_tokens = options.prompt_tokens,
          .decode_tokens = options.decode_tokens,
          .rounds = options.rounds,
          .seed = options.seed,
          .memory_bytes = options.memory_bytes.value_or(0)};
}

Result<BenchReport> Measure(const Options& options, uint32_t thread_count, Console& console) {
  ModelOptions model = options.model;
  model.thread_count = thread_count;
  if (model.context_tokens == 0) {
    model.context_tokens = uint64_t{options.prompt_tokens} + options.decode_tokens + 1;
  }
  SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(model));
  SMOE_TRY_ASSIGN(const auto engine, OpenEngine(std::move(files), model, 1, false));
  ProgressBar progress(console, "bench");
  return engine::RunBenchmark(*engine, BenchOptionsOf(options), [&](uint64_t done, uint64_t total) {
    progress.UpdateCount(done, total, "steps");
  });
}

double Gigabytes(double bytes) { return bytes / 1e9; }

std::string RateText(const Spread& spread, double scale) {
  return fmt::format("{:>8.2f}  ({:.2f} to {:.2f})", spread.median * scale, spread.min * scale,
                     spread.max * scale);
}

// Where the text below puts a line's name.
constexpr char kLine[] = "{:<15}{}\n";

std::string ExpertsText(const BenchReport& report) {
  const engine::EngineSetup& setup = report.setup;
  if (setup.is_resident() && report.cache.miss_count == 0) {
    return fmt::format("all {} in memory", setup.expert_count);
  }
  const double tokens = static_cast<double>(report.decoded_count + report.prompted_count);
  return fmt::format(
      "{} of {} in memory, so the drive is measured too: {:.1f} % in memory by themselves, "
      "{:.1f} % read in time, {} read a token, {:.1f} % of the time waiting",
      setup.slot_count, setup.expert_count, 100 * engine::HitShare(report.cache),
      100 * engine::ForeseenShare(report.cache),
      SizeText(static_cast<uint64_t>(static_cast<double>(report.cache.read_bytes) / tokens)),
      100 * static_cast<double>(report.cache.wait_ns) /
          static_cast<double>(report.prefill.wall_ns + report.decode.wall_ns));
}

std::string MemoryText(const BenchReport& report) {
  const engine::MemoryRates& memory = report.memory;
  const size_t threads = report.setup.thread_count;
  std::string text = fmt::format(
      kLine, "memory",
      fmt::format("plain reads of {}, GB/s, median (min to max)", SizeText(memory.bytes)));
  const auto line = [&](const char* name, const Spread& one, const Spread& all) {
    text += fmt::format("  {:<12} 1 thread {}", name, RateText(one, 1e-9));
    if (threads > 1) text += fmt::format("   {} threads {}", threads, RateText(all, 1e-9));
    text += "\n";
  };
  line(memory.huge_given ? "huge pages" : "huge refused", memory.one_huge, memory.all_huge);
  line("small pages", memory.one_small, memory.all_small);
  return text +
         fmt::format("  {:<12} {:.0f} % of the trunk and {:.0f} % of the cache lie in them\n",
                     "huge pages:", 100 * report.trunk_pages.HugeShare(),
                     100 * report.cache_pages.HugeShare());
}

std::string DecodeText(const BenchReport& report) {
  const engine::TokenCost& cost = report.setup.token_cost;
  const auto gigabytes = [](uint64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  std::string text = fmt::format(
      kLine, "decode",
      fmt::format("{:.2f} tok/s  ({:.2f} to {:.2f}), {:.2f} ms a token", report.decode_rate.median,
                  report.decode_rate.min, report.decode_rate.max, 1e3 / report.decode_rate.median));
  const uint64_t trunk = cost.trunk_bytes + cost.head_bytes;
  text += fmt::format(
      "  {:<12} {:.3f} GB a token: trunk {:.3f}, active experts {:.3f}, keys and values {:.3f}\n",
      "weights", gigabytes(report.decode_bytes), gigabytes(trunk), gigabytes(cost.expert_bytes),
      gigabytes(report.decode_bytes - trunk - cost.expert_bytes));
  return text +
         fmt::format(
             "  {:<12} {:.2f} GB/s, {:.1f} % of {:.2f} GB/s, which would give {:.2f} tok/s\n",
             "achieved", Gigabytes(report.DecodeBytesPerSecond()), 100 * report.DecodeShare(),
             Gigabytes(report.memory.bound().median), report.DecodeBound());
}

void PrintReport(const BenchReport& report, const Options& options, Console& console) {
  const engine::EngineSetup& setup = report.setup;
  console.Print(kLine, "model",
                fmt::format("{}: experts {}, trunk {} ({})", Printable(setup.model_path),
                            setup.expert_format, setup.trunk_format, SizeText(setup.trunk_bytes)));
  console.Print(
      kLine, "engine",
      fmt::format(
          "{} thread{}, {} table, arithmetic {}, keys and values {}, chunks of {}, reads {}",
          setup.thread_count, setup.thread_count == 1 ? "" : "s", setup.kernels, setup.arithmetic,
          setup.kv, setup.chunk_tokens, setup.reads));
  console.Print(kLine, "experts", ExpertsText(report));
  console.Print(
      kLine, "rounds",
      fmt::format("{} of {} prompt tokens and {} decoded, seed {}; medians", options.rounds,
                  options.prompt_tokens, options.decode_tokens, options.seed));
  console.Print("{}{}", MemoryText(report), DecodeText(report));
  console.Print(kLine, "prefill",
                fmt::format("{:.2f} tok/s  ({:.2f} to {:.2f}), {:.1f} GFLOP/s",
                            report.prefill_rate.median, report.prefill_rate.min,
                            report.prefill_rate.max, report.PrefillOperationsPerSecond() / 1e9));
  console.Print(kLine, "first token",
                fmt::format("{:.3f} s after the request", report.first_token_seconds.median));
  if (!options.profile) return;
  console.Print(
      "{}{}",
      ProfileText("decode, a token", report.decode, report.decoded_count, setup.thread_count),
      ProfileText("prefill, a prompt", report.prefill, report.options.rounds, setup.thread_count));
}

Json MemoryJson(const BenchReport& report) {
  const engine::MemoryRates& memory = report.memory;
  Json json;
  json.Set("read_bytes", memory.bytes)
      .Set("huge_pages_given", memory.huge_given)
      .Set("one_thread_huge_pages", SpreadJson(memory.one_huge))
      .Set("one_thread_small_pages", SpreadJson(memory.one_small))
      .Set("all_threads_huge_pages", SpreadJson(memory.all_huge))
      .Set("all_threads_small_pages", SpreadJson(memory.all_small))
      .Set("bound", memory.bound().median)
      .Set("trunk_huge_share", report.trunk_pages.HugeShare())
      .Set("cache_huge_share", report.cache_pages.HugeShare());
  return json;
}

Json DecodeJson(const BenchReport& report) {
  const engine::TokenCost& cost = report.setup.token_cost;
  Json json;
  json.Set("tokens_per_second", SpreadJson(report.decode_rate))
      .Set("bytes_per_token", report.decode_bytes)
      .Set("trunk_bytes", cost.trunk_bytes + cost.head_bytes)
      .Set("active_expert_bytes", cost.expert_bytes)
      .Set("kv_bytes", report.decode_bytes - cost.trunk_bytes - cost.head_bytes - cost.expert_bytes)
      .Set("bytes_per_second", report.DecodeBytesPerSecond())
      .Set("bound_tokens_per_second", report.DecodeBound())
      .Set("share_of_bound", report.DecodeShare());
  return json;
}

Json ReportJson(const BenchReport& report, const Options& options) {
  const engine::EngineSetup& setup = report.setup;
  Json json;
  json.Set("threads", uint64_t{setup.thread_count})
      .Set("kernels", setup.kernels)
      .Set("arithmetic", setup.arithmetic)
      .Set("kv", setup.kv)
      .Set("chunk_tokens", uint64_t{setup.chunk_tokens})
      .Set("reads", setup.reads)
      .Set("expert_format", setup.expert_format)
      .Set("trunk_format", setup.trunk_format)
      .Set("trunk_bytes", setup.trunk_bytes)
      .Set("cache_experts", setup.slot_count)
      .Set("experts", setup.expert_count)
      .Set("resident", setup.is_resident())
      .Set("expert_hits", report.cache.hit_count)
      .Set("expert_misses", report.cache.miss_count)
      .Set("expert_read_ahead_in_time", report.cache.prefetch_hit_count)
      .Set("hit_share", engine::HitShare(report.cache))
      .Set("read_ahead_share", engine::ForeseenShare(report.cache))
      .Set("read_bytes", report.cache.read_bytes)
      .Set("wait_seconds", 1e-9 * static_cast<double>(report.cache.wait_ns))
      .Set("memory_bytes_per_second", MemoryJson(report))
      .Set("decode", DecodeJson(report))
      .Set("prefill", Json()
                          .Set("tokens_per_second", SpreadJson(report.prefill_rate))
                          .Set("operations", report.prefill_operations)
                          .Set("operations_per_second", report.PrefillOperationsPerSecond()))
      .Set("first_token_seconds", SpreadJson(report.first_token_seconds));
  if (!options.profile) return json;
  Json profile;
  profile.Set("decode", ProfileJson(report.decode, report.decoded_count, setup.thread_count))
      .Set("prefill", ProfileJson(report.prefill, report.options.rounds, setup.thread_count));
  json.Set("profile", std::move(profile));
  return json;
}

Json WholeJson(const Options& options, const std::string& model, const std::string& machine,
               Json runs) {
  Json json;
  json.Set("version", kVersion)
      .Set("commit", kCommit)
      .Set("machine", machine)
      .Set("model", model)
      .Set("prompt_tokens", options.prompt_tokens)
      .Set("decode_tokens", options.decode_tokens)
      .Set("rounds", options.rounds)
      .Set("seed", options.seed)
      .Set("runs", std::move(runs));
  return json;
}

Result<ExitCode> MeasureDriveOf(const Options& options, Console& console) {
  BenchDriveOptions drive{.path = options.model.model,
                          .rounds = options.rounds,
                          .seed = options.seed,
                          .json = options.json};
  if (drive.path.empty())
    return Invalid("--drive: no file named, expected MODEL or any large file");
  return BenchDrive(drive, console);
}

Result<engine::MemoryBenchOptions> MemoryOptions(const Options& options,
                                                 const std::vector<uint32_t>& thread_counts) {
  if (thread_counts.size() != 1) {
    return Invalid("--threads: {} numbers, with --memory one is expected", thread_counts.size());
  }
  if (options.profile) return Invalid("--profile: goes without --memory, on one amount of memory");
  ModelOptions model = options.model;
  model.thread_count = thread_counts.front();
  if (model.context_tokens == 0) {
    model.context_tokens = uint64_t{options.prompt_tokens} + options.decode_tokens + 1;
  }
  engine::MemoryBenchOptions bench;
  bench.bench = BenchOptionsOf(options);
  SMOE_TRY_ASSIGN(bench.engine, ChooseEngineOptions(model, 1, false));
  SMOE_TRY_ASSIGN(bench.sizes, ParseMemoryList(options.memory, engine::kMemorySizesMax));
  return bench;
}

void PrintHead(const std::string& machine, Console& console) {
  console.Print(kLine, "smoe", fmt::format("{} ({})", kVersion, CommitText()));
  console.Print(kLine, "machine", Printable(machine));
}

// The model under several amounts of memory.
Status BenchMemory(const Options& options, const engine::MemoryBenchOptions& bench, BenchLog* log,
                   const std::string& machine, Console& console) {
  std::string path;
  const engine::OpenFilesFunction open = [&]() -> Result<store::ModelFiles> {
    SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(options.model));
    path = files.path;
    return files;
  };
  engine::MemoryBenchReport report;
  {
    ProgressBar progress(console, "bench");
    SMOE_TRY_ASSIGN(report, engine::RunMemoryBench(open, bench, [&](uint64_t done, uint64_t total) {
                      progress.UpdateCount(done, total, "steps");
                    }));
  }
  if (log != nullptr) SMOE_TRY(log->Append(report, CommitText(), machine));
  if (options.json) {
    Json runs = MemoryBenchJson(report);
    console.Print("{}\n", WholeJson(options, path, machine, std::move(runs)).Dump(2));
  } else {
    PrintHead(machine, console);
    console.Print(kLine, "model", Printable(path));
    console.Print("{}", MemoryBenchText(report));
  }
  return Ok();
}

Result<ExitCode> Bench(const Options& options, Console& console) {
  if (options.drive) return MeasureDriveOf(options, console);
  std::vector<uint32_t> thread_counts = {0};  // the default
  if (!options.threads.empty()) {
    SMOE_TRY_ASSIGN(thread_counts, ParseCounts(kThreadCounts, options.threads));
  }
  SMOE_TRY(engine::CheckBenchOptions(BenchOptionsOf(options)));
  std::optional<BenchLog> log;
  if (!options.log.empty()) {
    SMOE_TRY_ASSIGN(log, BenchLog::Open(options.log));
  }
  const std::string machine = MachineText(ReadMachine());
  if (!options.memory.empty()) {
    SMOE_TRY_ASSIGN(const engine::MemoryBenchOptions bench, MemoryOptions(options, thread_counts));
    SMOE_TRY(BenchMemory(options, bench, log ? &*log : nullptr, machine, console));
    return ExitCode::kOk;
  }
  Json runs{Json::Array()};
  std::string model;
  for (const uint32_t threads : thread_counts) {
    SMOE_TRY_ASSIGN(const BenchReport report, Measure(options, threads, console));
    model = report.setup.model_path;
    if (log) SMOE_TRY(log->Append(report, CommitText(), machine));
    if (options.json) {
      runs.Append(ReportJson(report, options));
      continue;
    }
    // What is refused has printed nothing by then.
    if (&threads == &thread_counts.front()) PrintHead(machine, console);
    if (thread_counts.size() > 1) console.Print("\n");
    PrintReport(report, options, console);
    SMOE_TRY(console.Flush());
  }
  if (options.json) {
    console.Print("{}\n", WholeJson(options, model, machine, std::move(runs)).Dump(2));
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineBench(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineOptionalModel(arguments, &options->model);
  arguments.Option("--prompt", &options->prompt_tokens, "N",
                   "Prompt tokens, random ones (default: 512)");
  arguments.Option("--tokens", &options->decode_tokens, "N",
                   "Tokens decoded one by one behind the prompt (default: 64)");
  arguments.Option("--rounds", &options->rounds, "N",
                   "Measured rounds; medians count (default: 5, and one before them)");
  arguments.Option("--seed", &options->seed, "N", "Another seed, other tokens (default: 1)");
  arguments.Option("--read", SizeOption{&options->memory_bytes}, "SIZE",
                   "Memory that plain reads go through (default: 4 times the caches, at least "
                   "1GiB)");
  arguments.Flag("--profile", &options->profile,
                 "Where the time goes: attention, router, experts, head, waiting, idle threads");
  arguments.Flag(
      "--drive", &options->drive,
      "Measure the drive instead: random reads of MODEL, which may be any large file, by "
      "io_uring and threads, direct and buffered, at several depths and sizes");
  arguments.Option("--log", &options->log, "FILE",
                   "Append a row for each figure to FILE, a table separated by tabs");
  arguments.Flag("--json", &options->json, "As JSON");
  DefineEngineOptions(arguments, &options->model,
                      {.threads = &options->threads, .memory = &options->memory});
  return [options](Console& console) { return Bench(*options, console); };
}

}  // namespace smoe::cli
