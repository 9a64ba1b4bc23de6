#include "cli/bench_memory.h"

#include <fmt/format.h>

#include "base/memory_limits.h"
#include "cli/console.h"
#include "cli/spread_json.h"

namespace smoe::cli {

namespace {

constexpr char kLine[] = "{:<15}{}\n";

using engine::MemoryBenchReport;
using engine::MemoryRow;
using engine::PhaseFigures;

std::string SpreadText(const Spread& spread, double scale, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", spread.median * scale, digits,
                     spread.min * scale, digits, spread.max * scale, digits);
}

const char* DecodeLimit(const PhaseFigures& figures) {
  return figures.IsDriveBound() ? "drive" : "memory";
}

std::string PrefillLimit(const PhaseFigures& figures, const MemoryBenchReport& report) {
  if (figures.IsDriveBound()) return report.knows_arithmetic ? "drive" : "drive alone";
  return report.knows_arithmetic ? "arithmetic" : "nothing read";
}

bool HasBound(const PhaseFigures& figures) { return figures.BoundTokensPerSecond().median > 0; }

std::string RowText(const MemoryRow& row, const PhaseFigures& figures, const std::string& limit) {
  std::string text =
      fmt::format("  {:<8} {:>5} {:>24} {:>8.1f} {:>6.1f} {:>6.1f} {:>6.1f} {:>6.2f}",
                  MemoryName(row.memory_bytes), row.setup.slot_count,
                  SpreadText(figures.TokensPerSecond(), 1, 2), figures.ReadBytesPerToken() / 1e6,
                  100 * figures.HitShare(), 100 * figures.ForeseenShare(),
                  100 * figures.WaitShare(), figures.DriveRate().median / 1e9);
  if (!HasBound(figures)) return text + "   no bound: nothing was read\n";
  return text + fmt::format(" {:>8.2f} {:>18}  {}\n", figures.BoundTokensPerSecond().median,
                            SpreadText(figures.Share(), 100, 0), limit);
}

std::string HeadText() {
  return fmt::format("  {:<8} {:>5} {:>24} {:>8} {:>6} {:>6} {:>6} {:>6} {:>8} {:>18}  {}\n",
                     "memory", "slots", "tok/s", "MB read", "hit %", "ahead", "stall%", "GB/s",
                     "bound", "% of bound", "limit");
}

std::string DecodeTable(const MemoryBenchReport& report) {
  std::string text = fmt::format("decode, {} tokens\n", report.options.bench.decode_tokens);
  text += HeadText();
  for (const MemoryRow& row : report.rows) {
    text += row.refused ? fmt::format("  {:<8} refused: {}\n", MemoryName(row.memory_bytes),
                                      Printable(row.refused->message()))
                        : RowText(row, row.decode, DecodeLimit(row.decode));
  }
  return text;
}

std::string PrefillTable(const MemoryBenchReport& report, const std::string& what,
                         PhaseFigures MemoryRow::*prefill) {
  std::string text = fmt::format("{}, {} tokens\n", what, report.options.bench.prompt_tokens);
  text += HeadText();
  for (const MemoryRow& row : report.rows) {
    if (!row.refused) text += RowText(row, row.*prefill, PrefillLimit(row.*prefill, report));
  }
  if (!report.knows_arithmetic) {
    text += "  (arithmetic is left out of the bound: no \"all\" in the list to measure it)\n";
  }
  return text;
}

std::string FirstTokenTable(const MemoryBenchReport& report) {
  std::string text = "from the request to the first token, and the process at its largest\n";
  for (const MemoryRow& row : report.rows) {
    if (row.refused) continue;
    text += fmt::format("  {:<8} {:>24} s, opened in {:.2f} s, chunks of {}, peak {}{}\n",
                        MemoryName(row.memory_bytes), SpreadText(row.prefill.Seconds(), 1, 2),
                        row.open_seconds.median, row.setup.chunk_tokens,
                        row.peak_bytes == 0
                            ? "not known"
                            : fmt::format("{:.0f} MB", static_cast<double>(row.peak_bytes) / 1e6),
                        row.is_preloaded ? ", experts loaded before" : "");
  }
  return text;
}

std::string PageCacheText(const MemoryBenchReport& report) {
  return report.is_direct ? "direct reads go past it"
                          : "reads go through it; the store was dropped from it before each "
                            "request, and may come from it within one";
}

Json PhaseJson(const PhaseFigures& figures, const std::string& limit) {
  Json json;
  json.Set("tokens_per_second", SpreadJson(figures.TokensPerSecond()))
      .Set("read_bytes_per_token", figures.ReadBytesPerToken())
      .Set("hit_share", figures.HitShare())
      .Set("read_ahead_share", figures.ForeseenShare())
      .Set("wait_share", figures.WaitShare())
      .Set("read_bytes_per_second", SpreadJson(figures.DriveRate()));
  if (!HasBound(figures)) return json;
  json.Set("bound_tokens_per_second", SpreadJson(figures.BoundTokensPerSecond()))
      .Set("share_of_bound", SpreadJson(figures.Share()))
      .Set("limit", limit);
  return json;
}

Json RowJson(const MemoryRow& row, const MemoryBenchReport& report) {
  Json json;
  json.Set("memory", MemoryName(row.memory_bytes));
  if (row.memory_bytes) json.Set("memory_bytes", *row.memory_bytes);
  if (row.refused) return json.Set("refused", row.refused->message());
  json.Set("cache_experts", row.setup.slot_count)
      .Set("experts", row.setup.expert_count)
      .Set("chunk_tokens", uint64_t{row.setup.chunk_tokens})
      .Set("reads", row.setup.reads)
      .Set("loaded_before", row.is_preloaded)
      .Set("peak_bytes", row.peak_bytes)
      .Set("memory_bytes_per_token", row.decode_bytes)
      .Set("open_seconds", SpreadJson(row.open_seconds))
      .Set("first_token_seconds", SpreadJson(row.prefill.Seconds()))
      .Set("decode", PhaseJson(row.decode, DecodeLimit(row.decode)))
      .Set("prefill", PhaseJson(row.prefill, PrefillLimit(row.prefill, report)))
      .Set("next_prefill", PhaseJson(row.next_prefill, PrefillLimit(row.next_prefill, report)));
  return json;
}

}  // namespace

std::string MemoryName(const std::optional<uint64_t>& memory_bytes) {
  if (!memory_bytes) return "all";
  return fmt::format("{:.2f} GB", static_cast<double>(*memory_bytes) / 1e9);
}

std::string MemoryBenchText(const MemoryBenchReport& report) {
  std::string text;
  for (const MemoryRow& row : report.rows) {
    if (row.refused) continue;
    text += fmt::format(kLine, "engine",
                        fmt::format("{} threads, {} table, arithmetic {}, keys and values {}, "
                                    "experts {}, reads {}",
                                    row.setup.thread_count, row.setup.kernels, row.setup.arithmetic,
                                    row.setup.kv, row.setup.expert_format, row.setup.reads));
    break;
  }
  text += fmt::format(kLine, "rounds",
                      fmt::format("{} in turns, each from an empty cache but \"all\"; medians "
                                  "(min to max), seed {}",
                                  report.options.bench.rounds, report.options.bench.seed));
  text += fmt::format(kLine, "drive",
                      fmt::format("{} GB/s: random experts, before and after each request",
                                  SpreadText(report.drive_rate, 1e-9, 2)));
  text += fmt::format(
      kLine, "memory",
      fmt::format("{} GB/s: plain reads, the median of five, before and after each request",
                  SpreadText(report.dram_rate, 1e-9, 1)));
  text += fmt::format(kLine, "page cache", PageCacheText(report));
  return fmt::format(
      "{}\n{}\n{}\n{}\n{}", text, DecodeTable(report),
      PrefillTable(report, "prompt", &MemoryRow::prefill),
      PrefillTable(report, "another prompt, in the same process", &MemoryRow::next_prefill),
      FirstTokenTable(report));
}

Json MemoryBenchJson(const MemoryBenchReport& report) {
  std::vector<Json> rows;
  for (const MemoryRow& row : report.rows) rows.push_back(RowJson(row, report));
  Json json;
  json.Set("drive_bytes_per_second", SpreadJson(report.drive_rate))
      .Set("memory_bytes_per_second", SpreadJson(report.dram_rate))
      .Set("direct", report.is_direct)
      .Set("page_cache", PageCacheText(report))
      .Set("arithmetic_in_prefill_bound", report.knows_arithmetic)
      .Set("sizes", Json::ListOf(rows));
  return json;
}

}  // namespace smoe::cli
