#include "cli/bench_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "engine/cache_figures.h"
#include "io/file.h"

namespace smoe::cli {

namespace {

constexpr char kHeader[] =
    "date\tcommit\tmachine\tmodel and format\tcommand\tcache\truns\tmin\tmedian\tmax\tbytes\tbound"
    "\tverdict\twhy\n";
constexpr uint64_t kLogBytesMax = uint64_t{64} << 20;

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// A tab or a line's end inside a field would be another field.
std::string Field(std::string text) {
  for (char& c : text) {
    if (c == '\t' || c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

std::string Row(const std::vector<std::string>& fields) {
  std::string row;
  for (const std::string& field : fields) {
    if (!row.empty()) row += '\t';
    row += Field(field);
  }
  row += '\n';
  return row;
}

std::string CacheText(const engine::EngineSetup& setup, double hits, double foreseen) {
  return fmt::format("{} of {} experts, {:.1f} % hits, {:.1f} % ahead", setup.slot_count,
                     setup.expert_count, 100 * hits, 100 * foreseen);
}

std::string CacheText(const engine::BenchReport& report) {
  if (report.setup.is_resident()) return "all experts";
  return CacheText(report.setup, engine::HitShare(report.cache),
                   engine::ForeseenShare(report.cache));
}

std::string ModelText(const engine::EngineSetup& setup) {
  return fmt::format("{}: {}, {} experts, trunk {}",
                     std::filesystem::path(setup.model_path).filename().string(),
                     setup.expert_format, setup.expert_count, setup.trunk_format);
}

std::string CommandText(const engine::BenchReport& report) {
  const engine::BenchOptions& options = report.options;
  return fmt::format(
      "smoe bench MODEL --prompt {} --tokens {} --rounds {} --seed {} --threads {} --chunk {} "
      "--arithmetic {} --kv {} ({} table, {})",
      options.prompt_tokens, options.decode_tokens, options.rounds, options.seed,
      report.setup.thread_count, report.setup.chunk_tokens, report.setup.arithmetic,
      report.setup.kv, report.setup.kernels, report.setup.reads);
}

std::vector<std::string> Figures(const Spread& spread) {
  std::vector<std::string> fields;
  for (const double value : {spread.min, spread.median, spread.max}) {
    fields.push_back(fmt::format("{:.2f} tok/s", value));
  }
  return fields;
}

Status CheckNew(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
    return Invalid("--log: {}: there is no folder {} to write it into; make it first", path,
                   folder);
  }
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return Ok();
  return Io("--log: {}: nothing can be written into its folder: {}", path,
            std::generic_category().message(errno));
}

Status CheckOld(const std::string& path) {
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(path, kLogBytesMax));
  if (!text.empty() && !text.starts_with(kHeader)) {
    return Invalid("--log: {} is there and is no log: its first line is not \"date, commit, ...\"",
                   path);
  }
  if (!text.empty() && text.back() != '\n') {
    return Invalid("--log: {} ends inside a line; mend it, or name another file", path);
  }
  if (::access(path.c_str(), W_OK) == 0) return Ok();
  return Io("--log: {}: cannot be written: {}", path, std::generic_category().message(errno));
}

}  // namespace

Result<BenchLog> BenchLog::Open(const std::string& path) {
  std::error_code ignored;
  SMOE_TRY(std::filesystem::exists(path, ignored) ? CheckOld(path) : CheckNew(path));
  return BenchLog(path);
}

Status BenchLog::Append(const engine::BenchReport& report, const std::string& commit,
                        const std::string& machine) {
  const auto row = [&](const Spread& rate, const std::string& bytes, const std::string& bound,
                       const std::string& why) {
    std::vector<std::string> fields = {Today(),
                                       commit,
                                       machine,
                                       ModelText(report.setup),
                                       CommandText(report),
                                       CacheText(report),
                                       fmt::format("{}", report.options.rounds)};
    for (std::string& figure : Figures(rate)) fields.push_back(std::move(figure));
    fields.insert(fields.end(), {bytes, bound, "", why});
    return Row(fields);
  };
  std::string rows =
      row(report.decode_rate, fmt::format("{} a token", report.decode_bytes),
          fmt::format("{:.1f} GB/s read plainly in the same rounds: {:.2f} tok/s",
                      report.memory.bound().median / 1e9, report.DecodeBound()),
          fmt::format("decode: {:.1f} GB/s, {:.0f} % of the bound",
                      report.DecodeBytesPerSecond() / 1e9, 100 * report.DecodeShare()));
  rows += row(
      report.prefill_rate, "", "",
      fmt::format("prompt: {:.1f} GFLOP/s, first token after {:.3f} s",
                  report.PrefillOperationsPerSecond() / 1e9, report.first_token_seconds.median));
  return Write(std::move(rows));
}

Status BenchLog::Append(const engine::MemoryBenchReport& report, const std::string& commit,
                        const std::string& machine) {
  std::string rows;
  const engine::BenchOptions& bench = report.options.bench;
  for (const engine::MemoryRow& memory : report.rows) {
    if (memory.refused) continue;
    const engine::EngineSetup& setup = memory.setup;
    const std::string command = fmt::format(
        "smoe bench MODEL --memory {} --prompt {} --tokens {} --rounds {} --seed {} --threads {} "
        "(chunk {}, {} table, {})",
        memory.memory_bytes ? std::to_string(*memory.memory_bytes) : "all", bench.prompt_tokens,
        bench.decode_tokens, bench.rounds, bench.seed, setup.thread_count, setup.chunk_tokens,
        setup.kernels, setup.reads);
    const auto add = [&](const char* name, const engine::PhaseFigures& figures) {
      std::vector<std::string> fields = {
          Today(),
          commit,
          machine,
          ModelText(setup),
          command,
          CacheText(setup, figures.HitShare(), figures.ForeseenShare()),
          fmt::format("{}", bench.rounds)};
      for (std::string& figure : Figures(figures.TokensPerSecond())) fields.push_back(figure);
      const Spread share = figures.Share();
      fields.insert(
          fields.end(),
          {fmt::format("{:.0f} read a token", figures.ReadBytesPerToken()),
           fmt::format("drive {:.2f} GB/s, DRAM {:.1f} GB/s in the same rounds: {:.2f} tok/s",
                       report.drive_rate.median / 1e9, report.dram_rate.median / 1e9,
                       figures.BoundTokensPerSecond().median),
           "",
           fmt::format(
               "{}: {:.0f} % of the bound ({:.0f} to {:.0f}), {:.0f} % stalled, first token "
               "after {:.2f} s, peak {:.0f} MB",
               name, 100 * share.median, 100 * share.min, 100 * share.max,
               100 * figures.WaitShare(), memory.prefill.Seconds().median,
               static_cast<double>(memory.peak_bytes) / 1e6)});
      rows += Row(fields);
    };
    add("decode", memory.decode);
    add("prompt", memory.prefill);
    add("another prompt", memory.next_prefill);
  }
  return Write(std::move(rows));
}

Status BenchLog::Write(std::string rows) {
  SMOE_TRY_ASSIGN(const io::File file, io::File::OpenOrCreate(path_));
  SMOE_TRY_ASSIGN(const uint64_t size, file.Size());
  if (size == 0) rows.insert(0, kHeader);
  return file.WriteAt(size, std::as_bytes(std::span(rows.data(), rows.size())));
}

}  // namespace smoe::cli
